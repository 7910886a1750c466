package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// refusedPause is how long an agent waits that got no session or lost one: a target in trouble is not to be hammered.
const refusedPause = 100 * time.Millisecond

// closedLoop keeps so many agents busy until the context ends; turns in flight are then finished.
// Agents start over the stagger, and their first sessions have 1 to all turns, so that first turns (which a proxy must
// render whole) don't come in waves.
func closedLoop(ctx context.Context, p *play, agents int, stagger time.Duration) {
	var running sync.WaitGroup
	for i := range agents {
		running.Go(func() {
			if !sleep(ctx, stagger*time.Duration(i)/time.Duration(agents)) {
				return
			}
			a := p.agent()
			defer a.close()
			turns := 1 + i%p.workload.turns
			for ctx.Err() == nil {
				a.oneSession(ctx, turns)
				turns = p.workload.turns
			}
		})
	}
	running.Wait()
}

func (a *agent) oneSession(ctx context.Context, turns int) {
	s, err := a.open(turns)
	for err == nil && s.left > 0 && ctx.Err() == nil {
		err = a.turn(s, time.Now())
	}
	if err == nil && s.left == 0 {
		err = a.finish(s)
	}
	if err != nil {
		sleep(ctx, refusedPause)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// openSessions is how many sessions the open loop keeps ready, so that opening one is no part of a turn's latency.
const openSessions = 64

// openLoop starts turns at Poisson times until the context ends: each is the next turn of the session that waits
// longest, or the first of a new one.
func openLoop(ctx context.Context, p *play, rate float64) {
	fresh := make(chan *session, openSessions)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() { keepOpening(ctx, p, fresh) })
	}
	pool := &pool{play: p}
	random := rand.New(rand.NewPCG(p.workload.seed, 1<<63))
	next := time.Now()
	for {
		next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		if !sleep(ctx, time.Until(next)) {
			break
		}
		began := next
		running.Go(func() { pool.arrival(ctx, fresh, began) })
	}
	running.Wait()
	pool.close()
}

func keepOpening(ctx context.Context, p *play, fresh chan<- *session) {
	a := p.agent()
	defer a.close()
	for ctx.Err() == nil {
		s, err := a.open(p.workload.turns)
		if err != nil {
			sleep(ctx, refusedPause)
			continue
		}
		select {
		case fresh <- s:
		case <-ctx.Done():
		}
	}
}

// pool holds the sessions that wait for their next turn, oldest first, and the agents (connections) that are free,
// newest first, so that few connections stay in use.
type pool struct {
	play    *play
	mutex   sync.Mutex
	waiting []*session
	free    []*agent
}

func (l *pool) arrival(ctx context.Context, fresh <-chan *session, began time.Time) {
	s := l.session()
	if s == nil {
		select {
		case s = <-fresh:
		case <-ctx.Done():
			return
		}
	}
	a := l.agent()
	err := a.turn(s, began)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.free = append(l.free, a)
	if err == nil && s.left > 0 {
		l.waiting = append(l.waiting, s)
	}
}

func (l *pool) session() *session {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	s := l.waiting[0]
	l.waiting = l.waiting[1:]
	return s
}

func (l *pool) agent() *agent {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if last := len(l.free) - 1; last >= 0 {
		a := l.free[last]
		l.free = l.free[:last]
		return a
	}
	return l.play.agent()
}

func (l *pool) close() {
	for _, a := range l.free {
		a.close()
	}
}

// fixed runs work over all items with so many agents, and gives the items that went through.
func fixed[T, R any](p *play, items []T, agents int, work func(*agent, T) (R, error)) []R {
	var running sync.WaitGroup
	var mutex sync.Mutex
	done := make([]R, 0, len(items))
	queue := make(chan T)
	for range agents {
		running.Go(func() {
			a := p.agent()
			defer a.close()
			for item := range queue {
				result, err := work(a, item)
				if err != nil {
					continue
				}
				mutex.Lock()
				done = append(done, result)
				mutex.Unlock()
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	running.Wait()
	return done
}

// openAll opens so many sessions and runs each through its turns, one agent a session at a time.
func openAll(p *play, sessions, agents int) []*session {
	return fixed(p, make([]struct{}, sessions), agents, func(a *agent, _ struct{}) (*session, error) {
		s, err := a.open(p.workload.turns)
		for err == nil && s.left > 0 {
			err = a.turn(s, time.Now())
		}
		if err == nil {
			err = a.finish(s)
		}
		return s, err
	})
}

// onceMore makes one more turn of each session, all still open.
func onceMore(p *play, sessions []*session, agents int) []*session {
	return fixed(p, sessions, agents, func(a *agent, s *session) (*session, error) {
		return s, a.turn(s, time.Now())
	})
}
