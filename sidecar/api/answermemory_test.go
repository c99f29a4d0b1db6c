package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// largePeeks is a topic whose every look has so many bytes.
type brokersOf = Topics

type largePeeks struct {
	brokersOf
	bytes int
}

func (p largePeeks) Peek(context.Context, string, int32, int64, int, int) ([]*kgo.Record, int64, int64, error) {
	return []*kgo.Record{{Topic: "t", Value: []byte(strings.Repeat("x", p.bytes))}}, 1, 1, nil
}

func (m *answerMemory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// 200 looks of 8 MiB that nobody read took 1.8 GB beside every budget.
func TestAnswersThatNobodyReads(t *testing.T) {
	const size, most = 8 << 20, 48 << 20
	s := serve(t, func(o *Options) { o.MaxBodyMemory, o.Topics = 2*most, largePeeks{bytes: size} })
	const ask = "GET /topics/t/partitions/0/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"
	var unread []interface{ Close() error }
	for range 20 {
		c, _ := s.dial()
		fmt.Fprint(c, ask)
		unread = append(unread, c)
	}
	stop := time.Now().Add(20 * time.Second)
	peek := func() (int, string) {
		resp, err := http.Get("http://" + s.addr + "/topics/t/partitions/0/messages")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var first [300]byte
		n, _ := resp.Body.Read(first[:])
		return resp.StatusCode, string(first[:n])
	}
	for {
		if held := s.answers.held(); held > most+size {
			t.Fatalf("%d bytes of answers are held, at most %d are allowed", held, most)
		}
		status, text := peek()
		if status == http.StatusTooManyRequests {
			if !strings.Contains(text, string(api.CodeRateLimited)) || !strings.Contains(text, "max_request_memory") {
				t.Fatal(text)
			}
			break
		}
		if time.Now().After(stop) {
			t.Fatalf("all were answered: %d, %d bytes are held", status, s.answers.held())
		}
	}
	// Publishing has room of its own, and health is told.
	if status, text := s.post("/topics/t", strings.NewReader(strings.Repeat("x", 512<<10))); status != 200 {
		t.Errorf("a message: %d %s", status, text)
	}
	resp, err := http.Get("http://" + s.addr + "/healthz")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("health: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	for _, c := range unread {
		c.Close()
	}
	waitFor(t, func() bool { status, _ := peek(); return status == 200 })
	waitFor(t, func() bool { return s.answers.held() == 0 })
}
