package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// staleAfter is below the keep-alive time of common servers (uvicorn: 5 s): a connection idle for longer is not used
// again, so that a close by the server is not taken for a failed request.
const staleAfter = 2 * time.Second

// connection speaks just enough HTTP/1.1 to post JSON over one kept connection: net/http costs several times the CPU,
// and the generator shares the machine with what it measures.
type connection struct {
	address string
	timeout time.Duration
	socket  net.Conn
	reader  *bufio.Reader
	used    time.Time
	body    []byte
	// events, where set, is given each line of a chunked body as it comes, without its end.
	events func(line []byte)
}

func (c *connection) close() {
	if c.socket != nil {
		_ = c.socket.Close()
		c.socket = nil
	}
}

// post sends head (request line and headers, its blank line included) and the parts of the body, and gives the answer's
// status and body. The body is valid until the next call.
func (c *connection) post(head []byte, parts [][]byte) (status int, body []byte, err error) {
	if c.socket != nil && time.Since(c.used) > staleAfter {
		c.close()
	}
	if c.socket == nil {
		if err := c.open(); err != nil {
			return 0, nil, err
		}
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.socket.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, nil, err
	}
	buffers := make(net.Buffers, 0, len(parts)+1)
	buffers = append(append(buffers, head), parts...)
	if _, err := buffers.WriteTo(c.socket); err != nil {
		return 0, nil, err
	}
	return c.read()
}

func (c *connection) open() error {
	socket, err := net.DialTimeout("tcp", c.address, c.timeout)
	if err != nil {
		return &connectError{err}
	}
	c.socket = socket
	if c.reader == nil {
		c.reader = bufio.NewReaderSize(socket, 16<<10)
	} else {
		c.reader.Reset(socket)
	}
	return nil
}

type connectError struct{ error }

type answerHead struct {
	status  int
	length  int
	chunked bool
	closes  bool
}

func (c *connection) read() (int, []byte, error) {
	head, err := c.readHead()
	if err != nil {
		return 0, nil, err
	}
	switch {
	case head.chunked:
		err = c.readChunks()
	case head.length >= 0:
		c.body = grown(c.body[:0], head.length)
		_, err = io.ReadFull(c.reader, c.body)
	default:
		return 0, nil, errors.New("an answer without a length")
	}
	if err != nil {
		return 0, nil, err
	}
	c.used = time.Now()
	if head.closes {
		c.close()
	}
	return head.status, c.body, nil
}

func (c *connection) readHead() (answerHead, error) {
	head := answerHead{length: -1}
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return head, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return head, fmt.Errorf("not an HTTP/1.1 answer: %q", line)
	}
	if head.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return head, err
	}
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return head, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if head.status == 204 {
				head.length = 0
			}
			return head, nil
		}
		if err := head.take(line); err != nil {
			return head, err
		}
	}
}

func (h *answerHead) take(line []byte) error {
	name, value, found := bytes.Cut(line, []byte{':'})
	if !found {
		return fmt.Errorf("not a header: %q", line)
	}
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		length, err := strconv.Atoi(string(value))
		if err != nil {
			return err
		}
		h.length = length
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, []byte("connection")):
		h.closes = bytes.EqualFold(value, []byte("close"))
	}
	return nil
}

func (c *connection) readChunks() error {
	c.body = c.body[:0]
	told := 0
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		start := len(c.body)
		c.body = grown(c.body, start+int(size))
		if _, err := io.ReadFull(c.reader, c.body[start:]); err != nil {
			return err
		}
		if _, err := c.reader.Discard(2); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
		for c.events != nil {
			length := bytes.IndexByte(c.body[told:], '\n')
			if length < 0 {
				break
			}
			c.events(bytes.TrimSuffix(c.body[told:told+length], []byte{'\r'}))
			told += length + 1
		}
	}
}

// grown keeps the bytes that are there; the added ones are to be overwritten.
func grown(buffer []byte, length int) []byte {
	if cap(buffer) >= length {
		return buffer[:length]
	}
	larger := make([]byte, length, length+length/2)
	copy(larger, buffer)
	return larger
}

// errorKind names an error for the report.
func errorKind(err error) string {
	var network net.Error
	var connect *connectError
	switch {
	case errors.As(err, &connect):
		return "connect"
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return "connection_lost"
	default:
		return "bad_answer"
	}
}
