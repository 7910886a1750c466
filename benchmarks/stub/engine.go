package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type engine struct {
	model   string
	path    string
	context int
	jitter  float64
	latency atomic.Int64
	// tokenLatency is the time between two chunks of a stream.
	tokenLatency atomic.Int64
	// variant is the candidate that is said; below 0: any.
	variant  atomic.Int64
	generate []reply
	chat     []reply
	// The same as streams: of each candidate its chunks.
	generateChunks [][]reply
	chatChunks     [][]reply
	buffers        sync.Pool

	generated atomic.Int64
	chatted   atomic.Int64
	chunks    atomic.Int64
	left      atomic.Int64
	inFlight  atomic.Int64
	most      atomic.Int64

	// Every so many generations one reply carries so many bytes of expert routing; 0: none does.
	payload      atomic.Int64
	payloadEvery atomic.Int64
}

func newEngine(c candidates, path string, context, chatBytes int, jitter float64, seed uint64) *engine {
	e := &engine{model: c.Model, path: path, context: context, jitter: jitter}
	e.buffers.New = func() any { return new([]byte) }
	e.variant.Store(-1)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, variant := range c.Variants {
		e.generate = append(e.generate, generateReply(variant, c.Stop, "1", random))
		e.chat = append(e.chat, chatReply(variant, c.Model, c.Stop, chatBytes, random))
		e.generateChunks = append(e.generateChunks, generateChunks(variant, c.Stop, "1", random))
		e.chatChunks = append(e.chatChunks, chatChunks(variant, c.Model))
	}
	return e
}

// pick is the index of a reply.
func (e *engine) pick() int {
	if variant := int(e.variant.Load()); variant >= 0 {
		return variant
	}
	return rand.IntN(len(e.generate))
}

// begin counts a call in and waits as long as a generation takes; false: its caller has left.
func (e *engine) begin(r *http.Request) (seconds string, stays bool) {
	now := e.inFlight.Add(1)
	for most := e.most.Load(); now > most && !e.most.CompareAndSwap(most, now); most = e.most.Load() {
	}
	latency := time.Duration(e.latency.Load())
	if latency == 0 {
		return "0.0", true
	}
	latency += time.Duration(float64(latency) * e.jitter * (2*rand.Float64() - 1))
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
		return strconv.FormatFloat(latency.Seconds(), 'f', 4, 64), true
	case <-r.Context().Done():
		e.left.Add(1)
		return "", false
	}
}

func (e *engine) answerGenerate(w http.ResponseWriter, r *http.Request) {
	buffer := e.buffers.Get().(*[]byte)
	defer e.buffers.Put(buffer)
	body, err := readBody(r, *buffer)
	*buffer = body
	if err != nil {
		refuse(w, err.Error())
		return
	}
	request, err := readGenerate(body)
	if err != nil {
		refuse(w, err.Error())
		return
	}
	defer e.inFlight.Add(-1)
	seconds, stays := e.begin(r)
	if !stays {
		return
	}
	if request.rid == "" {
		request.rid = "stub-" + strconv.FormatInt(e.generated.Load(), 10)
	}
	if request.streamed {
		e.generated.Add(1)
		e.stream(w, r, e.generateChunks[e.pick()], request.rid, strconv.Itoa(request.prompt))
		return
	}
	reply := e.generate[e.pick()]
	*buffer = reply.fill((*buffer)[:0], request.rid, strconv.Itoa(request.prompt), seconds)
	n := e.generated.Add(1)
	if size, every := e.payload.Load(), e.payloadEvery.Load(); size > 0 && every > 0 && n%every == 0 {
		sendWithPayload(w, *buffer, int(size))
		return
	}
	send(w, *buffer)
}

func (e *engine) answerChat(w http.ResponseWriter, r *http.Request) {
	buffer := e.buffers.Get().(*[]byte)
	defer e.buffers.Put(buffer)
	body, err := readBody(r, *buffer)
	*buffer = body
	if err != nil {
		refuse(w, err.Error())
		return
	}
	defer e.inFlight.Add(-1)
	if _, stays := e.begin(r); !stays {
		return
	}
	// The gateway looks at none of these figures; four bytes a token is what English takes.
	prompt := len(body) / 4
	id := "chatcmpl-stub-" + strconv.FormatInt(e.chatted.Add(1), 10)
	if stream, found := valueOf(body, "stream"); found && bytes.HasPrefix(stream, []byte("true")) {
		e.stream(w, r, e.chatChunks[e.pick()], id)
		return
	}
	reply := e.chat[e.pick()]
	*buffer = reply.fill((*buffer)[:0], id, strconv.Itoa(prompt), strconv.Itoa(prompt+reply.completion))
	send(w, *buffer)
}

func readBody(r *http.Request, buffer []byte) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(r.Body)
	}
	length := int(r.ContentLength)
	if cap(buffer) < length {
		buffer = make([]byte, length, length+length/2)
	}
	buffer = buffer[:length]
	_, err := io.ReadFull(r.Body, buffer)
	return buffer, err
}

func send(w http.ResponseWriter, body []byte) {
	header := w.Header()
	header["Content-Type"] = []string{"application/json"}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	// A caller that has left is counted by its own side.
	_, _ = w.Write(body)
}

// sendWithPayload adds a routed_experts to the reply's meta_info, as SGLang does with return_routed_experts: base64, here
// of one repeated block. It is never whole in memory.
func sendWithPayload(w http.ResponseWriter, body []byte, size int) {
	end := []byte("}}")
	start := append(bytes.TrimSuffix(body, end), `,"routed_experts":"`...)
	block := bytes.Repeat([]byte("AAECAwQF"), 8192)
	header := w.Header()
	header["Content-Type"] = []string{"application/json"}
	header["Content-Length"] = []string{strconv.Itoa(len(start) + size + 1 + len(end))}
	_, err := w.Write(start)
	for left := size; left > 0 && err == nil; left -= len(block) {
		_, err = w.Write(block[:min(left, len(block))])
	}
	if err == nil {
		_, _ = w.Write(append([]byte{'"'}, end...))
	}
}

func refuse(w http.ResponseWriter, why string) {
	answer(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": why, "type": "BadRequest"}})
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
