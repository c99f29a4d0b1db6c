package spool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brokers are topics in memory, which outlive the spools of a test.
type brokers struct {
	// mu guards what follows.
	mu      sync.Mutex
	topics  map[string]*fakeTopic
	configs map[string]map[string]string // of topics
	down    bool                         // nobody answers
	refuse  func(*kgo.Record) error      // of one record; nil: none
	lose    func() bool                  // says that the answer to a request is lost; nil: none
	hang    chan struct{}                // requests wait until it is closed; nil: they do not
	finds   int
}

type fakeTopic struct {
	uuid  string
	parts []*fakePart
}

type fakePart struct {
	away bool // no leader
	recs []*kgo.Record
}

func newBrokers(partitions int) *brokers {
	b := &brokers{topics: map[string]*fakeTopic{}}
	b.make("t", partitions)
	return b
}

func (b *brokers) make(name string, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &fakeTopic{uuid: fmt.Sprintf("uuid-%d", len(b.topics))}
	if old := b.topics[name]; old != nil {
		t.uuid = old.uuid + "+"
	}
	for range partitions {
		t.parts = append(t.parts, &fakePart{})
	}
	b.topics[name] = t
}

func (b *brokers) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *brokers) Topic(_ context.Context, name string) (upstream.Topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return upstream.Topic{}, unavailable("down")
	}
	t := b.topics[name]
	if t == nil {
		return upstream.Topic{}, api.NewError(api.CodeTopicNotFound, "no topic "+name)
	}
	out := upstream.Topic{Name: name, UUID: t.uuid}
	for i, p := range t.parts {
		leader := int32(1)
		if p.away {
			leader = -1
		}
		out.Partitions = append(out.Partitions, upstream.Partition{ID: int32(i), Leader: leader})
	}
	return out, nil
}

func (b *brokers) TopicConfigs(_ context.Context, name string) (upstream.Configs, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return upstream.Configs{All: b.configs[name]}, nil
}

func (b *brokers) Refresh(ctx context.Context, name string) (upstream.Topic, error) {
	return b.Topic(ctx, name)
}

func (b *brokers) CreateTopic(ctx context.Context, name string, _ api.TopicSpec) (upstream.Topic, error) {
	if b.down {
		return upstream.Topic{}, unavailable("down")
	}
	b.make(name, 4)
	return b.Topic(ctx, name)
}

// part finds a partition that answers. Call with mu held.
func (b *brokers) part(topic string, partition int32) (*fakePart, error) {
	t := b.topics[topic]
	switch {
	case b.down:
		return nil, unavailable("down")
	case t == nil:
		return nil, api.NewError(api.CodeTopicNotFound, "no topic "+topic)
	case int(partition) >= len(t.parts):
		return nil, api.NewError(api.CodePartitionNotFound, "no such partition")
	case t.parts[partition].away:
		return nil, unavailable("no leader")
	}
	return t.parts[partition], nil
}

func (b *brokers) WrittenEnd(_ context.Context, topic string, partition int32) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.part(topic, partition)
	if err != nil {
		return 0, err
	}
	return int64(len(p.recs)), nil
}

func (b *brokers) Find(_ context.Context, topic string, partition int32, from int64, ids map[string]struct{}) (map[string]int64, int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := map[string]int64{}
	p, err := b.part(topic, partition)
	if err != nil {
		return found, from, err
	}
	b.finds++
	for o := max(from, 0); o < int64(len(p.recs)); o++ {
		id := idHeader(p.recs[o])
		if _, ok := ids[id]; ok {
			if _, again := found[id]; !again {
				found[id] = o
			}
		}
	}
	return found, int64(len(p.recs)), nil
}

func idHeader(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == upstream.HeaderID {
			return string(h.Value)
		}
	}
	return ""
}

// values of a partition, in order.
func (b *brokers) values(topic string, partition int) (values []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.topics[topic].parts[partition].recs {
		values = append(values, string(r.Value))
	}
	return values
}

// sender sends to the brokers; it dies with its spool.
type sender struct {
	b      *brokers
	closed chan struct{}
	once   sync.Once
	sent   func() bool // before each record that arrives: false when the process is dead
}

func (b *brokers) sender() *sender { return &sender{b: b, closed: make(chan struct{})} }

func (s *sender) Close() { s.once.Do(func() { close(s.closed) }) }

func (s *sender) Said(string, string, int32) error { return nil }

func (s *sender) Send(recs []*kgo.Record) []error {
	errs := make([]error, len(recs))
	fail := func(err error) []error {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	for {
		s.b.mu.Lock()
		hang, down := s.b.hang, s.b.down
		s.b.mu.Unlock()
		if hang == nil && !down {
			break
		}
		if hang == nil {
			hang = make(chan struct{})
		}
		select {
		case <-hang:
		case <-s.closed:
			return fail(kgo.ErrClientClosed)
		case <-time.After(5 * time.Millisecond):
		}
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	p, err := s.b.part(recs[0].Topic, recs[0].Partition)
	if err != nil {
		return fail(kerr.NotLeaderForPartition)
	}
	if s.b.refuse != nil {
		for _, r := range recs {
			if err := s.b.refuse(r); err != nil {
				return fail(err) // the batch as a whole
			}
		}
	}
	for i, r := range recs {
		if s.sent != nil && !s.sent() {
			for ; i < len(recs); i++ {
				errs[i] = kgo.ErrClientClosed
			}
			return errs
		}
		c := *r
		c.Value, c.Key = append([]byte(nil), r.Value...), append([]byte(nil), r.Key...)
		c.Offset = int64(len(p.recs))
		p.recs = append(p.recs, &c)
		r.Offset = c.Offset
	}
	if s.b.lose != nil && s.b.lose() {
		return fail(errors.New("the connection broke"))
	}
	return errs
}

// live is the publisher behind the spool: it writes at once.
type live struct {
	b     *brokers
	calls int
	ahead []<-chan struct{} // what is on its way; guarded by b.mu
}

func (l *live) Ahead(string, string, int32) []<-chan struct{} {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.ahead
}

func (l *live) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	r, err := l.PublishBatch(ctx, topic, []publish.Message{m}, o)
	if err != nil {
		return api.Published{}, err
	}
	if r[0].Error != nil {
		return api.Published{}, r[0].Error
	}
	return api.Published{Topic: topic, Partition: r[0].Partition, Offset: r[0].Offset}, nil
}

func (l *live) PublishBatch(_ context.Context, topic string, ms []publish.Message, _ publish.Options) ([]api.BatchResult, error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.calls++
	if l.b.down {
		return nil, unavailable("down")
	}
	var results []api.BatchResult
	for _, m := range ms {
		id := int32(0)
		if m.Partition != nil {
			id = *m.Partition
		} else if m.Key != nil {
			id = publish.PartitionOf(m.Key, int32(len(l.b.topics[topic].parts)))
		}
		p, err := l.b.part(topic, id)
		if err != nil {
			results = append(results, api.BatchResult{Offset: -1, Error: asError(err)})
			continue
		}
		results = append(results, api.BatchResult{Partition: id, Offset: int64(len(p.recs))})
		p.recs = append(p.recs, &kgo.Record{Value: append([]byte(nil), m.Value...)})
	}
	return results, nil
}

// rig is a spool in a folder of a file system, with brokers of its own.
type rig struct {
	*Spool
	t    *testing.T
	fs   disk.FS
	cfg  Config
	b    *brokers
	live *live
	tune func(*Config) // what Open would refuse

	time func() time.Time // of the folder; nil: the system's
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, fs: disk.NewMem(), b: newBrokers(4), cfg: DefaultConfig()}
	r.cfg.Outcomes = 10_000
	r.cfg.SendWait = 100 * time.Millisecond
	r.cfg.MissingTopic = time.Second
	r.cfg.LookAgain = 5 * time.Millisecond
	if change != nil {
		change(&r.cfg)
	}
	r.live = &live{b: r.b}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	s, err := Open(r.cfg, Deps{FS: r.fs, Dir: "spool", Next: r.live, Brokers: r.b, Sender: r.b.sender(), Logger: logger(r.t), Now: r.time})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.tune != nil {
		r.tune(&s.cfg)
	}
	r.Spool = s
	s.Start()
}

func logger(t *testing.T) *zap.Logger {
	return zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
}

func (r *rig) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := r.Spool.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

// restart closes and opens it again.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// spool takes a message for a partition and returns its id.
func (r *rig) spool(partition int32, value string) string {
	r.t.Helper()
	done, err := r.Publish(context.Background(), "t", publish.Message{Value: []byte(value), Partition: &partition}, publish.Options{Ack: publish.AckSpool})
	if err != nil {
		r.t.Fatal(err)
	}
	return done.SpoolID
}

// settled waits until nothing is pending.
func (r *rig) settled() {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); r.Status().Pending > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("still to be sent: %+v", r.Status())
		}
	}
}

func codeOf(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
