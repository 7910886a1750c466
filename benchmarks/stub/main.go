package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("stub: ")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen at; port 0 takes a free one")
	file := flag.String("replies", "", "file of candidate replies (benchmarks/rigs/texts.py makes it)")
	latency := flag.Duration("latency", 0, "how long a generation takes")
	jitter := flag.Float64("jitter", 0.1, "the share by which the latency varies, evenly, either way")
	path := flag.String("model-path", "", "the model directory that the info routes tell; the gateway loads its tokenizer "+
		"(and would ask a hub for one that is not there)")
	context := flag.Int("context-length", 131072, "the context length that the info routes tell")
	chatBytes := flag.Int("chat-bytes", 30_000, "about how long a chat completion is")
	seed := flag.Uint64("seed", 1, "seed of the log-probabilities")
	flag.Parse()

	candidates, err := readCandidates(*file)
	if err != nil {
		log.Fatal("-replies: ", err)
	}
	e := newEngine(candidates, *path, *context, *chatBytes, *jitter, *seed)
	e.latency.Store(int64(*latency))
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, e.routes()))
}

func (e *engine) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", e.answerGenerate)
	mux.HandleFunc("POST /v1/chat/completions", e.answerChat)
	for _, path := range []string{"/health", "/health_generate", "/liveness", "/readiness"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	}
	for _, path := range []string{"/abort_request", "/pause_generation", "/continue_generation", "/flush_cache"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, map[string]any{"status": "ok"})
		})
	}
	for _, path := range []string{"/server_info", "/get_server_info", "/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, e.tellInfo)
	}
	mux.HandleFunc("GET /v1/models", e.tellModels)
	mux.HandleFunc("GET /v1/loads", e.tellLoads)
	mux.HandleFunc("GET /stub", e.tellCounts)
	mux.HandleFunc("PUT /stub", e.set)
	return mux
}

func (e *engine) tellInfo(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"model_path": e.path, "served_model_name": e.model, "tokenizer_path": e.path, "is_generation": true,
		"context_length": e.context, "max_model_len": e.context, "max_total_num_tokens": 1 << 24,
		"max_running_requests": 4096, "weight_version": "1", "version": "stub", "status": "ready",
		"disaggregation_mode": "null", "dp_size": 1, "tp_size": 1, "internal_states": []any{},
	})
}

func (e *engine) tellModels(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": e.model, "object": "model", "created": 1760000000, "owned_by": "stub", "root": e.model,
		"max_model_len": e.context,
	}}})
}

func (e *engine) tellLoads(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"loads": []any{map[string]any{
		"dp_rank": 0, "num_running_reqs": e.inFlight.Load(), "num_waiting_reqs": 0,
	}}})
}

func (e *engine) tellCounts(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"generated": e.generated.Load(), "chatted": e.chatted.Load(), "chunks": e.chunks.Load(), "callers_left": e.left.Load(),
		"in_flight": e.inFlight.Load(), "most_in_flight": e.most.Load(),
		"latency": time.Duration(e.latency.Load()).String(),
	})
}

// set changes what the query names: latency, token_latency, variant, and payload with every.
func (e *engine) set(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	if asked.Has("latency") {
		latency, err := time.ParseDuration(asked.Get("latency"))
		if err != nil || latency < 0 {
			refuse(w, "latency is a duration, such as 500ms")
			return
		}
		e.latency.Store(int64(latency))
		e.most.Store(e.inFlight.Load())
	}
	if asked.Has("token_latency") {
		latency, err := time.ParseDuration(asked.Get("token_latency"))
		if err != nil || latency < 0 {
			refuse(w, "token_latency is a duration, such as 10ms")
			return
		}
		e.tokenLatency.Store(int64(latency))
	}
	if asked.Has("variant") {
		variant, err := strconv.Atoi(asked.Get("variant"))
		if err != nil || variant >= len(e.generate) {
			refuse(w, "variant is a candidate's index, or -1")
			return
		}
		e.variant.Store(int64(variant))
	}
	if asked.Has("payload") {
		size, err := strconv.ParseInt(asked.Get("payload"), 10, 64)
		every, err2 := strconv.ParseInt(asked.Get("every"), 10, 64)
		if err != nil || err2 != nil || size < 0 || every < 1 {
			refuse(w, "payload is a number of bytes, and every says how many generations have one of them")
			return
		}
		e.payload.Store(size)
		e.payloadEvery.Store(every)
	}
	e.tellCounts(w, r)
}
