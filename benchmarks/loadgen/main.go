package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

type options struct {
	urls, kind, keyFile, model, textFile    string
	end                                     string
	stream                                  bool
	inFlight, sessions                      int
	rate                                    float64
	turns, shared, task, message, maxTokens int
	warmup, duration, stagger, timeout      time.Duration
	seed                                    uint64
}

func parseOptions() (o options) {
	flag.StringVar(&o.urls, "url", "", "where the target listens, http://host:port; of several, joined by commas, each "+
		"session takes the next")
	flag.StringVar(&o.kind, "target", "proxy", "proxy: sessions are opened first; gateway: they exist in the bodies only")
	flag.StringVar(&o.keyFile, "admin-key-file", "", "file with the key that may open sessions (proxy), or that every call has (gateway)")
	flag.StringVar(&o.model, "model", "bench", "the model that requests name")
	flag.StringVar(&o.textFile, "text", "", "file of prose from which messages are cut")
	flag.IntVar(&o.inFlight, "in-flight", 0, "closed loop: so many agents, each with one call in flight")
	flag.Float64Var(&o.rate, "rate", 0, "open loop: so many turns a second, at Poisson times")
	flag.IntVar(&o.sessions, "sessions", 0, "fixed: so many sessions, by -in-flight agents, then commands on stdin: "+
		"'more N' for N more turns of each, 'quit'")
	flag.StringVar(&o.end, "end", "", "how a session ends after its turns: delete, reward (and close), mixed; else it stays open")
	flag.IntVar(&o.turns, "turns", 6, "turns a session")
	flag.IntVar(&o.shared, "shared-bytes", 8_000, "system message, the same in all sessions")
	flag.IntVar(&o.task, "task-bytes", 3_000, "first user message, each session's own")
	flag.IntVar(&o.message, "message-bytes", 1_000, "every later user message")
	flag.BoolVar(&o.stream, "stream", false, "ask for streams, and count their chunks")
	flag.IntVar(&o.maxTokens, "max-tokens", 2048, "max_tokens of every request")
	flag.DurationVar(&o.warmup, "warmup", 10*time.Second, "time before the window")
	flag.DurationVar(&o.duration, "duration", 30*time.Second, "the window: what is counted")
	flag.DurationVar(&o.stagger, "stagger", 500*time.Millisecond, "closed loop: agents start over this time")
	flag.DurationVar(&o.timeout, "timeout", 120*time.Second, "a request without an answer for so long is an error")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of texts and times")
	flag.Parse()
	return o
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("loadgen: ")
	o := parseOptions()
	p, err := o.play()
	if err != nil {
		log.Fatal(err)
	}
	switch {
	case o.sessions > 0 && o.inFlight > 0:
		err = runFixed(p, o)
	case o.rate > 0 && o.inFlight == 0:
		runWindow(p, o, func(ctx context.Context) { openLoop(ctx, p, o.rate) })
	case o.inFlight > 0 && o.rate == 0:
		runWindow(p, o, func(ctx context.Context) { closedLoop(ctx, p, o.inFlight, o.stagger) })
	default:
		log.Fatal("give -in-flight N, -rate R, or -sessions N with -in-flight M (see -help)")
	}
	if err != nil {
		log.Fatal(err)
	}
}

func (o options) play() (*play, error) {
	var addresses []string
	for _, each := range strings.Split(o.urls, ",") {
		at, err := url.Parse(each)
		if err != nil || at.Scheme != "http" || at.Host == "" {
			return nil, fmt.Errorf("-url must be http://host:port, not %q", each)
		}
		addresses = append(addresses, at.Host)
	}
	text, err := os.ReadFile(o.textFile)
	if err != nil {
		return nil, fmt.Errorf("-text: %w", err)
	}
	prose, err := newProse(string(text))
	if err != nil {
		return nil, err
	}
	t := &target{addresses: addresses, timeout: o.timeout}
	switch o.kind {
	case "gateway":
	case "proxy":
		t.sessions = true
	default:
		return nil, fmt.Errorf("-target is proxy or gateway, not %q", o.kind)
	}
	if o.keyFile != "" || t.sessions {
		key, err := os.ReadFile(o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("-admin-key-file: %w", err)
		}
		t.adminKey = strings.TrimSpace(string(key))
	}
	switch o.end {
	case "", endDelete, endReward, endMixed:
	default:
		return nil, fmt.Errorf("-end is delete, reward or mixed, not %q", o.end)
	}
	if o.end != "" && !t.sessions {
		return nil, fmt.Errorf("-end needs -target=proxy: others have no sessions")
	}
	w := newWorkload(prose, o.model, o.shared, o.task, o.message, o.turns, o.maxTokens, o.seed)
	if o.stream {
		w.closing = bytes.Replace(w.closing, []byte(`"max_tokens"`), []byte(`"stream":true,"max_tokens"`), 1)
		w.streams = true
	}
	return &play{target: t, workload: w, tally: newTally(), end: o.end}, nil
}

type event struct {
	Event    string `json:"event"`
	Sessions int    `json:"sessions,omitempty"`
	// Answers and RequestBytes are those of the run so far.
	Answers      int64         `json:"answers,omitempty"`
	RequestBytes int64         `json:"request_bytes,omitempty"`
	Window       *windowReport `json:"window,omitempty"`
	Total        *totalReport  `json:"total,omitempty"`
}

func say(e event) {
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		log.Fatal(err)
	}
}

// runWindow runs the load through warm-up and window, then lets what is in flight end.
func runWindow(p *play, o options, load func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		load(ctx)
		close(ended)
	}()
	time.Sleep(o.warmup)
	cpu, began := processCPU(), time.Now()
	p.tally.inWindow.Store(true)
	say(event{Event: "window_start"})
	time.Sleep(o.duration)
	p.tally.inWindow.Store(false)
	seconds, cpu := time.Since(began).Seconds(), processCPU()-cpu
	say(event{Event: "window_end"})
	stop()
	<-ended
	window, total := p.tally.windowReport(seconds, cpu), p.tally.totalReport()
	say(event{Event: "done", Window: &window, Total: &total})
}

func (p *play) progress(name string, sessions []*session) event {
	return event{
		Event: name, Sessions: len(sessions),
		Answers: p.tally.turns.Load(), RequestBytes: p.tally.requestBytes.Load(),
	}
}

func runFixed(p *play, o options) error {
	sessions := openAll(p, o.sessions, o.inFlight)
	say(p.progress("opened", sessions))
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		verb, count, _ := strings.Cut(commands.Text(), " ")
		switch verb {
		case "more":
			turns, err := strconv.Atoi(count)
			if err != nil {
				return err
			}
			for range turns {
				sessions = onceMore(p, sessions, o.inFlight)
			}
			say(p.progress("more", sessions))
		case "quit":
			total := p.tally.totalReport()
			say(event{Event: "done", Total: &total})
			return nil
		default:
			return fmt.Errorf("no command %q: 'more N' or 'quit'", verb)
		}
	}
	return commands.Err()
}
