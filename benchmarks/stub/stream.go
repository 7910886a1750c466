package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// generateChunks are the events of SGLang's streamed /generate with return_logprob, as --incremental-streaming-output
// makes them: each has its own token only.
func generateChunks(c candidate, stop int, version string, random *rand.Rand) []reply {
	chunks := make([]reply, len(c.IDs))
	for i, id := range c.IDs {
		text, finish := "", "null"
		if i < len(c.IDs)-1 {
			text = c.Tokens[i]
		} else {
			finish = fmt.Sprintf(`{"type":"stop","matched":%d}`, stop)
		}
		quoted, _ := json.Marshal(text)
		chunks[i] = cut(fmt.Appendf(nil, `data: {"text":%s,"output_ids":[%d],"meta_info":{"id":"%s","finish_reason":%s,`+
			`"prompt_tokens":%s,"weight_version":%q,"total_retractions":0,"input_token_logprobs":[],`+
			`"output_token_logprobs":[[%s,%d,null]],"completion_tokens":%d,"cached_tokens":0,"dp_rank":null}}`+"\n\n",
			quoted, id, idPlace, finish, promptPlace, version, logProbability(random), id, i+1),
			len(c.IDs), idPlace, promptPlace)
	}
	return chunks
}

// chatChunks are those of the chat route: a chunk for each token, the last with the finish reason.
func chatChunks(c candidate, model string) []reply {
	chunks := make([]reply, len(c.IDs))
	for i := range c.IDs {
		delta, finish := []byte("{}"), "null"
		if i < len(c.IDs)-1 {
			delta, _ = json.Marshal(map[string]any{"role": nil, "content": c.Tokens[i], "tool_calls": nil})
		} else {
			finish = `"stop"`
		}
		chunks[i] = cut(fmt.Appendf(nil, `data: {"id":"%s","object":"chat.completion.chunk","created":1760000000,`+
			`"model":%q,"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s,"matched_stop":null}],`+
			`"usage":null}`+"\n\n", idPlace, model, delta, finish), len(c.IDs), idPlace)
	}
	return chunks
}

// stream sends the chunks, tokenLatency apart, each by itself as an engine does.
func (e *engine) stream(w http.ResponseWriter, r *http.Request, chunks []reply, values ...string) {
	w.Header()["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	pause := time.Duration(e.tokenLatency.Load())
	due := time.Now()
	var buffer []byte
	for _, chunk := range chunks {
		buffer = chunk.fill(buffer[:0], values...)
		if !e.sendChunk(w, buffer) {
			return
		}
		if pause > 0 {
			due = due.Add(pause)
			select {
			case <-time.After(time.Until(due)):
			case <-r.Context().Done():
				e.left.Add(1)
				return
			}
		}
	}
	e.sendChunk(w, []byte("data: [DONE]\n\n"))
}

func (e *engine) sendChunk(w http.ResponseWriter, chunk []byte) bool {
	if _, err := w.Write(chunk); err != nil {
		e.left.Add(1)
		return false
	}
	w.(http.Flusher).Flush()
	e.chunks.Add(1)
	return true
}
