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
	// Sequence, if not nil, is shared by requests that are to be written in the
	// order in which they begin: each when the one before has Entered or ended. A
	// Publisher itself keeps that order anyway.
	Sequence *Sequence
	// Entered, if not nil, is called once, when all messages of the request
	// that could be sent have their place in the order of their partitions: a
	// later request's messages come after them, but for those without a key,
	// which may be given another partition. It must not block.
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
	metrics *metrics

	settings atomic.Pointer[settings]
	troubles *troubles

	clients [2]*kgo.Client // by Ack, a connection to each broker; there is no order between them
	writes  writes
	ids     *producerIDs
	// request brings a request to a broker, once; tests put faults in between.
	request func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error)

	// batchLimits are the topics' own max.message.bytes, by name, as far as
	// the brokers tell, BatchBytes at most: int32.
	batchLimits sync.Map

	bytes    *semaphore.Weighted // room for messages on their way
	count    *semaphore.Weighted
	buffered atomic.Int64 // messages on their way

	ctx     context.Context // ends when what is on its way is given up
	cancel  context.CancelFunc
	senders sync.WaitGroup // goroutines of lanes
	jobs    sync.WaitGroup // requests of which something is on its way
	closed  atomic.Bool    // set under mu

	// mu guards topics, and that no job begins after Close; it is never held
	// across I/O.
	mu     sync.Mutex
	topics map[string]*topicState
}

// topicState is what is remembered of a topic between its messages.
type topicState struct {
	uuid  string
	ids   *producerIDs // the publisher's, or its own when the name was another topic's before
	limit sync.Once    // its batch limit was asked for

	limitAt atomic.Int64 // when that was last so, Unix nanoseconds
	stuck   atomic.Int32 // lanes that bring nothing just now

	// mu guards what follows.
	mu    sync.Mutex
	run   run
	lanes [2][]*lane // by Ack and partition, as far as they were used
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
		topics: map[string]*topicState{}, troubles: newTroubles(deps.Logger),
	}
	if err := p.Configure(cfg); err != nil {
		return nil, err
	}
	var err error
	if p.metrics, err = newMetrics(deps.Registerer, func() float64 { return float64(p.Buffered()) }); err != nil {
		return nil, fmt.Errorf("publish metrics: %w", err)
	}
	// The clients find brokers, connect, log in and bring requests to them; what
	// is sent, and whether again, is decided here.
	for ack := range p.clients {
		p.clients[ack], err = up.Client(
			kgo.WithHooks(&p.writes),
			kgo.DisableIdempotentWrite(), // sequence numbers are ours
			kgo.RequestTimeoutOverhead(5*time.Second),
			kgo.RetryTimeout(2*time.Second), // of what comes before producing
			kgo.RequestRetries(3),
		)
		if err != nil {
			if ack > 0 {
				p.clients[0].Close()
			}
			return nil, err
		}
	}
	p.ids = newProducerIDs(p.clients[AckAll])
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		// It ends when its client is closed: a context that can end would cost
		// the client more for each request.
		return p.clients[ack].Broker(int(broker)).Request(context.Background(), req)
	}
	return p, nil
}

// begin counts a job that Close waits for; false once it is closing.
func (p *Publisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return false
	}
	p.jobs.Add(1)
	return true
}

// findBrokers has a client ask where the brokers are now.
func (p *Publisher) findBrokers(ack Ack) {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}  // none: the client remembers the brokers
	_, _ = req.RequestWith(ctx, p.clients[ack]) // without an answer what is known stays
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
func (p *Publisher) Buffered() int64 { return p.buffered.Load() }

// room is what a request takes of the buffer.
type room struct {
	p            *Publisher
	count, bytes int64
	messages     int64
	begun        bool
}

// take waits until there is room for a request or ctx ends. One that is larger
// than the whole buffer takes all of it.
func (r *room) take(ctx context.Context, p *Publisher, messages, bytes int) bool {
	count, size := min(int64(messages), p.cfg.BufferRecords), min(int64(max(1, bytes)), p.cfg.BufferBytes)
	// A context costs nothing until somebody asks for its end.
	if !p.count.TryAcquire(count) && p.count.Acquire(ctx, count) != nil {
		return false
	}
	if !p.bytes.TryAcquire(size) && p.bytes.Acquire(ctx, size) != nil {
		p.count.Release(count)
		return false
	}
	*r = room{p: p, count: count, bytes: size, messages: int64(messages)}
	p.buffered.Add(r.messages)
	return true
}

// free gives it back.
func (r *room) free() {
	if r.p == nil {
		return
	}
	r.p.count.Release(r.count)
	r.p.bytes.Release(r.bytes)
	r.p.buffered.Add(-r.messages)
	if r.begun {
		r.p.jobs.Done()
	}
	*r = room{}
}

// Close takes no further messages, waits until those on their way have landed
// or ctx ends, and closes. What was still on its way then is lost to us, and
// may be written or not: its callers have been answered 504, or are now. It
// returns how many those were.
func (p *Publisher) Close(ctx context.Context) (lost int64) {
	p.mu.Lock()
	was := p.closed.Swap(true)
	p.mu.Unlock()
	if was {
		return 0
	}
	landed := make(chan struct{})
	go func() {
		p.jobs.Wait()
		close(landed)
	}()
	select {
	case <-landed:
	case <-ctx.Done():
		lost = p.Buffered()
	}
	p.cancel() // all that is on its way lands
	for _, cl := range p.clients {
		cl.Close()
	}
	<-landed
	p.senders.Wait()
	return lost
}
