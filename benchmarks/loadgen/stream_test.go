package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

const aStream = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

: waiting
data: {"id":"c","choices":[{"index":0,"delta":{"content":"He said \"yes\","}}]}
data: {"id":"c","choices":[{"index":0,"delta":{"content":"\n\u00e9."}}]}
data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
`

func readAll(text string, t *tally) *streamed {
	var s streamed
	for line := range strings.SplitSeq(text, "\n") {
		s.read([]byte(line), t)
	}
	return &s
}

func TestChunksAreCountedAndTheirTextJoined(t *testing.T) {
	tally := newTally()
	tally.inWindow.Store(true)
	message, err := readAll(aStream+"data: [DONE]\n", tally).message()
	var got struct{ Role, Content string }
	if err != nil || json.Unmarshal(message, &got) != nil {
		t.Fatalf("%v %s", err, message)
	}
	if got.Content != "He said \"yes\",\né." || got.Role != "assistant" {
		t.Errorf("%+v", got)
	}
	if chunks := tally.window.chunks.Load(); chunks != 4 {
		t.Errorf("%d chunks", chunks)
	}
}

func TestAStreamThatBreaksOffIsAnError(t *testing.T) {
	if _, err := readAll(aStream, newTally()).message(); !errors.Is(err, errUnfinished) {
		t.Error(err)
	}
}
