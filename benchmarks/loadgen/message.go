package main

import (
	"bytes"
	"errors"
	"fmt"
)

var errNoMessage = errors.New("the reply has no choices[0].message")

// assistantMessage is choices[0].message of a chat completion, as the bytes it came in: an agent sends back what it
// got. Only as much of the body is read as lies before the message's end.
func assistantMessage(body []byte) ([]byte, error) {
	choices, err := member(body, "choices")
	if err != nil {
		return nil, err
	}
	i := skipSpace(choices, 0)
	if i >= len(choices) || choices[i] != '[' {
		return nil, errNoMessage
	}
	message, err := member(choices[i+1:], "message")
	if err != nil {
		return nil, err
	}
	if message[0] != '{' {
		return nil, errNoMessage
	}
	end, err := skipValue(message, 0)
	if err != nil {
		return nil, err
	}
	return message[:end], nil
}

// member is the rest of the text from the start of the named member's value in the object that the text starts with.
func member(text []byte, name string) ([]byte, error) {
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return nil, errNoMessage
	}
	i++
	for {
		i = skipSpace(text, i)
		if i >= len(text) || text[i] != '"' {
			return nil, errNoMessage
		}
		end, err := skipString(text, i)
		if err != nil {
			return nil, err
		}
		key := text[i+1 : end-1]
		i = skipSpace(text, end)
		if i >= len(text) || text[i] != ':' {
			return nil, fmt.Errorf("no colon at byte %d of the reply", i)
		}
		i = skipSpace(text, i+1)
		if i >= len(text) {
			return nil, errNoMessage
		}
		if string(key) == name {
			return text[i:], nil
		}
		if i, err = skipValue(text, i); err != nil {
			return nil, err
		}
		i = skipSpace(text, i)
		if i >= len(text) || text[i] != ',' {
			return nil, errNoMessage
		}
		i++
	}
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
		i++
	}
	return i
}

func skipString(text []byte, i int) (int, error) {
	i++
	for {
		quote := bytes.IndexByte(text[i:], '"')
		if quote < 0 {
			return 0, errors.New("a string of the reply has no end")
		}
		end := i + quote
		backslashes := 0
		for end-1-backslashes >= i && text[end-1-backslashes] == '\\' {
			backslashes++
		}
		i = end + 1
		if backslashes%2 == 0 {
			return i, nil
		}
	}
}

// skipValue counts brackets instead of parsing: the reply's text is not what is measured.
func skipValue(text []byte, i int) (int, error) {
	depth := 0
	for i < len(text) {
		switch text[i] {
		case '"':
			end, err := skipString(text, i)
			if err != nil {
				return 0, err
			}
			i = end
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth == 0 {
				return i, nil
			}
			depth--
			i++
		case ',':
			if depth == 0 {
				return i, nil
			}
			i++
			continue
		default:
			i++
			continue
		}
		if depth == 0 {
			return i, nil
		}
	}
	return 0, errors.New("the reply ends within a value")
}
