package main

import (
	"bytes"
	"errors"
)

// generateRequest is all that the stub reads of a request's body: parsing ten thousand ids to count them would cost
// more than the rest of the answer.
type generateRequest struct {
	prompt   int
	rid      string
	streamed bool
}

var errNoIDs = errors.New("the body has no input_ids, a list of numbers")

func readGenerate(body []byte) (generateRequest, error) {
	ids, found := valueOf(body, "input_ids")
	if !found || len(ids) == 0 || ids[0] != '[' {
		return generateRequest{}, errNoIDs
	}
	end := bytes.IndexByte(ids, ']')
	if end < 2 {
		return generateRequest{}, errNoIDs
	}
	request := generateRequest{prompt: bytes.Count(ids[:end], []byte{','}) + 1}
	// Names are looked for outside the list only.
	listed := len(body) - len(ids)
	for _, rest := range [][]byte{body[:listed], ids[end:]} {
		if rid, found := valueOf(rest, "rid"); found && len(rid) > 0 && rid[0] == '"' {
			if text, _, closed := bytes.Cut(rid[1:], []byte{'"'}); closed {
				request.rid = string(text)
			}
		}
		if stream, found := valueOf(rest, "stream"); found && bytes.HasPrefix(stream, []byte("true")) {
			request.streamed = true
		}
	}
	return request, nil
}

// valueOf is the text from the first value of that name on. The bodies are the proxy's and the gateway's own, so a
// string that looks like a member is not feared.
func valueOf(body []byte, name string) ([]byte, bool) {
	_, after, found := bytes.Cut(body, []byte(`"`+name+`"`))
	if !found {
		return nil, false
	}
	after = bytes.TrimLeft(after, " \t\r\n")
	if len(after) == 0 || after[0] != ':' {
		return nil, false
	}
	return bytes.TrimLeft(after[1:], " \t\r\n"), true
}
