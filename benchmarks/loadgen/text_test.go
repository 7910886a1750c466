package main

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestPiecesHaveTheAskedLengthAndAreValidJSON(t *testing.T) {
	text, err := newProse(strings.Repeat("A \"quoted\" word,\n a back\\slash and some more words — not ASCII.\t ", 400))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		piece := text.piece(random, 900)
		if len(piece) > 900 || len(piece) < 860 {
			t.Fatalf("%d bytes", len(piece))
		}
		if !json.Valid(append(append([]byte{'"'}, piece...), '"')) {
			t.Fatalf("not a JSON string: %s", piece)
		}
	}
}
