package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// consume --until-end once waited for ever where a partition stood still at
// records that nobody can read: no wait brings these to an end.
func TestConsumeUntilEndEndsAtWhatNobodyCanRead(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"messages":[],"reason":"corrupt_record"}`)
	}))
	defer s.Close()
	c, err := sdk.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	err = consume(t.Context(), c, "orders", consumeOptions{group: "g", untilEnd: true}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "orders cannot be reached") {
		t.Errorf("got %v, want an error that says why the end cannot be reached", err)
	}
}

// restarts is a sidecar that is stopped and started anew: between its lives nobody
// listens, and the next life takes no receipt of the one before and delivers what
// was not acknowledged again.
type restarts struct {
	mu    sync.Mutex // guards what follows
	life  int
	low   int // acknowledged below
	total int
	out   int             // handed out in this life below that
	die   func(acked int) // called for an ack, before it counts
}

func (s *restarts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/pull") {
		var p api.Pulled
		if s.out < s.total {
			value := fmt.Sprint(s.out)
			p.Messages = []api.Message{{ID: "t/0/" + value, Receipt: fmt.Sprintf("%d-%d", s.life, s.out), Value: &value}}
			s.out++
		} else {
			p.Reason = new(api.ReasonAtEnd)
		}
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	if s.die != nil {
		s.die(s.low)
	}
	var body api.Receipts
	_ = json.NewDecoder(r.Body).Decode(&body)
	answer := api.ReceiptResponse{}
	for _, receipt := range body.Receipts {
		var life, n int
		_, _ = fmt.Sscanf(receipt, "%d-%d", &life, &n)
		result := api.ReceiptResult{Receipt: receipt}
		if life != s.life {
			result.Error = api.NewError(api.CodeLeaseLost, "of another life")
			answer.Failed++
		} else {
			s.low = n + 1
			answer.OK++
		}
		answer.Results = append(answer.Results, result)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// consume ended with the first request that its sidecar did not answer, a planned
// restart included. It goes on, says so, and prints nothing twice that it had
// printed and could not acknowledge.
func TestConsumeGoesOnOverARestart(t *testing.T) {
	s := &restarts{total: 3}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	serve := func(l net.Listener) *http.Server {
		server := &http.Server{Handler: s}
		go func() { _ = server.Serve(l) }()
		return server
	}
	server := serve(listener)
	again := make(chan *http.Server, 1)
	s.die = func(acked int) {
		if acked != 1 || s.life > 0 {
			return
		}
		s.life, s.out = 1, acked
		go func() {
			_ = server.Close()
			time.Sleep(2500 * time.Millisecond) // longer than the client repeats by itself
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Error(err)
				again <- nil
				return
			}
			again <- serve(l)
		}()
		panic(http.ErrAbortHandler)
	}
	c, err := sdk.New(address, sdk.WithRetry(sdk.Retry{Attempts: 4}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var out, notes strings.Builder
	if err := consume(t.Context(), c, "t", consumeOptions{group: "g", untilEnd: true}, &out, &notes); err != nil {
		t.Fatal(err)
	}
	if second := <-again; second != nil {
		defer func() { _ = second.Close() }()
	}
	if out.String() != "0\n1\n2\n" {
		t.Errorf("printed %q", out.String())
	}
	for _, want := range []string{"not acknowledged: 1 message printed;", "nothing comes, trying again: no sidecar answers at", "the sidecar answers again"} {
		if strings.Count(notes.String(), want) != 1 {
			t.Errorf("%q is not told once: %s", want, notes.String())
		}
	}
}

// Where no sidecar ever answered its address may be wrong: that ends it.
func TestConsumeNeedsASidecarToBeginWith(t *testing.T) {
	r := command(t.Context(), "", "consume", "t", "--sidecar", "127.0.0.1:1")
	if r.code != exitFailed || !strings.Contains(r.err, `"sidestream dev" runs one`) {
		t.Errorf("%+v", r)
	}
}
