package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// streamLine is any line of a stream.
type streamLine struct {
	api.Message
	Status   string      `json:"status"`
	Reason   *api.Reason `json:"reason"`
	InFlight int         `json:"in_flight"`
	Error    *api.Error  `json:"error"`
}

// reading is a stream that a test reads.
type reading struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Reader
	stop  context.CancelFunc
}

func (r *rig) stream(path string, headers ...string) *reading {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", r.base+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		body, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("%s: %d %s", path, resp.StatusCode, body)
	}
	return &reading{r.t, resp, bufio.NewReader(resp.Body), cancel}
}

// next is the next line.
func (s *reading) next() streamLine {
	s.t.Helper()
	text, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Fatalf("the stream ends: %v", err)
	}
	var l streamLine
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		s.t.Fatalf("%q: %v", text, err)
	}
	return l
}

// message is the next line that is one.
func (s *reading) message() api.Message {
	s.t.Helper()
	for {
		if l := s.next(); l.ID != "" {
			return l.Message
		}
	}
}

// until reads statuses until one has a reason.
func (s *reading) until(reason api.Reason) streamLine {
	s.t.Helper()
	for {
		l := s.next()
		if l.ID != "" {
			s.t.Fatalf("message %s in place of %s", l.ID, reason)
		}
		if l.Reason != nil && *l.Reason == reason {
			return l
		}
	}
}

func (r *rig) settle(verb string, receipts ...string) api.ReceiptResponse {
	r.t.Helper()
	body, _ := json.Marshal(api.Receipts{Receipts: receipts})
	return into[api.ReceiptResponse](r.t, r.do("POST", "/groups/g/topics/one/"+verb, string(body)), 200)
}

func TestStream(t *testing.T) {
	r := newRig(t, nil)
	for i := range 5 {
		r.do("POST", "/topics/one", fmt.Sprint("m", i))
	}
	s := r.stream("/groups/g/topics/one/stream?window=3&heartbeat=200ms")
	if got := s.resp.Header.Get("Content-Type"); got != api.ContentTypeNDJSON {
		t.Errorf("content type %q", got)
	}
	var receipts []string
	for i := range 3 {
		m := s.message()
		if *m.Value != fmt.Sprint("m", i) || m.Attempt != 1 || m.LeaseUntil == nil {
			t.Fatalf("message %d is %+v", i, m)
		}
		receipts = append(receipts, m.Receipt)
	}
	if l := s.until(api.ReasonInFlightFull); l.Status != api.StreamWaiting || l.InFlight != 3 {
		t.Errorf("with a full window: %+v", l)
	}
	s.until(api.ReasonInFlightFull) // the heartbeat
	r.settle("ack", receipts...)
	for i := 3; i < 5; i++ {
		m := s.message()
		if *m.Value != fmt.Sprint("m", i) {
			t.Fatalf("after the acks %s", *m.Value)
		}
		r.settle("ack", m.Receipt)
	}
	s.until(api.ReasonAtEnd)
	r.do("POST", "/topics/one", "late")
	m := s.message()
	if *m.Value != "late" {
		t.Fatalf("then %s", *m.Value)
	}
	r.settle("nack", m.Receipt)
	if again := s.message(); again.ID != m.ID || again.Attempt != 2 {
		t.Fatalf("after the nack %+v", again)
	}
}

func TestStreamOfEvents(t *testing.T) {
	r := newRig(t, nil)
	r.do("POST", "/topics/one", "a\nb")
	s := r.stream("/groups/g/topics/one/stream?ack=auto&heartbeat=100ms", "Accept: Text/Event-Stream")
	if got := s.resp.Header.Get("X-Accel-Buffering"); got != "no" {
		t.Errorf("X-Accel-Buffering %q: nginx holds the stream back until it ends", got)
	}
	if got := s.resp.Header.Get("Content-Type"); got != api.ContentTypeEvents {
		t.Errorf("content type %q", got)
	}
	event := func() (id, name, data string) {
		for {
			line, err := s.lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch field {
			case "":
				return id, name, data
			case "id":
				id = value
			case "event":
				name = value
			case "data":
				data += value
			}
		}
	}
	for {
		id, name, data := event()
		if name == "status" {
			continue
		}
		var m api.Message
		if err := json.Unmarshal([]byte(data), &m); err != nil || name != "message" || m.ID != id || *m.Value != "a\nb" || m.Receipt != "" {
			t.Fatalf("id %q, event %q, %q: %v", id, name, data, err)
		}
		break
	}
	if _, name, data := event(); name != "status" || !strings.Contains(data, `"at_end"`) {
		t.Errorf("then event %q, %q", name, data)
	}
	if got := r.do("GET", "/groups/g/topics/one/offsets", ""); !strings.Contains(string(got.body), `"lag":0`) {
		t.Errorf("what left with ack=auto is not acknowledged: %s", got)
	}
}

// TestStreamOfAClientThatLeft: what its kernel never took comes to the next
// with no attempt spent.
func TestStreamOfAClientThatLeft(t *testing.T) {
	r := newRig(t, nil)
	body := strings.Repeat(strings.Repeat("x", 63<<10)+"\n", 64)
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch?lines=1", body), 200)
	m := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=20s&max=1", ""), 200).Messages[0]
	eventually(t, "messages are read ahead", func() bool { return r.metric("sidestream_consume_buffered_bytes") > 3<<20 })
	r.settle("ack", m.Receipt)

	c, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
	fmt.Fprintf(c, "GET /groups/g/topics/one/stream?window=60&lease=10m HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, 100<<10)); err != nil { // one message, and part of the next
		t.Fatal(err)
	}
	var in int
	eventually(t, "messages are out", func() bool { in = inFlight(r); return in > 40 })
	c.Close()
	eventually(t, "messages come back from a client that left", func() bool { return inFlight(r) < in })
	// What it got is out still: nobody knows that it is not at work on it.
	left := inFlight(r)
	if left < 1 || left > in/2 {
		t.Errorf("%d messages stay out; the client took one and a half", left)
	}
}

// metric is the sum of a metric.
func (r *rig) metric(name string) (sum float64) {
	r.t.Helper()
	for line := range strings.Lines(string(r.do("GET", "/metrics", "").body)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// inFlight is how many messages of topic one are out.
func inFlight(r *rig) int {
	o := into[api.Offsets](r.t, r.do("GET", "/groups/g/topics/one/offsets", ""), 200)
	n := 0
	for _, p := range o.Partitions {
		n += p.InFlight
	}
	return n
}

// A stream takes up a connection for as long as it lasts.
func TestStreamsCountAsConnections(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxConnections = 1 })
	s := r.stream("/groups/g/topics/one/stream?heartbeat=100ms")
	s.until(api.ReasonAtEnd)
	status := func() int {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if got := status(); got != http.StatusTooManyRequests {
		t.Errorf("another connection is answered %d", got)
	}
	s.stop()
	eventually(t, "the end of the stream makes room", func() bool { return status() == http.StatusOK })
}

func TestStreamEndsWithTheSidecar(t *testing.T) {
	r := newRig(t, nil)
	s := r.stream("/groups/g/topics/one/stream")
	s.until(api.ReasonAtEnd)
	began := time.Now()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > r.cfg.DrainTimeout {
		t.Errorf("the stop took %s", took)
	}
	for {
		l := s.next()
		if l.Status == api.StreamEnded {
			if l.Error == nil || l.Error.Code != api.CodeDraining {
				t.Errorf("the last line is %+v", l)
			}
			break
		}
	}
	if rest, err := io.ReadAll(s.lines); err != nil || len(rest) > 0 {
		t.Errorf("after the last line %q, %v", rest, err)
	}
}

func TestStreamRefusals(t *testing.T) {
	r := newRig(t, nil)
	for path, want := range map[string]api.Code{
		"/groups/g/topics/nosuch/stream":              api.CodeTopicNotFound,
		"/groups/g/topics/one/stream?window=0":        api.CodeBadRequest,
		"/groups/g/topics/one/stream?heartbeat=1ms":   api.CodeBadRequest,
		"/groups/g/topics/one/stream?max=3":           api.CodeBadRequest,
		"/groups/g/topics/one/stream?ack=no":          api.CodeBadRequest,
		"/groups/g/topics/one/stream?lease=1ms":       api.CodeBadRequest,
		"/groups/g%20/topics/one/stream?heartbeat=1s": api.CodeBadRequest,
	} {
		if a := r.do("GET", path, ""); a.code() != want {
			t.Errorf("%s: %s, want %s", path, a, want)
		}
	}
	if a := r.do("POST", "/groups/g/topics/one/stream", `{"ack":[]}`); a.code() != api.CodeBadRequest {
		t.Errorf("a body: %s", a)
	}
	if a := r.do("HEAD", "/groups/g/topics/one/stream", ""); a.status != 200 {
		t.Errorf("HEAD: %s", a)
	}
}

// TestStreamOfAClientThatStopsReading: it is cut off before its leases end, and
// what it did not take comes to the next with no attempt spent.
func TestStreamOfAClientThatStopsReading(t *testing.T) {
	r := newRig(t, nil)
	const n = 240
	body := strings.Repeat(strings.Repeat("x", 63<<10)+"\n", n/4)
	for p := range 4 {
		var lines strings.Builder
		for line := range strings.Lines(body) {
			fmt.Fprintf(&lines, "{\"partition\":%d,\"value\":\"%s\"}\n", p, strings.TrimSpace(line))
		}
		into[api.BatchPublished](t, r.do("POST", "/topics/t/batch", lines.String()), 200)
	}
	m := into[api.Pulled](t, r.do("POST", "/groups/g/topics/t/pull?wait=20s&max=1", ""), 200).Messages[0]
	eventually(t, "messages are read ahead", func() bool { return r.metric("sidestream_consume_buffered_bytes") > 12<<20 })
	ack, _ := json.Marshal(api.Receipts{Receipts: []string{m.Receipt}})
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/t/ack", string(ack)), 200)

	c, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
	fmt.Fprintf(c, "GET /groups/g/topics/t/stream?window=%d&lease=6s HTTP/1.1\r\nHost: localhost\r\n\r\n", n)
	eventually(t, "the client is cut off", func() bool { return r.metric("sidestream_consume_messages_returned_total") > 0 })
	attempts := map[int]int{}
	for end := time.Now().Add(30 * time.Second); attempts[1]+attempts[2] < n-1 && time.Now().Before(end); {
		pulled := into[api.Pulled](t, r.do("POST", "/groups/g/topics/t/pull?wait=1s&ack=auto", ""), 200)
		for _, m := range pulled.Messages {
			attempts[m.Attempt]++
		}
	}
	if attempts[1] == 0 || attempts[1]+attempts[2] != n-1 {
		t.Errorf("messages by attempt: %v; want %d in all, with no attempt spent for what was not taken", attempts, n-1)
	}
}
