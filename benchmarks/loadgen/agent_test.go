package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// house is a proxy as far as agents see it: it opens sessions, and says something new at each turn.
type house struct {
	mutex  sync.Mutex
	url    string
	keys   map[string]string
	bodies map[string][]string
	refuse bool
}

func newHouse(t *testing.T) *house {
	h := &house{keys: map[string]string{}, bodies: map[string][]string{}}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	body, _ := io.ReadAll(r.Body)
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.URL.Path == "/sessions" && key == "admin" {
		id := fmt.Sprint("s", len(h.keys))
		h.keys[id] = "key-" + id
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"session_id": id, "api_key": h.keys[id], "base_url": h.url + "/sessions/" + id + "/v1",
		})
		return
	}
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/sessions/"), "/v1/chat/completions")
	if h.refuse || h.keys[id] == "" || h.keys[id] != key {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	h.bodies[id] = append(h.bodies[id], string(body))
	_, _ = fmt.Fprintf(w, `{"choices":[{"index":0,"message":%s,"finish_reason":"stop"}]}`, said(id, len(h.bodies[id])))
}

func said(id string, turn int) string {
	return fmt.Sprintf(`{"role": "assistant", "content": "%s says \"%d\"", "tool_calls": null}`, id, turn)
}

func (h *house) play(t *testing.T, turns int) *play {
	text, err := newProse(strings.Repeat("some words, \"quoted\" and\nbroken ", 500))
	if err != nil {
		t.Fatal(err)
	}
	return &play{
		target: &target{
			addresses: []string{strings.TrimPrefix(h.url, "http://")}, sessions: true, adminKey: "admin", timeout: 5 * time.Second,
		},
		workload: newWorkload(text, "bench", 1000, 500, 100, turns, 64, 9),
		tally:    newTally(),
	}
}

type chatBody struct {
	Model    string            `json:"model"`
	Messages []json.RawMessage `json:"messages"`
}

// judge holds a session's requests against what it was told: each is the one before, the reply and one more message.
func judge(t *testing.T, id string, bodies []string) {
	var before []json.RawMessage
	for turn, body := range bodies {
		var got chatBody
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if got.Model != "bench" || len(got.Messages) != 2*(turn+1) {
			t.Fatalf("turn %d of %s has model %q and %d messages", turn+1, id, got.Model, len(got.Messages))
		}
		if turn > 0 {
			same := func(a, b json.RawMessage) bool { return string(a) == string(b) }
			if !slices.EqualFunc(got.Messages[:len(before)], before, same) {
				t.Fatalf("turn %d of %s does not extend the last", turn+1, id)
			}
			if reply := string(got.Messages[len(before)]); reply != said(id, turn) {
				t.Fatalf("turn %d of %s quotes %s", turn+1, id, reply)
			}
		}
		before = got.Messages
	}
}

func TestEachTurnExtendsTheReplyJustGot(t *testing.T) {
	h := newHouse(t)
	p := h.play(t, 6)
	sessions := openAll(p, 7, 3)
	if len(sessions) != 7 {
		t.Fatalf("%d sessions", len(sessions))
	}
	sessions = onceMore(p, sessions, 3)
	for id, bodies := range h.bodies {
		if len(bodies) != 7 {
			t.Errorf("%s had %d turns", id, len(bodies))
		}
		judge(t, id, bodies)
	}
	total := p.tally.totalReport()
	if len(sessions) != 7 || total.Sessions != 7 || total.Answers != 49 || total.FirstTurns != 7 || len(total.Errors) != 0 {
		t.Errorf("%d sessions, %+v", len(sessions), total)
	}
}

func TestLoopsCountWhatWasAnswered(t *testing.T) {
	for name, loop := range map[string]func(context.Context, *play){
		"closed": func(ctx context.Context, p *play) { closedLoop(ctx, p, 5, 20*time.Millisecond) },
		"open":   func(ctx context.Context, p *play) { openLoop(ctx, p, 500) },
	} {
		h := newHouse(t)
		p := h.play(t, 3)
		p.tally.inWindow.Store(true)
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
		loop(ctx, p)
		stop()
		turns, most := 0, 0
		for id, bodies := range h.bodies {
			judge(t, id, bodies)
			turns += len(bodies)
			most = max(most, len(bodies))
		}
		total := p.tally.totalReport()
		if int(total.Answers) != turns || turns < 20 || most != 3 || len(total.Errors) != 0 {
			t.Errorf("%s: %d turns came, the longest session has %d; counted %+v", name, turns, most, total)
		}
		window := p.tally.windowReport(2, 0)
		if window.Answers != total.Answers || window.Latency.P50 <= 0 {
			t.Errorf("%s: %+v", name, window)
		}
	}
}

func TestRefusalsAreCountedByKind(t *testing.T) {
	h := newHouse(t)
	p := h.play(t, 3)
	h.refuse = true
	if left := openAll(p, 4, 2); len(left) != 0 {
		t.Errorf("%d sessions went through", len(left))
	}
	p.target.adminKey = "wrong"
	openAll(p, 1, 1)
	total := p.tally.totalReport()
	if total.Errors["status_429"] != 4 || total.Errors["open_status_429"] != 1 || total.Answers != 0 {
		t.Errorf("%+v", total)
	}
}
