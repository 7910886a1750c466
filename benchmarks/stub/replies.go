package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
)

// candidates is the file of what the engine may say. Each of the ids' lists ends with stop.
type candidates struct {
	Model    string      `json:"model"`
	Stop     int         `json:"stop"`
	Variants []candidate `json:"variants"`
}

type candidate struct {
	IDs  []int  `json:"ids"`
	Text string `json:"text"`
	// Tokens are the ids' own texts, for the chat route's log-probabilities.
	Tokens []string `json:"tokens"`
}

// reply is a body cut where a request's own values go.
type reply struct {
	pieces     [][]byte
	completion int
}

// The places of a reply that a request fills in; the quotes around the first are part of the template.
const (
	idPlace     = "@id@"
	promptPlace = "@prompt@"
	totalPlace  = "@total@"
	timePlace   = "@time@"
)

func readCandidates(path string) (c candidates, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, err
	}
	if len(c.Variants) == 0 {
		return c, fmt.Errorf("%s holds no variants", path)
	}
	return c, nil
}

// digits is how finely log-probabilities are written: with six decimals a token of a reply to /generate costs some 30
// bytes (id twice, log-probability, text), so 1,000 tokens make 30 KB.
const digits = 6

func logProbability(random *rand.Rand) string {
	return strconv.FormatFloat(-math.Abs(random.NormFloat64())*0.7-1e-6, 'f', digits, 64)
}

// generateReply has the fields of SGLang 0.5's answer to /generate with return_logprob.
func generateReply(c candidate, stop int, version string, random *rand.Rand) reply {
	var out bytes.Buffer
	text, _ := json.Marshal(c.Text)
	fmt.Fprintf(&out, `{"text":%s,"output_ids":[`, text)
	for i, id := range c.IDs {
		fmt.Fprintf(&out, "%s%d", separator(i), id)
	}
	fmt.Fprintf(&out, `],"meta_info":{"id":"%s","finish_reason":{"type":"stop","matched":%d},"prompt_tokens":%s,`+
		`"weight_version":%q,"total_retractions":0,"input_token_logprobs":[],"output_token_logprobs":[`,
		idPlace, stop, promptPlace, version)
	for i, id := range c.IDs {
		fmt.Fprintf(&out, "%s[%s,%d,null]", separator(i), logProbability(random), id)
	}
	fmt.Fprintf(&out, `],"completion_tokens":%d,"cached_tokens":0,"dp_rank":null,"e2e_latency":%s}}`,
		len(c.IDs), timePlace)
	return cut(out.Bytes(), len(c.IDs), idPlace, promptPlace, timePlace)
}

// chatReply has the fields of SGLang's chat completion with logprobs, for as many tokens as make it size bytes long:
// the gateway alone carries as much as it does before a proxy.
func chatReply(c candidate, model string, stop, size int, random *rand.Rand) reply {
	var out bytes.Buffer
	text, _ := json.Marshal(c.Text)
	fmt.Fprintf(&out, `{"id":"%s","object":"chat.completion","created":1760000000,"model":%q,"choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%s,"reasoning_content":null,"tool_calls":null},"logprobs":{"content":[`,
		idPlace, model, text)
	for i, token := range c.Tokens {
		if out.Len() >= size-300 {
			break
		}
		text, _ := json.Marshal(token)
		fmt.Fprintf(&out, `%s{"token":%s,"bytes":[],"logprob":%s,"top_logprobs":[]}`,
			separator(i), text, logProbability(random))
	}
	fmt.Fprintf(&out, `]},"finish_reason":"stop","matched_stop":%d}],"usage":{"prompt_tokens":%s,"total_tokens":%s,`+
		`"completion_tokens":%d,"prompt_tokens_details":null},"metadata":{"weight_version":"1"}}`,
		stop, promptPlace, totalPlace, len(c.IDs))
	return cut(out.Bytes(), len(c.IDs), idPlace, promptPlace, totalPlace)
}

func separator(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// cut splits a template at its places, which must follow in the order given.
func cut(template []byte, completion int, places ...string) reply {
	r := reply{completion: completion}
	for _, place := range places {
		before, after, found := bytes.Cut(template, []byte(place))
		if !found {
			panic("a reply's template lacks " + place)
		}
		r.pieces = append(r.pieces, before)
		template = after
	}
	r.pieces = append(r.pieces, template)
	return r
}

// fill appends the reply with the values in its places.
func (r reply) fill(out []byte, values ...string) []byte {
	for i, piece := range r.pieces {
		out = append(out, piece...)
		if i < len(values) {
			out = append(out, values[i]...)
		}
	}
	return out
}
