package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// sidecar is as much of one as the example uses: one partition, and messages
// that are handed out once.
type sidecar struct {
	mu       sync.Mutex // guards what follows
	config   api.GroupConfig
	messages []api.Message
	acked    []string
	delays   []string
}

func (s *sidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body) // what is missing is seen below
	var receipts api.Receipts
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/pull"):
		answer = api.Pulled{Messages: s.messages, Reason: new(api.ReasonAtEnd)}
		s.messages = []api.Message{}
	case strings.HasSuffix(r.URL.Path, "/ack"):
		_ = json.Unmarshal(body, &receipts) // likewise
		s.acked = append(s.acked, receipts.Receipts...)
		answer = api.ReceiptResponse{OK: 1}
	case strings.HasSuffix(r.URL.Path, "/nack"):
		_ = json.Unmarshal(body, &receipts) // likewise
		s.delays = append(s.delays, receipts.Delay)
		answer = api.ReceiptResponse{OK: 1}
	case strings.HasPrefix(r.URL.Path, "/groups/"):
		if r.Method == http.MethodPut {
			_ = json.Unmarshal(body, &s.config) // likewise
		}
		answer = api.Group{Config: s.config}
	default:
		n := len(s.messages)
		s.messages = append(s.messages, api.Message{ID: fmt.Sprint("orders/0/", n), Topic: topic, Offset: int64(n), Attempt: 1,
			Receipt: fmt.Sprint("r", n), Key: new(r.URL.Query().Get("key")), Value: new(string(body))})
		answer = api.Published{Topic: topic, Offset: int64(n)}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client notices
}

func TestCustomersAreServedAtOnce(t *testing.T) {
	s := &sidecar{messages: []api.Message{}}
	server := httptest.NewServer(s)
	defer server.Close()
	t.Setenv(sdk.EnvAddress, server.URL)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex // guards served
	served := map[string][]string{}
	var waiting sync.WaitGroup // for one order of each customer
	waiting.Add(5)
	// All but the second order of the first customer, whose first one fails.
	err := run(ctx, 10, func(_ context.Context, o Order) error {
		mu.Lock()
		first := len(served[o.Customer]) == 0
		served[o.Customer] = append(served[o.Customer], o.Dish)
		n := 0
		for _, dishes := range served {
			n += len(dishes)
		}
		mu.Unlock()
		if first {
			waiting.Done()
			waiting.Wait() // nobody gets on before all are served at once
		}
		if n == 9 {
			cancel()
		}
		if o.Customer == "customer-0" {
			return errSoldOut
		}
		return nil
	})
	slices.Sort(s.acked)
	if err != nil || s.config.Order != "key" || !slices.Equal(s.acked, []string{"r1", "r2", "r3", "r4", "r6", "r7", "r8", "r9"}) {
		t.Errorf("%v, config %+v, acknowledged %v", err, s.config, s.acked)
	}
	if !slices.Contains(s.delays, "1m0s") {
		t.Errorf("gave back for %v", s.delays)
	}
}
