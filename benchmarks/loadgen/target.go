package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// target is what the agents talk to.
type target struct {
	// addresses are where sessions go, each to the next.
	addresses []string
	// adminKey opens sessions, or goes with every call where there are none; empty where the target has no keys.
	adminKey string
	sessions bool
	timeout  time.Duration
}

// door is where one session's turns go: its address and the head of each request up to the Content-Length's value.
type door struct {
	address string
	head    string
	// id names the session at a proxy; empty where there is none.
	id string
}

// address is where a session goes that has this number.
func (t *target) address(number int64) string {
	return t.addresses[number%int64(len(t.addresses))]
}

type statusError int

func (e statusError) Error() string { return "status " + strconv.Itoa(int(e)) }

// open gives a session's door where the connection leads; with a proxy that costs a request.
func (t *target) open(c *connection, number int64, tag string) (door, error) {
	if !t.sessions {
		header := fmt.Sprintf("X-SMG-Routing-Key: %s-%d\r\n", tag, number)
		if t.adminKey != "" {
			header += "Authorization: Bearer " + t.adminKey + "\r\n"
		}
		head := requestHead("/v1/chat/completions", c.address, header)
		return door{address: c.address, head: head}, nil
	}
	body := fmt.Appendf(nil, `{"task_id":"%s-%d"}`, tag, number)
	head := requestHead("/sessions", c.address, "Authorization: Bearer "+t.adminKey+"\r\n")
	status, answer, err := c.post(fmt.Appendf(nil, "%s%d\r\n\r\n", head, len(body)), [][]byte{body})
	if err != nil {
		return door{}, err
	}
	if status/100 != 2 {
		return door{}, statusError(status)
	}
	return sessionDoor(answer)
}

func sessionDoor(answer []byte) (door, error) {
	var session struct {
		ID      string `json:"session_id"`
		APIKey  string `json:"api_key"`
		BaseURL string `json:"base_url"`
	}
	if err := json.Unmarshal(answer, &session); err != nil {
		return door{}, err
	}
	base, err := url.Parse(session.BaseURL)
	if err != nil {
		return door{}, err
	}
	if base.Host == "" || session.APIKey == "" {
		return door{}, fmt.Errorf("a session without base_url or api_key: %s", answer)
	}
	head := requestHead(base.Path+"/chat/completions", base.Host, "Authorization: Bearer "+session.APIKey+"\r\n")
	return door{address: base.Host, head: head, id: session.ID}, nil
}

// endings are the ways in which a session can end; mixed takes them in turn.
const (
	endDelete = "delete"
	endReward = "reward"
	endMixed  = "mixed"
)

// end deletes a session, or rewards and closes it, for a trainer to take.
func (t *target) end(c *connection, at door, number int64, way string) error {
	if way == endMixed {
		way = endDelete
		if number%2 == 0 {
			way = endReward
		}
	}
	if way == endDelete {
		return t.tell(c, "DELETE", "/sessions/"+at.id, "")
	}
	if err := t.tell(c, "POST", "/sessions/"+at.id+"/reward", `{"reward":1.0}`); err != nil {
		return err
	}
	return t.tell(c, "POST", "/sessions/"+at.id+"/close", "")
}

func (t *target) tell(c *connection, method, path, body string) error {
	head := method + requestHead(path, c.address, "Authorization: Bearer "+t.adminKey+"\r\n")[len("POST"):]
	status, _, err := c.post(fmt.Appendf(nil, "%s%d\r\n\r\n", head, len(body)), [][]byte{[]byte(body)})
	if err == nil && status/100 != 2 {
		err = statusError(status)
	}
	return err
}

func requestHead(path, host, header string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Type: application/json\r\n" +
		"User-Agent: rolloutfleet-loadgen\r\nAccept: application/json\r\n" + header + "Content-Length: "
}
