package consume

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/sidecar/upstream"
)

// reader reads partitions ahead for their owners: one Fetch at a time to each
// broker, for all partitions that it leads and that have room. It sends the
// requests itself instead of polling a consumer, because a consumer's poll says
// nothing of a tail that holds no records (control records, aborted
// transactions, what compaction removed), and a group's position must move over
// it.
type reader struct {
	client  *kgo.Client
	up      Upstream
	cfg     Config
	metrics *metrics
	log     *zap.Logger
	unpack  *upstream.Unpacking

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	find   chan struct{} // wakes the finder

	budget budget // of what all owners hold

	mu      sync.Mutex // guards cursors, workers and the placed and removed fields of the cursors
	cursors map[*cursor]struct{}
	workers map[int32]chan struct{} // by broker: wakes its worker
}

// sink is the owner of a partition as the reader sees it. Calls for one cursor
// come one after the other.
type sink interface {
	// room is the offset to read next, and the bytes there is room for: 0 when
	// nothing is wanted now.
	room() (offset int64, bytes int)
	// holds is how many bytes it holds already.
	holds() int
	// accept takes what a fetch from offset returned, and where to go on. An
	// offset that is no longer the one to read next is ignored.
	accept(offset int64, part kgo.FetchPartition, next int64)
	// outOfRange says that the broker does not have the offset.
	outOfRange(offset int64)
	// trouble says why the partition cannot be read for now, "" when it can.
	trouble(why string)
	// corrupt says that there are records at u.offset which nobody can read, so
	// that waiting does not help.
	corrupt(u unreadable)
	// missing says that the brokers do not know the topic (by its name or id).
	missing()
}

// cursor is a partition that is read.
type cursor struct {
	topic     string
	topicID   [16]byte // zero where the brokers have none
	partition int32
	sink      sink

	placed  int32 // the broker that leads it, noBroker while that is not known
	removed bool

	// Of the finder while it is not placed, of the broker's worker while it is.
	failures int
	retryAt  time.Time
	stuckAt  int64   // the offset that retryAt is about while the cursor is placed
	fetched  bool    // a fetch has answered since it was added
	shared   int     // bytes of the answer that the records delivered next keep in memory, if it is shared with others
	growth   float64 // bytes in memory for each byte fetched, as last seen; 0: not known
}

const noBroker = int32(-1)

// fetchOverhead is how much longer than it may wait a fetch may take before the
// connection counts as dead.
const fetchOverhead = 5 * time.Second

func newReader(up Upstream, cfg Config, m *metrics, log *zap.Logger) (*reader, error) {
	client, err := up.Client(kgo.RequestTimeoutOverhead(fetchOverhead))
	if err != nil {
		return nil, err
	}
	r := &reader{
		client: client, up: up, cfg: cfg, metrics: m, log: log,
		unpack:  up.Unpacking(),
		find:    make(chan struct{}, 1),
		budget:  budget{limit: cfg.ProcessBytes, over: up.Unpacking().Size()},
		cursors: map[*cursor]struct{}{},
		workers: map[int32]chan struct{}{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

func (r *reader) start() {
	r.wg.Go(r.runFinder)
}

func (r *reader) close() {
	r.cancel()
	r.wg.Wait()
	r.client.Close()
}

// add begins to read a partition.
func (r *reader) add(topic string, topicID [16]byte, partition int32, s sink) *cursor {
	c := &cursor{topic: topic, topicID: topicID, partition: partition, sink: s, placed: noBroker}
	r.mu.Lock()
	r.cursors[c] = struct{}{}
	r.mu.Unlock()
	r.kickFinder()
	return c
}

// remove stops reading. A fetch that is out may still be delivered.
func (r *reader) remove(c *cursor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.removed = true
	delete(r.cursors, c)
	r.wakeWorker(c.placed)
}

// wake says that a cursor may have room again.
func (r *reader) wake(c *cursor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeWorker(c.placed)
}

// hold accounts for bytes that an owner holds (n > 0) or let go (n < 0).
func (r *reader) hold(n int64) {
	if n == 0 {
		return
	}
	now, freed := r.budget.add(n)
	r.metrics.buffered.Set(float64(now))
	// Whoever found the process full waits for no event of its own.
	if freed {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id := range r.workers {
			r.wakeWorker(id)
		}
	}
}

// wakeWorker needs mu.
func (r *reader) wakeWorker(broker int32) {
	if wake, ok := r.workers[broker]; ok {
		kick(wake)
	}
}

func (r *reader) kickFinder() { kick(r.find) }

// kick wakes whoever waits on a channel of capacity 1.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// runFinder places cursors: it asks for the leaders of those that have none.
func (r *reader) runFinder() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := r.unplaced(time.Now())
		if len(due) > 0 {
			r.place(due)
			continue
		}
		if next > 0 {
			timer.Reset(next)
		}
		select {
		case <-r.ctx.Done():
			return
		case <-r.find:
		case <-timer.C:
		}
	}
}

// unplaced are the cursors to find a leader for now, and how long to wait when
// there are none (0: until one is added).
func (r *reader) unplaced(now time.Time) (due []*cursor, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.cursors {
		switch {
		case c.placed != noBroker:
		case !c.retryAt.After(now):
			due = append(due, c)
		case next == 0 || c.retryAt.Sub(now) < next:
			next = c.retryAt.Sub(now)
		}
	}
	return due, next
}

// place asks the brokers for the leaders of cursors. The request goes through
// the reader's own client so that the client learns the brokers' addresses too.
func (r *reader) place(cs []*cursor) {
	topics := map[string]bool{}
	for _, c := range cs {
		topics[c.topic] = true
	}
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	ctx, cancel := context.WithTimeout(r.ctx, fetchOverhead)
	defer cancel()
	resp, err := req.RequestWith(ctx, r.client)
	if r.ctx.Err() != nil {
		return
	}
	if err != nil {
		for _, c := range cs {
			r.fail(c, "no broker answers: "+err.Error())
		}
		return
	}
	type found struct {
		id      [16]byte
		err     error
		leaders map[int32]int32
	}
	by := map[string]found{}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		f := found{id: t.TopicID, err: kerr.ErrorForCode(t.ErrorCode), leaders: map[int32]int32{}}
		for _, p := range t.Partitions {
			f.leaders[p.Partition] = p.Leader
		}
		by[*t.Topic] = f
	}
	for _, c := range cs {
		f, ok := by[c.topic]
		leader, known := f.leaders[c.partition]
		switch {
		case ok && errors.Is(f.err, kerr.UnknownTopicOrPartition),
			ok && f.err == nil && c.topicID != [16]byte{} && f.id != [16]byte{} && f.id != c.topicID:
			r.fail(c, "the brokers do not know the topic")
			c.sink.missing()
		case !ok || f.err != nil && !errors.Is(f.err, kerr.LeaderNotAvailable):
			r.fail(c, "the brokers tell no partitions of the topic")
		case !known || leader < 0:
			r.fail(c, "the partition has no leader")
		default:
			r.settle(c, leader)
		}
	}
}

// settle hands a cursor to the worker of its leader.
func (r *reader) settle(c *cursor, broker int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.removed {
		return
	}
	c.placed = broker
	c.retryAt = time.Time{}
	wake, ok := r.workers[broker]
	if !ok {
		wake = make(chan struct{}, 1)
		r.workers[broker] = wake
		r.wg.Go(func() { r.runWorker(broker, wake) })
	}
	kick(wake)
}

// fail gives a cursor back to the finder, to be tried again after a pause.
func (r *reader) fail(c *cursor, why string) {
	r.metrics.fetchErrors.Inc()
	c.failures++
	pause := backOff(c.failures, 50*time.Millisecond, 2*time.Second)
	r.log.Debug("partition cannot be read, trying again",
		zap.String("topic", c.topic), zap.Int32("partition", c.partition), zap.String("why", why), zap.Duration("pause", pause))
	c.sink.trouble(why)
	r.mu.Lock()
	c.retryAt = time.Now().Add(pause)
	c.placed = noBroker
	r.mu.Unlock()
	r.kickFinder()
}

// standStill leaves a cursor where it is, at records that cannot be read. They
// are looked at again now and then: a disk may have been mended, or another
// broker may lead. Whoever seeks past them goes on at once.
func (r *reader) standStill(c *cursor, u unreadable) {
	r.metrics.fetchErrors.Inc()
	c.failures++
	c.fetched, c.stuckAt = true, u.offset
	c.retryAt = time.Now().Add(backOff(c.failures, time.Second, 30*time.Second))
	c.sink.corrupt(u)
}

// backOff is the pause after so many failures: doubling from first to last,
// with jitter so that many do not come back at once.
func backOff(failures int, first, last time.Duration) time.Duration {
	d := last
	if shift := failures - 1; shift < 20 && first<<max(0, shift) < last {
		d = first << max(0, shift)
	}
	return d/2 + rand.N(d/2+1)
}
