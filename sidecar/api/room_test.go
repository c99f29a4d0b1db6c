package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

const smallRequest = "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"

// turnedAway reads the answer to a connection for which there is no room.
func turnedAway(t *testing.T, name string, r *bufio.Reader) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	var told api.ErrorBody
	if err := json.Unmarshal(body, &told); err != nil || told.Error == nil || told.Error.Code != api.CodeRateLimited ||
		!told.Error.Retryable || !strings.Contains(told.Error.Message, "max_connections") {
		t.Errorf("%s: %s (%v)", name, body, err)
	}
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" || !resp.Close || resp.Header.Get("Content-Type") != api.ContentTypeJSON {
		t.Errorf("%s: %d %v, close %v", name, resp.StatusCode, resp.Header, resp.Close)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("%s: after the answer: %v", name, err)
	}
}

// full is a server with as many connections as it has room for, and the last of
// them.
func full(t *testing.T, connections int) (s *serving, last net.Conn, answers *bufio.Reader) {
	t.Helper()
	s = serve(t, func(o *Options) { o.MaxConnections = connections })
	s.givesWayAfter(time.Hour) // never
	for range connections {
		last, answers = s.dial()
		fmt.Fprint(last, smallRequest)
		if status, text := answered(t, answers); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	return s, last, answers
}

// givesWayAfter sets for how long connections stay that are not used.
func (s *serving) givesWayAfter(least time.Duration) {
	s.room.idle.mu.Lock()
	defer s.room.idle.mu.Unlock()
	s.room.idle.least = least
}

// One client with 10,500 connections that it does not use locked out everybody
// else: those that are idle give way, the oldest first, and no other does.
func TestIdleConnectionsGiveWay(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, func(o *Options) {
		o.MaxConnections = 4
		o.Ready = func() ([]string, bool) { close(entered); <-leave; return nil, true }
	})
	const least = 50 * time.Millisecond
	s.givesWayAfter(least)
	ask := func(c net.Conn, r *bufio.Reader) {
		t.Helper()
		fmt.Fprint(c, smallRequest)
		if status, text := answered(t, r); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	busy, busyAnswers := s.dial() // the oldest of all, with a request under way
	fmt.Fprint(busy, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	_, untouched := s.dial() // nothing was ever asked on it
	used, usedAnswers := s.dial()
	half, halfAnswers := s.dial()
	ask(used, usedAnswers)
	time.Sleep(least)
	fmt.Fprint(half, "POST /topics/t HT") // its head never ends
	waitFor(t, func() bool { s.room.idle.mu.Lock(); defer s.room.idle.mu.Unlock(); return s.room.idle.list.Len() == 3 })
	time.Sleep(2 * least)
	for i, gone := range []*bufio.Reader{untouched, usedAnswers, halfAnswers} {
		c, r := s.dial()
		ask(c, r)
		if _, err := gone.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d is not closed: %v", i, err)
		}
	}
	// Those three are used, and one is in use: nobody gives way.
	s.givesWayAfter(time.Hour)
	_, refused := s.dial()
	turnedAway(t, "one more", refused)
	close(leave)
	if status, text := answered(t, busyAnswers); status != 200 {
		t.Fatalf("what was under way: %d %s", status, text)
	}
}

// A connection beyond the limit is told so as every other error is, whatever its
// client sends and when; the others go on, and one that ends makes room.
func TestMaxConnections(t *testing.T) {
	s, c, r := full(t, 2)
	for name, sent := range map[string]string{
		"nothing": "", "a request": smallRequest, "the beginning of one": "POST /top",
		"a large one": "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1_000_000),
	} {
		c, r := s.dial()
		if _, err := io.WriteString(c, sent); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		turnedAway(t, name, r)
		c.Close()
	}
	fmt.Fprint(c, smallRequest)
	if status, text := answered(t, r); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if n := len(s.sink.taken()); n != 3 {
		t.Errorf("%d messages, want those of the connections that were served", n)
	}
	c.Close()
	waitFor(t, func() bool {
		c, r := s.dial()
		defer c.Close()
		fmt.Fprint(c, smallRequest)
		resp, err := http.ReadResponse(r, nil)
		return err == nil && resp.StatusCode == http.StatusOK
	})
}

// However many connections are refused, they take few goroutines and hold up
// nobody, and each has its answer.
func TestFloodOfConnections(t *testing.T) {
	s, c, r := full(t, 1)
	before := runtime.NumGoroutine()
	answers := make([]*bufio.Reader, 4*turnedAtOnce)
	for i := range answers {
		_, answers[i] = s.dial()
	}
	fmt.Fprint(c, smallRequest)
	if status, text := answered(t, r); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if n := runtime.NumGoroutine() - before; n > turnedAtOnce+10 {
		t.Errorf("%d goroutines for %d connections that were refused", n, len(answers))
	}
	for i, r := range answers {
		turnedAway(t, fmt.Sprint("connection ", i), r)
	}
}

// The listeners have one limit together.
func TestMaxConnectionsOfAllListeners(t *testing.T) {
	s, _, _ := full(t, 2)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(ln)
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, smallRequest)
	turnedAway(t, "the other listener", bufio.NewReader(c))
}

// A stop waits for nobody who was refused.
func TestStopWithRefusedConnections(t *testing.T) {
	s, _, _ := full(t, 1)
	for range 3 {
		s.dial()
	}
}
