package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// sidecar is as much of one as the example uses: it keeps one message.
type sidecar struct {
	mu    sync.Mutex
	value *string // guarded by mu: nil when none is there
	acked []string
}

func (s *sidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer any = api.Published{Topic: topic}
	var body api.Receipts
	switch {
	case strings.HasSuffix(r.URL.Path, "/pull"):
		pulled := api.Pulled{Messages: []api.Message{}, Reason: new(api.ReasonAtEnd)}
		if s.value != nil {
			pulled = api.Pulled{Messages: []api.Message{{ID: "hello/0/0", Receipt: "r", Value: s.value}}}
			s.value = nil
		}
		answer = pulled
	case strings.HasSuffix(r.URL.Path, "/ack"):
		_ = json.NewDecoder(r.Body).Decode(&body) // what is missing is seen below
		s.acked = append(s.acked, body.Receipts...)
		answer = api.ReceiptResponse{OK: 1}
	default:
		text := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(text) // what is missing is seen below
		s.value = new(string(text))
	}
	_ = json.NewEncoder(w).Encode(answer) // the client notices
}

func TestGreetingArrivesAndIsAcknowledged(t *testing.T) {
	s := &sidecar{}
	server := httptest.NewServer(s)
	defer server.Close()
	t.Setenv(sdk.EnvAddress, server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var heard []string
	err := run(ctx, "you", func(text string) {
		heard = append(heard, text)
		cancel()
	})
	if err != nil || !slices.Equal(heard, []string{"hello you"}) || !slices.Equal(s.acked, []string{"r"}) {
		t.Errorf("heard %q, acknowledged %q, %v", heard, s.acked, err)
	}
}
