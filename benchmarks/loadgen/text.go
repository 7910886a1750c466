package main

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sort"
)

// prose is a text, already escaped for JSON, from which pieces of a wanted length are cut at spaces.
// Pieces share its memory: ten thousand open sessions cost the generator little.
type prose struct {
	escaped []byte
	spaces  []int
}

func newProse(text string) (*prose, error) {
	quoted, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	p := &prose{escaped: quoted[1 : len(quoted)-1]}
	for i, b := range p.escaped {
		if b == ' ' {
			p.spaces = append(p.spaces, i)
		}
	}
	if len(p.spaces) < 1000 {
		return nil, errors.New("the text to cut messages from has fewer than 1000 spaces")
	}
	return p, nil
}

// piece is at most length bytes of the text, from a random place, and at most a word shorter.
func (p *prose) piece(random *rand.Rand, length int) []byte {
	if length <= 0 {
		return nil
	}
	last := sort.SearchInts(p.spaces, len(p.escaped)-length)
	first := p.spaces[random.IntN(max(last, 1))]
	after := sort.SearchInts(p.spaces, first+length+1) - 1
	return p.escaped[first:p.spaces[after]]
}
