package idempotency

import (
	"container/list"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// Publisher is what requests are passed on to, and what a Keys is itself.
type Publisher interface {
	Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error)
	PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error)
}

// Brokers is where records are looked for: *upstream.Upstream.
type Brokers interface {
	Topic(ctx context.Context, name string) (upstream.Topic, error)
	Refresh(ctx context.Context, name string) (upstream.Topic, error)
	CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error)
	StartOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	EndOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	Find(ctx context.Context, topic string, partition int32, from int64, ids map[string]struct{}) (found map[string]int64, end int64, err error)
}

// Spool tells what it holds for records with an id of ours.
type Spool interface {
	// Held are those of the ids whose records are in the spool and not written
	// yet, with what they were answered.
	Held(ids map[string]struct{}) (map[string]api.BatchResult, error)
}

// Deps are what a Keys works with beside its Config.
type Deps struct {
	Dir        string // of the journal; nobody else may use it
	Nonce      string // of this host, so that ids are its own
	Brokers    Brokers
	Spool      Spool // nil: none
	AutoCreate bool  // create an unknown topic at its first message

	Timeout    time.Duration // of a request that says none
	MaxTimeout time.Duration // of any

	FS         disk.FS // nil: the machine's
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Now is the data folder's time, by which the window goes on over a start
	// of the machine; the zero time while it is not known. nil: the system's
	// clock, which is believed.
	Now func() time.Time

	quiet, gone time.Duration // 0: as they are
}

// Keys remembers requests by their Idempotency-Key and passes on those that are
// new; requests without a key pass untouched. Safe for concurrent use.
type Keys struct {
	next    Publisher
	cfg     Config
	deps    Deps
	log     *zap.Logger
	journal *journal
	bounds  bounds
	metrics *metrics

	refusing atomic.Bool // the disk did not take the last intent

	wake   chan struct{} // holds one: something can be settled
	cancel context.CancelFunc
	wg     sync.WaitGroup // the settler

	// mu guards what follows, and of an entry what is not its owner's; it is
	// never held across I/O.
	mu      sync.Mutex
	entries map[digest]*entry
	order   list.List           // of *entry, oldest first
	bytes   int64               // of the entries
	open    map[*entry]struct{} // those with open fates
	closed  bool
}

// New opens the journal, or makes it, and begins to settle what an earlier life
// has left open.
func New(next Publisher, cfg Config, deps Deps) (*Keys, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	if deps.FS == nil {
		deps.FS = disk.OS
	}
	k := &Keys{
		next: next, cfg: cfg, deps: deps, log: deps.Logger,
		bounds:  bounds{brokers: deps.Brokers, topics: map[string]*topicBounds{}},
		wake:    make(chan struct{}, 1),
		entries: map[digest]*entry{},
		open:    map[*entry]struct{}{},
	}
	if err := k.load(); err != nil {
		return nil, fmt.Errorf("the journal of Idempotency-Keys in %s: %w", deps.Dir, err)
	}
	if k.deps.quiet == 0 {
		k.deps.quiet = quiet
	}
	if k.deps.gone == 0 {
		k.deps.gone = gone
	}
	var err error
	if k.metrics, err = newMetrics(deps.Registerer, k.Status); err != nil {
		_ = k.journal.close() // the first error is the one to report
		return nil, fmt.Errorf("metrics of Idempotency-Keys: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.wg.Go(func() { k.run(ctx) })
	k.signal()
	return k, nil
}

// Close stops the settler and closes the journal. Call it when no request is
// under way and what is passed on to has closed.
func (k *Keys) Close() error {
	k.mu.Lock()
	was := k.closed
	k.closed = true
	k.mu.Unlock()
	if was {
		return nil
	}
	k.cancel()
	k.wg.Wait()
	k.keepLanded()
	return k.journal.close()
}

// Status is what is remembered, for people.
type Status struct {
	Keys  int   `json:"keys"`
	Open  int   `json:"open"` // with records whose fate is not known yet
	Bytes int64 `json:"bytes"`
	// Damaged are stretches of the journal that could not be read at the start:
	// the keys in them are forgotten.
	Damaged int    `json:"damaged,omitempty"`
	Error   string `json:"error,omitempty"` // why requests with a key are refused
}

// Status counts what is remembered.
func (k *Keys) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := Status{Keys: len(k.entries), Open: len(k.open), Bytes: k.bytes, Damaged: k.journal.damage}
	if err := k.Err(); err != nil {
		s.Error = err.Error()
	}
	return s
}

// Err is why requests with a key are refused until a restart: a write of the
// journal failed in a way that nothing later can be trusted to. nil while they
// are not. A full disk is no such error, it passes.
func (k *Keys) Err() error { return k.journal.log.Offline() }

// Check looks whether the journal is still at its path, where nothing is written
// to it; call it each second or so. When it is not, Err says so.
func (k *Keys) Check() { _ = k.journal.log.Check() } // a failure is in the log and in Err

// maxKey is the longest key in bytes.
const maxKey = 255

// Publish passes a message on unless its key has an answer.
func (k *Keys) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	if o.IdempotencyKey == "" {
		return k.next.Publish(ctx, topic, m, o)
	}
	results, millis, err := k.publish(ctx, topic, []publish.Message{m}, o, false)
	if err != nil {
		return api.Published{}, err
	}
	r := results[0]
	if r.Error != nil {
		return api.Published{}, r.Error
	}
	return api.Published{Topic: topic, Partition: r.Partition, Offset: r.Offset, Timestamp: millis, SpoolID: r.SpoolID}, nil
}

// PublishBatch passes messages on, those that its key has no answer for.
func (k *Keys) PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	if o.IdempotencyKey == "" {
		return k.next.PublishBatch(ctx, topic, ms, o)
	}
	results, _, err := k.publish(ctx, topic, ms, o, true)
	return results, err
}

func (k *Keys) publish(ctx context.Context, topic string, ms []publish.Message, o publish.Options, batch bool) ([]api.BatchResult, int64, error) {
	if len(o.IdempotencyKey) > maxKey {
		return nil, 0, api.NewError(api.CodeBadRequest, fmt.Sprintf("%s: it has %d bytes: use at most %d", api.HeaderIdempotencyKey, len(o.IdempotencyKey), maxKey))
	}
	if len(ms) == 0 {
		return []api.BatchResult{}, 0, nil
	}
	if o.Timeout == 0 {
		o.Timeout = k.deps.Timeout
	}
	o.Timeout = min(o.Timeout, k.deps.MaxTimeout)
	if o.Begun.IsZero() {
		o.Begun = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, o.Begun.Add(o.Timeout))
	defer cancel()

	key, request := keyDigest(o.IdempotencyKey), requestDigest(topic, ms, o.Ack, batch)
	for waited := false; ; waited = true {
		c := k.claim(key, request, func() *entry {
			return &entry{key: key, request: request, topic: topic, ack: o.Ack, batch: batch, count: len(ms), millis: millisOf(ms[0])}
		})
		switch {
		case c.conflict:
			k.metrics.requests.WithLabelValues("conflict").Inc()
			return nil, 0, conflict(o.IdempotencyKey)
		case c.busy != nil:
			if !waited {
				k.metrics.requests.WithLabelValues("waited").Inc()
			}
			select {
			case <-c.busy:
				continue
			case <-ctx.Done():
				return nil, 0, unknown("the first request with this Idempotency-Key is still under way")
			}
		case c.done:
			k.metrics.requests.WithLabelValues("replayed").Inc()
			replayed(o)
			return resultsOf(c.fates, nil, ""), c.millis, nil
		}
		w := &work{k: k, ctx: ctx, e: c.e, fates: c.fates, topic: topic, ms: ms, o: o, batch: batch}
		return w.do()
	}
}

// millisOf is the timestamp of a message alone, which its answer has: a repeat
// has the same.
func millisOf(m publish.Message) int64 {
	if m.Timestamp.IsZero() {
		return time.Now().UnixMilli()
	}
	return m.Timestamp.UnixMilli()
}

// replayed tells the caller that the answer is that of an earlier request, and
// whoever waits for the order of the messages that they have their place.
func replayed(o publish.Options) {
	if o.Replayed != nil {
		o.Replayed()
	}
	if o.Entered != nil {
		o.Entered()
	}
	if o.Landed != nil {
		o.Landed(nil)
	}
}

func conflict(key string) *api.Error {
	return api.NewError(api.CodeIdempotencyConflict, fmt.Sprintf(
		"the %s %q came with another request before: another topic, body, key, partition, ts, header or ack; nothing of this one was written: use a key of its own for each request", api.HeaderIdempotencyKey, key))
}

func unknown(why string) *api.Error {
	return api.NewError(api.CodeUnknownOutcome, "the message may or may not be written: "+why+"; repeat the request with the same "+api.HeaderIdempotencyKey)
}

// resultsOf are the answers for fates; errs are those of the records that are
// not written, as far as there are any. why is what kept open ones from being found
// out, "" where that is not known.
func resultsOf(fates []fate, errs []*api.Error, why string) []api.BatchResult {
	results := make([]api.BatchResult, len(fates))
	var unheard, unsent *api.Error // shared: a batch may have many
	for i, f := range fates {
		r := &results[i]
		r.Partition, r.Offset = f.partition, -1
		switch {
		case f.kind == written:
			r.Offset = f.offset
		case f.kind == spooled:
			r.SpoolID = f.spool
		case errs != nil && errs[i] != nil:
			r.Error = errs[i]
		case f.kind == open:
			if unheard == nil {
				unheard = unknown(strings.TrimSuffix("its fate could not be found out yet: "+why, ": "))
			}
			r.Error = unheard
		default:
			if unsent == nil {
				unsent = api.NewError(api.CodeBrokersUnavailable, "it is not written, and is not sent again before the fate of others of its request is known")
				unsent.RetryAfterMillis = 1000
			}
			r.Error = unsent
		}
	}
	return results
}
