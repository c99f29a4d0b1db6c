package api

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// sink is a publisher that keeps what it is given.
type sink struct {
	// refuse, if not nil, is asked before a message is taken.
	refuse func(m publish.Message) *api.Error
	block  chan struct{} // if not nil, each call takes one before it returns
	fail   *api.Error    // of all that comes
	before func(ms []publish.Message) *api.Error
	forget bool // only the number is kept

	// mu guards what follows.
	mu       sync.Mutex
	messages []publish.Message
	options  []publish.Options
	calls    int
}

func (s *sink) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	rs, err := s.PublishBatch(ctx, topic, []publish.Message{m}, o)
	if err != nil {
		return api.Published{}, err
	}
	if rs[0].Error != nil {
		return api.Published{}, rs[0].Error
	}
	return api.Published{Topic: topic, Offset: rs[0].Offset}, nil
}

func (s *sink) PublishBatch(ctx context.Context, _ string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	if s.before != nil {
		if e := s.before(ms); e != nil {
			return nil, e
		}
	}
	if s.forget {
		if o.Entered != nil {
			o.Entered()
		}
		return make([]api.BatchResult, len(ms)), nil
	}
	s.mu.Lock()
	s.calls++
	s.options = append(s.options, o)
	results := make([]api.BatchResult, len(ms))
	for i, m := range ms {
		if s.refuse != nil {
			if e := s.refuse(m); e != nil {
				results[i].Error = e
				if e.Code == api.CodeRateLimited {
					s.mu.Unlock()
					return nil, e
				}
				continue
			}
		}
		kept := publish.Message{Key: bytes.Clone(m.Key), Value: bytes.Clone(m.Value), Timestamp: m.Timestamp}
		for _, h := range m.Headers {
			kept.Headers = append(kept.Headers, kgo.RecordHeader{Key: strings.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		if m.Partition != nil {
			p := *m.Partition
			kept.Partition = &p
		}
		results[i].Offset = int64(len(s.messages))
		s.messages = append(s.messages, kept)
	}
	s.mu.Unlock()
	if o.Entered != nil {
		o.Entered()
	}
	if s.block != nil {
		select {
		case <-s.block:
		case <-ctx.Done():
		}
	}
	return results, nil
}

func (s *sink) taken() []publish.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]publish.Message(nil), s.messages...)
}

// serving is a server on a free port.
type serving struct {
	*Server
	t    *testing.T
	sink *sink
	addr string
}

func serve(t *testing.T, change func(*Options)) *serving {
	t.Helper()
	s := &serving{t: t, sink: &sink{}}
	opt := Options{Publisher: s.sink, Listen: "127.0.0.1:0", MaxRequestSize: 1 << 20, MaxBatch: 100_000, MaxTimeout: time.Minute}
	if change != nil {
		change(&opt)
	}
	var err error
	if s.Server, err = New(opt); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	s.Serve(ln)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	return s
}

// post sends a request and returns its status and body.
func (s *serving) post(path string, body io.Reader, headers ...string) (int, string) {
	s.t.Helper()
	status, text, _ := s.postFor(path, body, headers...)
	return status, text
}

func (s *serving) postFor(path string, body io.Reader, headers ...string) (int, string, http.Header) {
	s.t.Helper()
	r, err := http.NewRequest("POST", "http://"+s.addr+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return a.StatusCode, string(text), a.Header
}

// dial opens a connection of its own, to write HTTP by hand.
func (s *serving) dial() (net.Conn, *bufio.Reader) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c, bufio.NewReader(c)
}

// answered reads one answer of a connection.
func answered(t *testing.T, r *bufio.Reader) (int, string) {
	t.Helper()
	a, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(body)
}

func values(ms []publish.Message) string {
	var s []string
	for _, m := range ms {
		s = append(s, string(m.Value))
	}
	return fmt.Sprint(s)
}
