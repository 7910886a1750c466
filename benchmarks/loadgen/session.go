package main

import (
	"fmt"
	"math/rand/v2"
)

// workload is what every session says; lengths are in bytes of JSON.
type workload struct {
	text *prose
	// opening is the body up to the first message, and the system message: the same for all sessions, as the
	// instructions of one kind of agent are.
	opening []byte
	closing []byte
	task    int
	message int
	turns   int
	seed    uint64
	tag     string
	streams bool
}

func newWorkload(text *prose, model string, shared, task, message, turns, maxTokens int, seed uint64) *workload {
	random := rand.New(rand.NewPCG(seed, 0))
	opening := fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"system","content":"`, model)
	opening = append(append(opening, text.piece(random, shared)...), `"}`...)
	return &workload{
		text: text, opening: opening, task: task, message: message, turns: turns, seed: seed,
		closing: fmt.Appendf(nil, `],"max_tokens":%d,"temperature":1.0}`, maxTokens),
		tag:     fmt.Sprintf("r%x", seed),
	}
}

// session is one agent's conversation so far.
type session struct {
	number   int64
	door     door
	random   *rand.Rand
	parts    [][]byte
	length   int
	answered int
	left     int
}

func (w *workload) session(number int64, at door, turns int) *session {
	s := &session{number: number, door: at, random: rand.New(rand.NewPCG(w.seed, uint64(number)+1)), left: turns}
	s.parts = make([][]byte, 0, 2+5*turns)
	s.append(w.opening)
	s.append(fmt.Appendf(nil, `,{"role":"user","content":"Session %s-%d. `, w.tag, number))
	s.append(w.text.piece(s.random, w.task))
	s.append(messageEnd)
	return s
}

var (
	comma        = []byte(",")
	messageStart = []byte(`,{"role":"user","content":"`)
	messageEnd   = []byte(`"}`)
)

func (s *session) append(part []byte) {
	s.parts = append(s.parts, part)
	s.length += len(part)
}

// request is the next turn's head and body.
func (s *session) request(w *workload, scratch [][]byte) (head []byte, body [][]byte) {
	body = append(append(scratch[:0], s.parts...), w.closing)
	return fmt.Appendf(nil, "%s%d\r\n\r\n", s.door.head, s.length+len(w.closing)), body
}

// extend takes the reply's message and says the next thing. The message must stay as it is.
func (s *session) extend(w *workload, reply []byte) {
	s.answered++
	s.left--
	s.append(comma)
	s.append(reply)
	s.append(messageStart)
	s.append(w.text.piece(s.random, w.message))
	s.append(messageEnd)
}
