// Command stub answers as an SGLang engine does, for next to no CPU: what is measured stands before it.
//
// Replies are made at start from a file of candidates (ids and their text: see benchmarks/rigs/texts.py); a request
// changes only their numbers. /generate and /v1/chat/completions answer at once or after -latency, ±-jitter.
//
// GET /stub tells what it has answered, PUT /stub?latency=0.5s changes the latency, for loads to come;
// token_latency is the time between the chunks of a stream.
package main
