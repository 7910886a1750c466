package main

import (
	"bytes"
	"errors"
)

var errUnfinished = errors.New("the stream ended without [DONE]")

// streamed puts a message together from the chunks of a streamed chat completion. Their text is joined as the JSON it
// came in: parsing it would cost more than it says.
type streamed struct {
	content []byte
	done    bool
}

var (
	dataField    = []byte("data: ")
	doneMark     = []byte("[DONE]")
	deltaName    = []byte(`"delta":`)
	contentStart = []byte(`"content":"`)
)

// read takes one line of the stream; a chunk is counted.
func (s *streamed) read(line []byte, t *tally) {
	data, found := bytes.CutPrefix(line, dataField)
	if !found {
		return
	}
	if bytes.Equal(data, doneMark) {
		s.done = true
		return
	}
	t.chunk()
	_, delta, found := bytes.Cut(data, deltaName)
	if !found {
		return
	}
	_, text, found := bytes.Cut(delta, contentStart)
	if !found {
		return
	}
	// From the quote that opens the string.
	quoted := delta[len(delta)-len(text)-1:]
	if end, err := skipString(quoted, 0); err == nil {
		s.content = append(s.content, quoted[1:end-1]...)
	}
}

// message is what an agent would say that the assistant said.
func (s *streamed) message() ([]byte, error) {
	if !s.done {
		return nil, errUnfinished
	}
	return append(append([]byte(`{"role":"assistant","content":"`), s.content...), `"}`...), nil
}
