package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func thousandTokens() candidates {
	c := candidate{}
	for i := range 1000 {
		c.IDs = append(c.IDs, 1000+i%900)
		c.Tokens = append(c.Tokens, "abc")
	}
	c.IDs[999] = 7
	c.Text = strings.Repeat("abc", 999)
	return candidates{Model: "tiny", Stop: 7, Variants: []candidate{c}}
}

func started(t *testing.T) (*engine, string) {
	e := newEngine(thousandTokens(), "/models/tiny", 32768, 30_000, 0.1, 1)
	server := httptest.NewServer(e.routes())
	t.Cleanup(server.Close)
	return e, server.URL
}

func post(t *testing.T, url, body string) (int, []byte) {
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, text
}

func TestGenerateAnswersAsTheEngineDoes(t *testing.T) {
	_, url := started(t)
	status, text := post(t, url+"/generate",
		`{"input_ids": [5, 6, 7], "rid": "abc", "sampling_params": {"stream_interval": 1}, "stream": false}`)
	var got struct {
		Text string `json:"text"`
		IDs  []int  `json:"output_ids"`
		Meta struct {
			ID         string         `json:"id"`
			Finish     map[string]any `json:"finish_reason"`
			Prompt     int            `json:"prompt_tokens"`
			Completion int            `json:"completion_tokens"`
			Version    string         `json:"weight_version"`
			Logprobs   [][3]any       `json:"output_token_logprobs"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(text, &got); err != nil || status != 200 {
		t.Fatalf("%d %v %s", status, err, text)
	}
	meta := got.Meta
	if meta.ID != "abc" || meta.Prompt != 3 || meta.Completion != 1000 || meta.Version != "1" ||
		meta.Finish["type"] != "stop" || meta.Finish["matched"] != 7.0 {
		t.Errorf("%+v", meta)
	}
	for i, entry := range meta.Logprobs {
		if entry[1] != float64(got.IDs[i]) || entry[0].(float64) >= 0 || entry[2] != nil {
			t.Fatalf("log-probability %d: %v for id %d", i, entry, got.IDs[i])
		}
	}
	if len(text) < 26_000 || len(text) > 34_000 {
		t.Errorf("%d bytes", len(text))
	}
}

func TestChatAnswersAboutAsMuch(t *testing.T) {
	_, url := started(t)
	status, text := post(t, url+"/v1/chat/completions", `{"model": "tiny", "messages": []}`)
	if !json.Valid(text) || status != 200 || len(text) < 29_000 || len(text) > 31_000 {
		t.Errorf("%d, %d bytes", status, len(text))
	}
}

func events(t *testing.T, text []byte) []map[string]any {
	lines := strings.Split(strings.TrimSuffix(string(text), "\n\n"), "\n\n")
	if last := lines[len(lines)-1]; last != "data: [DONE]" {
		t.Fatalf("ends with %q", last)
	}
	found := make([]map[string]any, len(lines)-1)
	for i, line := range lines[:len(lines)-1] {
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &found[i]); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	return found
}

func TestStreamsHaveAChunkForEachToken(t *testing.T) {
	_, url := started(t)
	_, text := post(t, url+"/generate", `{"input_ids": [5, 6], "rid": "abc", "stream": true}`)
	made := events(t, text)
	for i, event := range made {
		meta := event["meta_info"].(map[string]any)
		pair := meta["output_token_logprobs"].([]any)[0].([]any)
		if meta["completion_tokens"] != float64(i+1) || meta["id"] != "abc" || meta["prompt_tokens"] != 2.0 ||
			pair[1] != event["output_ids"].([]any)[0] || (meta["finish_reason"] == nil) != (i < 999) {
			t.Fatalf("%d: %v", i, event)
		}
	}
	_, text = post(t, url+"/v1/chat/completions", `{"messages": [], "stream": true}`)
	said := ""
	for _, event := range events(t, text) {
		choice := event["choices"].([]any)[0].(map[string]any)
		content, _ := choice["delta"].(map[string]any)["content"].(string)
		said += content
	}
	if said != strings.Repeat("abc", 999) || len(made) != 1000 {
		t.Errorf("%d events, %d bytes", len(made), len(said))
	}
}

func TestAVariantThatIsSetIsSaidAlone(t *testing.T) {
	c := thousandTokens()
	c.Variants = append(c.Variants, candidate{IDs: []int{5, 7}, Tokens: []string{"x", "end"}, Text: "x"})
	e := newEngine(c, "/models/tiny", 32768, 30_000, 0.1, 1)
	server := httptest.NewServer(e.routes())
	t.Cleanup(server.Close)
	for variant, tokens := range map[string]int{"0": 1000, "1": 2} {
		put(t, server.URL+"/stub?variant="+variant, http.StatusOK)
		for range 5 {
			_, text := post(t, server.URL+"/generate", `{"input_ids": [5], "stream": true}`)
			if made := len(events(t, text)); made != tokens {
				t.Fatalf("variant %s: %d events", variant, made)
			}
		}
	}
	put(t, server.URL+"/stub?variant=2", http.StatusBadRequest)
}

func put(t *testing.T, url string, expected int) {
	request, _ := http.NewRequest(http.MethodPut, url, nil)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != expected {
		t.Fatalf("%s: %d", url, answer.StatusCode)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	e, url := started(t)
	for _, body := range []string{``, `{}`, `{"input_ids": []}`, `{"input_ids": "x"}`} {
		if status, text := post(t, url+"/generate", body); status != 400 {
			t.Errorf("%q: %d %s", body, status, text)
		}
	}
	if e.generated.Load() != 0 || e.inFlight.Load() != 0 {
		t.Errorf("%d generated, %d in flight", e.generated.Load(), e.inFlight.Load())
	}
}

func TestLatencyVariesByTheJitterOnly(t *testing.T) {
	e, _ := started(t)
	e.latency.Store(int64(20 * time.Millisecond))
	request := httptest.NewRequest("POST", "/generate", nil)
	for range 10 {
		began := time.Now()
		e.begin(request)
		if took := time.Since(began); took < 18*time.Millisecond {
			t.Errorf("took %v", took)
		}
	}
}

func TestRepliesAreCutAtTheirPlaces(t *testing.T) {
	c := thousandTokens()
	r := generateReply(c.Variants[0], c.Stop, "1", rand.New(rand.NewPCG(1, 1)))
	if text := string(r.fill(nil, "the-id", "42", "0.5")); strings.Contains(text, "@") || !strings.Contains(text, `"the-id"`) {
		t.Error(text[:200])
	}
}
