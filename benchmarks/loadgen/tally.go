package main

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// tally counts the whole run, and apart what ends within the window.
type tally struct {
	inWindow atomic.Bool
	sessions atomic.Int64
	// turns and firsts count the 2xx answers of the whole run: what the target must have committed.
	turns  atomic.Int64
	firsts atomic.Int64
	// requestBytes are those of the bodies that got a 2xx answer, of the whole run.
	requestBytes atomic.Int64

	window struct {
		answers      atomic.Int64
		requestBytes atomic.Int64
		replyBytes   atomic.Int64
		chunks       atomic.Int64
		latency      histogram
		lag          histogram
		opening      histogram
	}

	mutex        sync.Mutex
	errors       map[string]int64
	windowErrors map[string]int64
}

func newTally() *tally {
	return &tally{errors: map[string]int64{}, windowErrors: map[string]int64{}}
}

type answeredTurn struct {
	first                    bool
	began, sent, ended       time.Time
	requestBytes, replyBytes int
}

func (t *tally) answered(turn answeredTurn) {
	t.turns.Add(1)
	t.requestBytes.Add(int64(turn.requestBytes))
	if turn.first {
		t.firsts.Add(1)
	}
	if !t.inWindow.Load() {
		return
	}
	t.window.answers.Add(1)
	t.window.requestBytes.Add(int64(turn.requestBytes))
	t.window.replyBytes.Add(int64(turn.replyBytes))
	t.window.latency.record(turn.ended.Sub(turn.began))
	t.window.lag.record(turn.sent.Sub(turn.began))
}

// chunk counts an event of a stream, when it comes.
func (t *tally) chunk() {
	if t.inWindow.Load() {
		t.window.chunks.Add(1)
	}
}

// opened counts a session that is ready for its first turn.
func (t *tally) opened(took time.Duration) {
	t.sessions.Add(1)
	if t.inWindow.Load() {
		t.window.opening.record(took)
	}
}

func (t *tally) failed(prefix string, err error) {
	kind := prefix + strings.ReplaceAll(kindOf(err), " ", "_")
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.errors[kind]++
	if t.inWindow.Load() {
		t.windowErrors[kind]++
	}
}

// windowReport is what ended between the two marks. Rates are a second, sizes bytes a request, latencies ms.
type windowReport struct {
	Seconds      float64          `json:"seconds"`
	Answers      int64            `json:"answers"`
	Rate         float64          `json:"rate"`
	Errors       map[string]int64 `json:"errors"`
	Latency      latencyReport    `json:"latency_ms"`
	Lag          latencyReport    `json:"lag_ms"`
	Opened       int64            `json:"sessions_opened"`
	Opening      latencyReport    `json:"opening_ms"`
	RequestBytes float64          `json:"request_bytes"`
	ReplyBytes   float64          `json:"reply_bytes"`
	Chunks       int64            `json:"chunks"`
	CPUSeconds   float64          `json:"generator_cpu_seconds"`
}

// totalReport is the whole run, warm-up and drain included.
type totalReport struct {
	Sessions   int64            `json:"sessions"`
	Answers    int64            `json:"answers"`
	FirstTurns int64            `json:"first_turns"`
	Errors     map[string]int64 `json:"errors"`
}

func (t *tally) windowReport(seconds, cpu float64) windowReport {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	answers := t.window.answers.Load()
	divisor := float64(max(answers, 1))
	return windowReport{
		Seconds: seconds, Answers: answers, Rate: float64(answers) / seconds, Errors: t.windowErrors,
		Latency: t.window.latency.report(), Lag: t.window.lag.report(),
		Opened: t.window.opening.count.Load(), Opening: t.window.opening.report(), CPUSeconds: cpu,
		RequestBytes: float64(t.window.requestBytes.Load()) / divisor,
		ReplyBytes:   float64(t.window.replyBytes.Load()) / divisor,
		Chunks:       t.window.chunks.Load(),
	}
}

func (t *tally) totalReport() totalReport {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return totalReport{
		Sessions: t.sessions.Load(), Answers: t.turns.Load(), FirstTurns: t.firsts.Load(), Errors: t.errors,
	}
}

func processCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
