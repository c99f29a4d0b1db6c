package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

func newCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, "t")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newUpstream(t *testing.T, cfg Config, store discovery.Store) *Upstream {
	t.Helper()
	u, err := New(cfg, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

func bootstrapped(t *testing.T, c *kfake.Cluster) *Upstream {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Bootstrap = c.ListenAddrs()
	return newUpstream(t, cfg, nil)
}

func codeOf(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func produce(t *testing.T, u *Upstream, topic string, partition int32, values ...string) {
	t.Helper()
	cl, err := u.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v), Timestamp: time.UnixMilli(int64(1000 * (i + 1)))}
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopic(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	top, err := u.Topic(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if top.Name != "t" || len(top.UUID) != 36 || len(top.Partitions) != 4 {
		t.Errorf("%+v", top)
	}
	for i, p := range top.Partitions {
		if p.ID != int32(i) || p.Leader < 0 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	all, err := u.Topics(context.Background())
	if err != nil || len(all) != 1 || all[0].Name != "t" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestUnknownTopicAtOnce(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	begun := time.Now()
	if _, err := u.Topic(context.Background(), "nope"); codeOf(err) != api.CodeTopicNotFound {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("took %s", took)
	}
	if _, err := u.Topic(context.Background(), "no/pe"); codeOf(err) != api.CodeBadRequest {
		t.Errorf("got %v", err)
	}
}

// An unknown topic is not remembered for long: one that is made is found.
func TestUnknownTopicIsSoonForgotten(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	_, _ = u.Topic(context.Background(), "late")
	if err := c.CreateTopic("late", 2, nil); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := u.Topic(context.Background(), "late"); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestNewPartitionsAreNoticed(t *testing.T) {
	c := newCluster(t)
	cfg := DefaultConfig()
	cfg.Bootstrap, cfg.MetadataAge = c.ListenAddrs(), 50*time.Millisecond
	u := newUpstream(t, cfg, nil)
	if _, err := u.Topic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Admin().CreatePartitions(context.Background(), 2, "t"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if top, err := u.Topic(context.Background(), "t"); err == nil && len(top.Partitions) == 6 {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", top, err)
		}
	}
}

// No broker is registered: an answer at once, never a hang, and never whoever
// listens at the Kafka client's own default address.
func TestNoBroker(t *testing.T) {
	store := newStore(t)
	u := newUpstream(t, DefaultConfig(), store)
	begun := time.Now()
	_, err := u.Topic(context.Background(), "t")
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeBrokersUnavailable || e.RetryAfterMillis == 0 {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestBrokerThatDoesNotAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // it accepts in the kernel's queue and says nothing
	cfg := DefaultConfig()
	cfg.Bootstrap = []string{ln.Addr().String()}
	u := newUpstream(t, cfg, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := u.Topic(ctx, "t"); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("took %s with 200ms to spare", took)
	}
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

func register(t *testing.T, store discovery.Store, addr string) discovery.Registration {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	r, err := store.Register(context.Background(), discovery.Service{ID: addr, Name: discovery.ServiceBroker, Address: host, Port: n})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Brokers are found as they are registered, and found again when all of them
// have moved to other addresses.
func TestBrokersFollowTheRegistry(t *testing.T) {
	store := newStore(t)
	u := newUpstream(t, DefaultConfig(), store)
	await := func(topic string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if _, err := u.Refresh(context.Background(), topic); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("topic %s: %v, seeds %v", topic, err, u.Seeds())
			}
		}
	}
	first := newCluster(t)
	r := register(t, store, first.ListenAddrs()[0])
	await("t")
	second := newCluster(t, kfake.SeedTopics(1, "elsewhere"))
	register(t, store, second.ListenAddrs()[0])
	if err := r.Deregister(context.Background()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	await("elsewhere")
}

func TestSeedsOf(t *testing.T) {
	instance := func(port int, passing bool) discovery.Instance {
		return discovery.Instance{Service: discovery.Service{Address: "127.0.0.1", Port: port}, Passing: passing}
	}
	for name, c := range map[string]struct {
		in   []discovery.Instance
		want []string
	}{
		"none":                       {nil, nil},
		"passing only":               {[]discovery.Instance{instance(2, true), instance(1, true), instance(3, false)}, []string{"127.0.0.1:1", "127.0.0.1:2"}},
		"all when none passes":       {[]discovery.Instance{instance(2, false), instance(1, false)}, []string{"127.0.0.1:1", "127.0.0.1:2"}},
		"without address or port":    {[]discovery.Instance{{Passing: true}, instance(4, true)}, []string{"127.0.0.1:4"}},
		"twice the same is one seed": {[]discovery.Instance{instance(4, true), instance(4, true)}, []string{"127.0.0.1:4"}},
	} {
		if got := seedsOf(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTopicOf(t *testing.T) {
	brokers := []kmsg.MetadataResponseBroker{{NodeID: 1}}
	mt := kmsg.MetadataResponseTopic{
		TopicID: [16]byte{0x12, 0x34, 15: 0xff},
		Partitions: []kmsg.MetadataResponseTopicPartition{
			{Partition: 2, Leader: 9, LeaderEpoch: 4},
			{Partition: 0, Leader: 1, LeaderEpoch: 3},
			{Partition: 1, Leader: 1, ErrorCode: kerr.LeaderNotAvailable.Code},
		},
	}
	top, err := topicOf("t", mt, brokers)
	if err != nil {
		t.Fatal(err)
	}
	if top.UUID != "12340000-0000-0000-0000-0000000000ff" {
		t.Errorf("uuid %s", top.UUID)
	}
	// The leader of 2 is not among the live brokers; that of 1 is not available.
	for i, leader := range []int32{1, -1, -1} {
		if p := top.Partitions[i]; p.ID != int32(i) || p.Leader != leader {
			t.Errorf("partition %d: %+v, want leader %d", i, p, leader)
		}
	}
	if top, _ := topicOf("t", kmsg.MetadataResponseTopic{}, nil); top.UUID != "" {
		t.Errorf("uuid %q of brokers that have none", top.UUID)
	}
	for code, want := range map[int16]api.Code{
		kerr.UnknownTopicOrPartition.Code:  api.CodeTopicNotFound,
		kerr.InvalidTopicException.Code:    api.CodeBadRequest,
		kerr.TopicAuthorizationFailed.Code: api.CodeForbidden,
		kerr.LeaderNotAvailable.Code:       api.CodeBrokersUnavailable,
	} {
		if _, err := topicOf("t", kmsg.MetadataResponseTopic{ErrorCode: code}, nil); codeOf(err) != want {
			t.Errorf("code %d: %v, want %s", code, err, want)
		}
	}
}

func TestOffsets(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	produce(t, u, "t", 1, "a", "b", "c")
	if err := c.DeleteRecords("t", 1, 1); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	starts, err := u.StartOffsets(ctx, "t")
	if err != nil || len(starts) != 4 || starts[1] != 1 || starts[0] != 0 {
		t.Errorf("starts %v, %v", starts, err)
	}
	ends, err := u.EndOffsets(ctx, "t")
	if err != nil || len(ends) != 4 || ends[1] != 3 || ends[0] != 0 {
		t.Errorf("ends %v, %v", ends, err)
	}
	at, err := u.OffsetsAt(ctx, "t", time.UnixMilli(2500))
	if err != nil || at[1] != 2 || at[0] != 0 {
		t.Errorf("at 2.5 s: %v, %v", at, err)
	}
	at, err = u.OffsetsAt(ctx, "t", time.UnixMilli(99000))
	if err != nil || at[1] != 3 {
		t.Errorf("after the last: %v, %v; want the end", at, err)
	}
	if _, err := u.EndOffsets(ctx, "nope"); codeOf(err) != api.CodeTopicNotFound {
		t.Errorf("got %v", err)
	}
}

func TestOffsetsOfPartOfATopic(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "t", Partitions: []int32{2}, Err: kerr.KafkaStorageError, Count: -1})
	ends, err := u.EndOffsets(context.Background(), "t")
	var partial *PartialError
	if !errors.As(err, &partial) || len(partial.Partitions) != 1 || partial.Partitions[2] == nil {
		t.Errorf("error %v, want a PartialError of partition 2", err)
	}
	if _, has := ends[2]; has || len(ends) != 3 {
		t.Errorf("ends %v", ends)
	}
}

func TestCreateTopic(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	ctx := context.Background()
	top, err := u.CreateTopic(ctx, "new", api.TopicSpec{})
	if err != nil || len(top.Partitions) != 4 || !led(top) {
		t.Errorf("%+v, %v", top, err)
	}
	if _, err := u.CreateTopic(ctx, "new", api.TopicSpec{}); codeOf(err) != api.CodeTopicExists {
		t.Errorf("again: %v", err)
	}
	if _, err := u.CreateTopic(ctx, "new too", api.TopicSpec{}); codeOf(err) != api.CodeBadRequest {
		t.Errorf("bad name: %v", err)
	}
	top, err = u.CreateTopic(ctx, "wide", api.TopicSpec{Partitions: 7, Replication: 1, Configs: map[string]string{"retention.ms": "1000"}})
	if err != nil || len(top.Partitions) != 7 {
		t.Errorf("%+v, %v", top, err)
	}
}

func TestPeek(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	ctx := context.Background()
	produce(t, u, "t", 0, "a", "b", "c", "d")
	recs, next, end, err := u.Peek(ctx, "t", 0, 1, 2, 1<<20)
	if err != nil || len(recs) != 2 || string(recs[0].Value) != "b" || next != 3 || end != 4 {
		t.Errorf("%d records, next %d, end %d, %v", len(recs), next, end, err)
	}
	if recs, next, _, err = u.Peek(ctx, "t", 0, 4, 2, 1<<20); err != nil || len(recs) != 0 || next != 4 {
		t.Errorf("at the end: %d records, next %d, %v", len(recs), next, err)
	}
	if recs, _, end, err = u.Peek(ctx, "t", 0, 99, 2, 1<<20); err != nil || len(recs) != 0 || end != 4 {
		t.Errorf("beyond the end: %d records, end %d, %v", len(recs), end, err)
	}
	if err := c.DeleteRecords("t", 0, 2); err != nil {
		t.Fatal(err)
	}
	if recs, _, _, err = u.Peek(ctx, "t", 0, 0, 9, 1<<20); err != nil || len(recs) != 2 || recs[0].Offset != 2 {
		t.Errorf("below the start: %d records, %v", len(recs), err)
	}
	if _, _, _, err = u.Peek(ctx, "t", 9, 0, 1, 1<<20); codeOf(err) != api.CodePartitionNotFound {
		t.Errorf("no such partition: %v", err)
	}
	c.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		st, sp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		st.Topic, sp.ErrorCode = req.Topics[0].Topic, kerr.TopicAuthorizationFailed.Code
		st.TopicID = req.Topics[0].TopicID
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	if _, _, _, err = u.Peek(ctx, "t", 0, 2, 1, 1<<20); codeOf(err) != api.CodeForbidden {
		t.Errorf("without the right to read: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`bootstrap: got "broker": use host:port, such as 127.0.0.1:9092`:                                            func(c *Config) { c.Bootstrap = []string{"broker"} },
		`sasl.mechanism: got "magic": use plain, scram-sha-256 or scram-sha-512`:                                    func(c *Config) { c.SASL.Mechanism = "magic" },
		`sasl.user: is empty: give the user name for plain`:                                                         func(c *Config) { c.SASL.Mechanism = "plain" },
		`dial_timeout: got "0s": use a duration from 100ms to 1m0s`:                                                 func(c *Config) { c.DialTimeout = 0 },
		`tls.cert_file, tls.key_file: only one of them is given: give both or none`:                                 func(c *Config) { c.TLS.Enabled, c.TLS.CertFile = true, "x" },
		`service: got "": name a Consul service such as "sidestream-broker", or give bootstrap a list of host:port`: func(c *Config) { c.Service = "" },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

// With the coordination store down PUT /topics answered with a broker's own
// words about its connection ("Get http://localhost:8500…"), which whoever reads
// them at the sidecar takes for the sidecar's. And a broker that can say that
// nothing was made is 503, not 504.
func TestCreateTopicWithoutTheStore(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	for code, want := range map[int16]api.Code{
		kerr.RequestTimedOut.Code:         api.CodeUnknownOutcome,
		kerr.CoordinatorNotAvailable.Code: api.CodeStoreUnavailable,
		kerr.KafkaStorageError.Code:       api.CodeBrokersUnavailable,
	} {
		c.ControlKey(int16(kmsg.CreateTopics), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			resp := kreq.ResponseKind().(*kmsg.CreateTopicsResponse)
			st := kmsg.NewCreateTopicsResponseTopic()
			st.Topic, st.ErrorCode, st.ErrorMessage = "newt", code, kmsg.StringPtr(`Get "http://localhost:8500/v1/kv"`)
			resp.Topics = append(resp.Topics, st)
			return resp, nil, true
		})
		_, err := u.CreateTopic(context.Background(), "newt", api.TopicSpec{Replication: 1})
		if codeOf(err) != want || want != api.CodeBrokersUnavailable && strings.Contains(err.Error(), "8500") {
			t.Errorf("code %d: %v, want %s", code, err, want)
		}
	}
}

// A client does not read an idle connection, so a request went into one that
// its broker had closed, and nobody could say that no broker had it.
func TestNothingIsWrittenToAClosedConnection(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial, err := dialler(DefaultConfig(), new(dials))
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	there, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write([]byte("x")); n != 1 || err != nil {
		t.Fatalf("open: %d, %v", n, err)
	}
	if _, err := there.Write([]byte("answer")); err != nil { // what is unread is no end
		t.Fatal(err)
	}
	if n, err := c.Write([]byte("x")); n != 1 || err != nil {
		t.Fatalf("with an answer to read: %d, %v", n, err)
	}
	if _, err := io.ReadFull(c, make([]byte, len("answer"))); err != nil {
		t.Fatal(err)
	}
	there.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := c.Write(nil)
		if errors.Is(err, syscall.EPIPE) && n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("closed: %d, %v", n, err)
		}
	}
}
