package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func postText(c *connection, path, text string) (int, string, error) {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n", path, len(text))
	status, body, err := c.post([]byte(head), [][]byte{[]byte(text[:2]), []byte(text[2:])})
	return status, string(body), err
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/chunked":
		for _, b := range body {
			_, _ = w.Write([]byte{b})
			w.(http.Flusher).Flush()
		}
	case "/close":
		w.Header().Set("Connection", "close")
		_, _ = w.Write(body)
	case "/refuse":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/slow":
		time.Sleep(300 * time.Millisecond)
	default:
		_, _ = w.Write(body)
	}
}

func TestOneConnectionCarriesEveryKindOfAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	c := &connection{address: strings.TrimPrefix(server.URL, "http://"), timeout: 5 * time.Second}
	defer c.close()
	long := strings.Repeat("0123456789", 5000)
	for _, try := range []struct{ path, text string }{
		{"/", "hello"}, {"/chunked", "hello"}, {"/close", "hello"}, {"/", long}, {"/chunked", "short"},
	} {
		status, body, err := postText(c, try.path, try.text)
		if err != nil || status != 200 || body != try.text {
			t.Fatalf("%s: %d, %d bytes, %v", try.path, status, len(body), err)
		}
	}
	if status, _, err := postText(c, "/refuse", "hello"); err != nil || status != 503 {
		t.Fatalf("%d, %v", status, err)
	}
}

func TestErrorsAreNamed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	address := strings.TrimPrefix(server.URL, "http://")
	c := &connection{address: address, timeout: 100 * time.Millisecond}
	if _, _, err := postText(c, "/slow", "hello"); errorKind(err) != "timeout" {
		t.Errorf("%v is called %s", err, errorKind(err))
	}
	server.Close()
	if _, _, err := postText(c, "/", "hello"); errorKind(err) != "connect" {
		t.Errorf("%v is called %s", err, errorKind(err))
	}
}
