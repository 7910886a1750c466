// Command loadgen plays agents against an OpenAI-style chat endpoint.
//
// A session is a conversation of some turns; each turn sends all that was said before, the reply just got
// included, and one new user message. Sessions are opened with POST /sessions where the target is a proxy, and
// exist only in the bodies where it is a bare gateway or an engine.
//
// Three shapes of load:
//
//	closed loop   -in-flight N            N agents, each sends its next turn when it has the last reply
//	open loop     -rate R                 turns start at Poisson times, whatever the target does
//	fixed         -sessions N -in-flight M  N sessions run to -turns and stay open; then commands on stdin
//
// It prints one JSON object a line: "window_start" and "window_end" at the moments between which its figures
// are counted (so that whoever reads them can sample CPU at the same moments), and "done" with the result.
package main
