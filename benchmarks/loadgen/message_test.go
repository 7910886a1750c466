package main

import "testing"

func TestAssistantMessageComesBackAsItWas(t *testing.T) {
	message := `{"role": "assistant", "content": "a \"brace\" } and a backslash \\", "tool_calls": [{"n": [1, 2]}]}`
	for name, body := range map[string]string{
		"compact":        `{"id":"x","choices":[{"index":0,"message":` + message + `,"finish_reason":"stop"}]}`,
		"spaced":         "{ \"choices\" : [ {\n\"message\" : " + message + " } ] }",
		"logprobs first": `{"choices":[{"logprobs":{"content":[{"token":"]","logprob":-0.5}]},"message":` + message + `}]}`,
	} {
		got, err := assistantMessage([]byte(body))
		if err != nil || string(got) != message {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestAReplyWithoutMessageIsRefused(t *testing.T) {
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"choices":[]}`, `{"choices":[{}]}`, `{"choices":[{"message":null}]}`,
		`{"error":{"message":"no"}}`, `{"choices":[{"message":{"content":"cut`,
	} {
		if got, err := assistantMessage([]byte(body)); err == nil {
			t.Errorf("%q gave %q", body, got)
		}
	}
}
