package main

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// play is a run's common state: what is asked, of whom, and what came of it.
type play struct {
	target   *target
	workload *workload
	tally    *tally
	opened   atomic.Int64
	// end is how a session ends that has had its turns; empty leaves it open.
	end     string
	replies interner
}

// interner keeps one copy of equal replies: the engine stub has few, and ten thousand open sessions quote them.
type interner struct {
	mutex sync.Mutex
	known map[string][]byte
}

// internLimit bounds the copies kept to share, for engines whose replies all differ.
const internLimit = 4096

func (in *interner) of(reply []byte) []byte {
	in.mutex.Lock()
	defer in.mutex.Unlock()
	if kept, ok := in.known[string(reply)]; ok {
		return kept
	}
	kept := append([]byte(nil), reply...)
	if in.known == nil {
		in.known = make(map[string][]byte)
	}
	if len(in.known) < internLimit {
		in.known[string(kept)] = kept
	}
	return kept
}

// agent has one connection for each address that its sessions live at.
type agent struct {
	play        *play
	connections map[string]*connection
	scratch     [][]byte
}

func (p *play) agent() *agent {
	return &agent{play: p, connections: make(map[string]*connection)}
}

func (a *agent) close() {
	for _, c := range a.connections {
		c.close()
	}
}

// open starts a session of so many turns; a refusal is tallied.
func (a *agent) open(turns int) (*session, error) {
	p := a.play
	number := p.opened.Add(1)
	// A session's turns use the connection that opened it, where the address is the same: an SDK's client would too.
	began := time.Now()
	door, err := p.target.open(a.connectionTo(p.target.address(number)), number, p.workload.tag)
	if err != nil {
		p.tally.failed("open_", err)
		return nil, err
	}
	p.tally.opened(time.Since(began))
	return p.workload.session(number, door, turns), nil
}

// turn sends the session's next turn. began is when it should have been sent: latency counts from there.
func (a *agent) turn(s *session, began time.Time) error {
	p := a.play
	c := a.connectionTo(s.door.address)
	head, body := s.request(p.workload, a.scratch)
	a.scratch = body
	sent := time.Now()
	status, answer, message, err := p.ask(c, head, body)
	if err == nil && status/100 != 2 {
		err = statusError(status)
	}
	if err != nil {
		p.tally.failed("", err)
		return err
	}
	p.tally.answered(answeredTurn{
		first: s.answered == 0, began: began, sent: sent, ended: time.Now(),
		requestBytes: s.length + len(p.workload.closing), replyBytes: answer,
	})
	s.extend(p.workload, p.replies.of(message))
	return nil
}

// ask gives the answer's length and the message in it.
func (p *play) ask(c *connection, head []byte, body [][]byte) (status, length int, message []byte, err error) {
	if p.workload.streams {
		var s streamed
		c.events = func(data []byte) { s.read(data, p.tally) }
		defer func() { c.events = nil }()
		status, answer, err := c.post(head, body)
		if err == nil && status/100 == 2 {
			message, err = s.message()
		}
		return status, len(answer), message, err
	}
	status, answer, err := c.post(head, body)
	if err == nil && status/100 == 2 {
		message, err = assistantMessage(answer)
	}
	return status, len(answer), message, err
}

// finish ends a session that has had its turns, where sessions are to end.
func (a *agent) finish(s *session) error {
	p := a.play
	if p.end == "" {
		return nil
	}
	if err := p.target.end(a.connectionTo(p.target.address(s.number)), s.door, s.number, p.end); err != nil {
		p.tally.failed("end_", err)
		return err
	}
	return nil
}

func (a *agent) connectionTo(address string) *connection {
	c := a.connections[address]
	if c == nil {
		c = &connection{address: address, timeout: a.play.target.timeout}
		a.connections[address] = c
	}
	return c
}

func kindOf(err error) string {
	var status statusError
	if errors.As(err, &status) {
		return status.Error()
	}
	if errors.Is(err, errNoMessage) {
		return "no_message"
	}
	return errorKind(err)
}
