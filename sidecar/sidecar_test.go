package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/api/conform"
)

// rig is a running sidecar with brokers and a store of its own.
type rig struct {
	t       *testing.T
	cluster *kfake.Cluster
	store   *discovery.Memory
	sidecar *Sidecar
	cfg     Config
	base    string
	stop    func() error // stops it and returns what Run did

	describe  sync.Once
	described *conform.Document // what the sidecar says of its API
}

func newCluster(t *testing.T) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "t"), kfake.SeedTopics(1, "one"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newStore(t *testing.T) *discovery.Memory {
	t.Helper()
	store, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, cluster: newCluster(t), store: newStore(t)}
	r.cfg = DefaultConfig()
	r.cfg.DataDir = t.TempDir()
	r.cfg.Listen = "127.0.0.1:0"
	r.cfg.DrainTimeout = 5 * time.Second
	r.cfg.Consume.ReleaseWait = 100 * time.Millisecond
	r.cfg.Kafka.Bootstrap = r.cluster.ListenAddrs()
	r.cfg.Kafka.MetadataAge = 200 * time.Millisecond
	if change != nil {
		change(&r.cfg)
	}
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	s, err := New(r.cfg, r.store, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var stopped bool
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			r.t.Fatal("the sidecar does not stop")
			return nil
		}
	}
	r.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			r.t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		stopped = true
		r.t.Fatalf("Run: %v", err)
	}
	r.sidecar, r.base = s, "http://"+s.Addr()
}

// answer is a response, read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// compact is a body of JSON without what is there for people.
func (a answer) compact() string {
	var b bytes.Buffer
	if err := json.Compact(&b, a.body); err != nil {
		return string(a.body)
	}
	return b.String()
}

func (a answer) code() api.Code {
	var b api.ErrorBody
	_ = json.Unmarshal(a.body, &b)
	if b.Error == nil {
		return ""
	}
	return b.Error.Code
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

func (r *rig) do(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequest(method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{resp.StatusCode, resp.Header, b}
	r.conforms(method, path, a)
	return a
}

// raw sends bytes as they are and reads one response.
func (r *rig) raw(request string) answer {
	r.t.Helper()
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		r.t.Fatal(err)
	}
	return readAnswer(r.t, c)
}

func into[T any](t *testing.T, a answer, want int) T {
	t.Helper()
	var v T
	if a.status != want {
		t.Fatalf("got %s, want status %d", a, want)
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	return v
}

// peek reads a whole partition.
func (r *rig) peek(topic string, partition int) []api.Message {
	r.t.Helper()
	return into[api.Peeked](r.t, r.do("GET", fmt.Sprintf("/topics/%s/partitions/%d/messages?max=1000", topic, partition), ""), 200).Messages
}

// last is the newest message of topic "one".
func (r *rig) last() api.Message {
	r.t.Helper()
	ms := r.peek("one", 0)
	if len(ms) == 0 {
		r.t.Fatal("topic one is empty")
	}
	return ms[len(ms)-1]
}

func TestFromPostToAck(t *testing.T) {
	r := newRig(t, nil)
	done := into[api.Published](t, r.do("POST", "/topics/one", "hi"), 200)
	if done.Topic != "one" || done.Offset != 0 || done.Timestamp == 0 {
		t.Errorf("%+v", done)
	}
	pulled := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s", ""), 200)
	if len(pulled.Messages) != 1 || *pulled.Messages[0].Value != "hi" || pulled.Messages[0].ID != "one/0/0" || pulled.Messages[0].Attempt != 1 {
		t.Fatalf("%+v", pulled)
	}
	body, _ := json.Marshal(api.Receipts{Receipts: []string{pulled.Messages[0].Receipt}})
	if acked := into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/ack", string(body)), 200); acked.OK != 1 {
		t.Errorf("%+v", acked)
	}
	again := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull", ""), 200)
	if len(again.Messages) != 0 || again.Reason == nil || *again.Reason != api.ReasonAtEnd {
		t.Errorf("%+v", again)
	}
	o := into[api.Offsets](t, r.do("GET", "/groups/g/topics/one/offsets", ""), 200)
	if o.Lag != 0 || len(o.Partitions) != 1 || o.Partitions[0].Position != 1 {
		t.Errorf("%+v", o)
	}
	sought := into[api.Sought](t, r.do("PUT", "/groups/g/topics/one/offsets", `{"to":"earliest"}`), 200)
	if sought.Offsets[0] != 0 {
		t.Errorf("%+v", sought)
	}
	pulled = into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s&ack=auto", ""), 200)
	if len(pulled.Messages) != 1 || pulled.Messages[0].Receipt != "" {
		t.Errorf("%+v", pulled)
	}
	if g := into[api.GroupList](t, r.do("GET", "/groups", ""), 200); len(g.Groups) != 1 || g.Groups[0] != "g" {
		t.Errorf("%+v", g)
	}
}

func TestRawPull(t *testing.T) {
	r := newRig(t, nil)
	empty := r.do("POST", "/groups/g/topics/one/pull?raw&wait=0", "")
	if empty.status != 204 || empty.header.Get("Sidestream-Reason") == "" {
		t.Errorf("got %s %v", empty, empty.header)
	}
	value := "\x00\xff\r\nbytes"
	into[api.Published](t, r.do("POST", "/topics/one?key64=/w==&ts=1234567890123", value), 200)
	got := r.do("POST", "/groups/g/topics/one/pull?raw=1&wait=10s", "")
	h := got.header
	if got.status != 200 || string(got.body) != value || h.Get("Sidestream-Id") != "one/0/0" || h.Get("Sidestream-Receipt") == "" ||
		h.Get("Sidestream-Key64") != "/w==" || h.Get("Sidestream-Timestamp") != "1234567890123" || h.Get("Sidestream-Attempt") != "1" {
		t.Errorf("got %s %v", got, h)
	}
	if a := r.do("POST", "/groups/g/topics/one/pull?raw&max=2", ""); a.code() != api.CodeBadRequest {
		t.Errorf("got %s", a)
	}
}

func TestTopics(t *testing.T) {
	r := newRig(t, nil)
	made := into[api.Topic](t, r.do("PUT", "/topics/new", ""), 201)
	if len(made.Partitions) != 4 || made.UUID == "" {
		t.Errorf("%+v", made)
	}
	into[api.Topic](t, r.do("PUT", "/topics/new", `{"partitions":4}`), 200)
	if a := r.do("PUT", "/topics/new", `{"partitions":5}`); a.status != 409 || a.code() != api.CodeTopicExists {
		t.Errorf("got %s", a)
	}
	into[api.Published](t, r.do("POST", "/topics/new?partition=3", "v"), 200)
	one := into[api.Topic](t, r.do("GET", "/topics/new", ""), 200)
	if one.Partitions[3].End != 1 || one.Partitions[3].Start != 0 || one.Partitions[2].End != 0 {
		t.Errorf("%+v", one)
	}
	if list := into[api.TopicList](t, r.do("GET", "/topics", ""), 200); len(list.Topics) != 3 {
		t.Errorf("%+v", list)
	}
	at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	if p := into[api.Peeked](t, r.do("GET", "/topics/new/partitions/3/messages?ts="+at, ""), 200); len(p.Messages) != 0 || p.End != 1 {
		t.Errorf("%+v", p)
	}
}

func TestBatch(t *testing.T) {
	r := newRig(t, nil)
	b := into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"value":"a"}
{"value":{"n": 9007199254740993},"key":"k","headers":{"h":"x"},"ts":1234567890123}
{"value64":"/w=="}`), 200)
	if b.Written != 3 || len(b.Results) != 3 || b.Results[2].Offset != 2 {
		t.Errorf("%+v", b)
	}
	ms := r.peek("one", 0)
	if *ms[0].Value != "a" || *ms[1].Value != `{"n": 9007199254740993}` || *ms[1].Key != "k" || *ms[1].Headers[0].Value != "x" ||
		ms[1].Timestamp != 1234567890123 || *ms[2].Value64 != "/w==" {
		t.Errorf("%+v", ms)
	}
	b = into[api.BatchPublished](t, r.do("POST", "/topics/t/batch?lines=1&key_field=visitor", "{\"visitor\":\"a\"}\n{\"visitor\":\"a\"}\n"), 200)
	if b.Written != 2 || b.Results[0].Partition != b.Results[1].Partition || b.Results[1].Offset != b.Results[0].Offset+1 {
		t.Errorf("%+v", b)
	}
}

// Some written, some not: 207, in the order given, each with its fate.
func TestMixedBatchIs207(t *testing.T) {
	r := newRig(t, nil)
	into[api.Topic](t, r.do("PUT", "/topics/small", `{"partitions":1,"configs":{"max.message.bytes":"2000"}}`), 201)
	large := strings.Repeat("x", 3000) // for the brokers, not for us
	a := r.do("POST", "/topics/small/batch", `[{"value":"a"},{"value":"`+large+`"},{"value":"c"}]`)
	b := into[api.BatchPublished](t, a, 207)
	if b.Written != 2 || b.Failed != 1 || b.Results[1].Error == nil || b.Results[1].Error.Code != api.CodeMessageTooLarge || b.Results[2].Offset != 1 {
		t.Errorf("got %s", a)
	}
	a = r.do("POST", "/topics/small/batch?lines=1", large+"\n"+large)
	if b := into[api.BatchPublished](t, a, 413); a.code() != api.CodeMessageTooLarge || b.Failed != 2 || len(b.Results) != 2 {
		t.Errorf("all failed alike: got %s", a)
	}
}

func TestBadLineWritesNothing(t *testing.T) {
	r := newRig(t, nil)
	a := r.do("POST", "/topics/one/batch", "{\"value\":1}\n{\"value\":2}\nbroken\n")
	var b api.ErrorBody
	if err := json.Unmarshal(a.body, &b); err != nil || a.status != 422 || b.Error.Code != api.CodeBadRecord || b.Error.Line != 3 {
		t.Errorf("got %s", a)
	}
	if ms := r.peek("one", 0); len(ms) != 0 {
		t.Errorf("%d messages were written", len(ms))
	}
}

func TestUnknownTopicIs404WithinASecond(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/topics/nope", "x"},
		{"POST", "/topics/nope/batch?lines", "x"},
		{"POST", "/groups/g/topics/nope/pull?wait=30s", ""},
		{"GET", "/topics/nope", ""},
		{"GET", "/topics/nope/partitions/0/messages", ""},
	} {
		begun := time.Now()
		a := r.do(c.method, c.path, c.body)
		if a.status != 404 || a.code() != api.CodeTopicNotFound {
			t.Errorf("%s %s: got %s", c.method, c.path, a)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s %s took %s", c.method, c.path, took)
		}
	}
}

func TestBodyOf3MBIs413(t *testing.T) {
	r := newRig(t, nil)
	a := r.do("POST", "/topics/one", strings.Repeat("x", 3<<20))
	if a.status != 413 || a.code() != api.CodeMessageTooLarge || !bytes.Contains(a.body, []byte("3145728")) || !bytes.Contains(a.body, []byte("1048576")) {
		t.Errorf("got %.300s", a)
	}
	a = r.do("POST", "/topics/one/batch?lines", "small\n"+strings.Repeat("x", 3<<20))
	if a.status != 413 || len(r.peek("one", 0)) != 0 {
		t.Errorf("got %.300s", a)
	}
}

func TestRequestOverTheLimitIs413(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxRequestBytes = 1 << 20 })
	head := "POST /topics/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n"
	// Refused by what its head says, once the first of the body is there.
	if a := r.raw(head + "\r\n" + strings.Repeat("x", 16<<10)); a.status != 413 || a.code() != api.CodeRequestTooLarge {
		t.Errorf("got %s", a)
	}
	// Refused before the body is sent.
	if a := r.raw(head + "Expect: 100-continue\r\n\r\n"); a.status != 413 || a.code() != api.CodeRequestTooLarge {
		t.Errorf("with Expect: got %s", a)
	}
}

func TestBrokersGone(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	r.cluster.Close()
	for deadline := time.Now().Add(30 * time.Second); ; {
		begun := time.Now()
		a := r.do("POST", "/topics/one?timeout=2s", "x")
		if took := time.Since(begun); took > 8*time.Second {
			t.Errorf("took %s with a timeout of 2s", took)
		}
		if a.status == 503 {
			if a.code() != api.CodeBrokersUnavailable || a.header.Get("Retry-After") == "" {
				t.Errorf("got %s %v", a, a.header)
			}
			break
		}
		if a.status != 504 || a.code() != api.CodeUnknownOutcome {
			t.Fatalf("got %s", a)
		}
		if time.Now().After(deadline) {
			t.Fatalf("never 503: %s", a)
		}
	}
	if h := into[api.Health](t, r.do("GET", "/readyz", ""), 503); !strings.Contains(strings.Join(h.Causes, " "), "brokers") {
		t.Errorf("%+v", h)
	}
	into[api.Health](t, r.do("GET", "/healthz", ""), 200)
}

func TestMetrics(t *testing.T) {
	r := newRig(t, nil)
	r.do("POST", "/topics/one", "12345")
	r.do("POST", "/topics/nope", "x")
	a := r.do("GET", "/metrics", "")
	for _, want := range []string{
		`sidestream_publish_records_total{ack="all"} 1`,
		`sidestream_publish_bytes_total{ack="all"} 5`,
		`sidestream_http_errors_total{code="topic_not_found"} 1`,
		`sidestream_http_requests_total{route="POST /topics/{topic}",status="200"} 1`,
		`sidestream_http_request_duration_seconds_count{route="POST /topics/{topic}"} 2`,
	} {
		if !bytes.Contains(a.body, []byte(want)) {
			t.Errorf("lacks %s", want)
		}
	}
}

func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`listen: got "0.0.0.0:4100", which other hosts can reach: use a loopback address such as 127.0.0.1:4100, or set allow_remote: true`:                         func(c *Config) { c.Listen = "0.0.0.0:4100" },
		`listen: got "4100": use host:port such as 127.0.0.1:4100`:                                                                                                  func(c *Config) { c.Listen = "4100" },
		`data_dir: is empty: name a folder such as /var/lib/sidestream/sidecar`:                                                                                     func(c *Config) { c.DataDir = "" },
		`kafka.sasl.mechanism: got "x": use plain, scram-sha-256 or scram-sha-512`:                                                                                  func(c *Config) { c.Kafka.SASL.Mechanism = "x" },
		`publish.compression: got "rar": use none, gzip, snappy, lz4 or zstd, and for gzip, lz4 and zstd a level behind a colon where you want one, such as zstd:9`: func(c *Config) { c.Publish.Compression = "rar" },
		`consume.lease: got "0s": use a duration from 100ms to 12h0m0s`:                                                                                             func(c *Config) { c.Consume.Lease = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}
