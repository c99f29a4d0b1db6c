// Package publish brings events to the brokers and says honestly what became
// of each: written at an offset, certainly not written, or not known.
package publish

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Ack says what must have happened to a message before its publish is answered.
type Ack int

const (
	AckAll    Ack = iota // all in-sync replicas have it; repeats by the client never double it
	AckLeader            // its leader has it; one attempt
	AckSpool             // this host's disk has it; a Publisher itself does not take it
)

func (a Ack) String() string { return [...]string{"all", "leader", "spool"}[a] }

// Options of one publish.
type Options struct {
	Ack     Ack
	Timeout time.Duration // how long to wait for the fate; 0: the configured one
	Begun   time.Time     // since when; zero: the call

	// Caller names the application that publishes; "" when it does not say.
	Caller string
	// IdempotencyKey makes a repeat of the same request the same publish; "" none.
	IdempotencyKey string
	// MaySpool says that the caller takes a place in the spool in place of
	// brokers_unavailable. A Publisher itself has no spool.
	MaySpool bool
	// Entered, if not nil, is called once, when all messages of the request
	// that could be sent have their place in the order of their partitions: a
	// later request's messages come after them. It must not block.
	Entered func()
	// Landed, if not nil, is called once, when none of the request's messages
	// is on its way any more: before the call returns, with nil, and then its
	// answer is the last word; or, where it answered unknown_outcome for what
	// was still on its way, later and from another goroutine, with the fates as
	// they are known then. It must not block.
	Landed func(fates []api.BatchResult)
	// Replayed, if not nil, is called before the call returns where its answer
	// is that of an earlier request with the same IdempotencyKey.
	Replayed func()

	later func(upstream.Topic, *flight) // calls Landed when the flight is over
}

// Deps are what a Publisher works with beside its Config. Zero fields are
// allowed.
type Deps struct {
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	AutoCreate bool // create an unknown topic at its first message
}

// Publisher is safe for concurrent use.
type Publisher struct {
	cfg     Config
	up      *upstream.Upstream
	log     *zap.Logger
	create  bool
	limits  *limits
	metrics *metrics

	clients [2]*kgo.Client // by Ack; there is no order between them

	expiry expiry
	writes writes // of the idempotent client

	// batchLimits are the topics' own max.message.bytes, by name, as far as
	// the brokers tell, BatchBytes at most: int32.
	batchLimits sync.Map

	bytes *semaphore.Weighted // room for messages on their way
	count *semaphore.Weighted

	watches sync.WaitGroup // those who wait to call an Options.Landed

	// mu guards topics and closed; it is never held across I/O.
	mu     sync.Mutex
	topics map[string]*topicState
	closed bool
}

// topicState is what is remembered of a topic between its messages.
type topicState struct {
	uuid  string
	limit sync.Once // its batch limit was asked for

	limitAt atomic.Int64 // when that was last so, Unix nanoseconds

	// mu guards run.
	mu  sync.Mutex
	run run
}

// New makes the two clients; it does not wait for any broker.
func New(cfg Config, up *upstream.Upstream, deps Deps) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	p := &Publisher{
		cfg: cfg, up: up, log: deps.Logger, create: deps.AutoCreate,
		bytes:  semaphore.NewWeighted(cfg.BufferBytes),
		count:  semaphore.NewWeighted(cfg.BufferRecords),
		topics: map[string]*topicState{},
		expiry: expiry{after: cfg.DeliveryTimeout},
	}
	var err error
	if p.limits, err = newLimits(cfg.Rate); err != nil {
		return nil, err
	}
	codec, err := cfg.codec()
	if err != nil {
		return nil, err
	}
	common := []kgo.Opt{
		kgo.RecordPartitioner(chosen{}),
		kgo.ProducerLinger(0), // batches form while earlier ones fly
		kgo.ProducerBatchMaxBytesFn(p.batchLimit),
		kgo.ProducerBatchCompression(codec),
		// Room is given out by our own counters, under the caller's
		// deadline; these must never be what blocks.
		kgo.MaxBufferedRecords(int(2 * cfg.BufferRecords)),
		kgo.MetadataMinAge(250 * time.Millisecond), // a new leader is found soon
		kgo.MetadataMaxAge(time.Minute),
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.RequestTimeoutOverhead(5 * time.Second),
		kgo.RetryBackoffFn(func(try int) time.Duration { return min(50*time.Millisecond<<min(try, 6), time.Second) }),
	}
	// The idempotent client repeats a record whose fate is unknown until a
	// broker tells it: then it is there once, whatever was lost on the way.
	// Cancelling such a record would allow it to appear twice, so it lives as
	// long as its broker is away; what it holds is bounded by the buffer. What
	// was not sent is taken out in time (see life).
	if p.clients[AckAll], err = up.Client(append(common[:len(common):len(common)], kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.AllowIdempotentProduceCancellation(), // only lives of records that were not sent are ended early
		kgo.WithHooks(&p.writes), kgo.RetryTimeoutFn(retryTimeout))...); err != nil {
		return nil, err
	}
	// Without idempotence a repeat could write twice, so there is none.
	if p.clients[AckLeader], err = up.Client(append(common[:len(common):len(common)],
		kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.RecordRetries(0))...); err != nil {
		p.clients[AckAll].Close()
		return nil, err
	}
	p.metrics, err = newMetrics(deps.Registerer, func() float64 {
		return float64(p.clients[AckAll].BufferedProduceRecords() + p.clients[AckLeader].BufferedProduceRecords())
	})
	if err != nil {
		p.clients[AckAll].Close()
		p.clients[AckLeader].Close()
		return nil, fmt.Errorf("publish metrics: %w", err)
	}
	return p, nil
}

// retryTimeout bounds how long the client repeats what comes before producing.
// It begins again by itself; between two rounds it looks whether records have
// waited for too long.
func retryTimeout(key int16) time.Duration {
	switch key {
	case kmsg.Metadata.Int16(), kmsg.InitProducerID.Int16():
		return 500 * time.Millisecond
	}
	return 30 * time.Second // the client's default
}

// batchLimit is the largest batch of a topic. A batch beyond the topic's own
// limit would be refused as a whole, small as its messages may be.
func (p *Publisher) batchLimit(topic string) int32 {
	if n, ok := p.batchLimits.Load(topic); ok {
		return n.(int32)
	}
	return int32(min(p.cfg.BatchBytes, kafkaBatchLimit))
}

// kafkaBatchLimit is Kafka's default of message.max.bytes. It holds where the
// brokers do not tell a topic's: more could be refused.
const kafkaBatchLimit = 1<<20 + 12

const (
	limitTime     = 2 * time.Second // for the question; without an answer the configured limit holds
	minBatchLimit = 512             // what the client takes at least
)

// limitAge is how long a topic's limit is believed: it can be altered.
const limitAge = 30 * time.Second

// knowLimit has a topic's batch limit asked for before its first message, and
// again now and then.
func (p *Publisher) knowLimit(ctx context.Context, s *topicState, topic string, now time.Time) {
	s.limit.Do(func() {
		s.limitAt.Store(now.UnixNano())
		p.learnLimit(ctx, topic)
	})
	// One request asks for all that come meanwhile.
	if at := s.limitAt.Load(); now.Sub(time.Unix(0, at)) >= limitAge && s.limitAt.CompareAndSwap(at, now.UnixNano()) {
		p.learnLimit(ctx, topic)
	}
}

// learnLimit asks the brokers; without an answer what is known stays.
func (p *Publisher) learnLimit(ctx context.Context, topic string) {
	ctx, cancel := context.WithTimeout(ctx, limitTime)
	defer cancel()
	if n, ok := p.up.MaxMessageBytes(ctx, topic); ok {
		p.batchLimits.Store(topic, int32(min(max(n, minBatchLimit), p.cfg.BatchBytes)))
	}
}

// Buffered is how many messages are on their way to the brokers now.
func (p *Publisher) Buffered() int64 {
	return p.clients[AckAll].BufferedProduceRecords() + p.clients[AckLeader].BufferedProduceRecords()
}

// Close takes no further messages, waits until those on their way have landed
// or ctx ends, and closes. What was still on its way then is lost to us, and
// may be written or not: its callers have been answered 504, or are now. It
// returns how many those were.
func (p *Publisher) Close(ctx context.Context) (lost int64) {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return 0
	}
	for _, cl := range p.clients {
		_ = cl.Flush(ctx) // fails only with ctx, and then the count below tells
	}
	lost = p.Buffered()
	for _, cl := range p.clients {
		cl.Close() // all that is on its way lands
	}
	p.watches.Wait()
	p.expiry.close()
	return lost
}
