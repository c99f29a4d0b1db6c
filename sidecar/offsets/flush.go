package offsets

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/discovery"
)

// flushRounds bounds how often one flush starts over for keys that others
// change at the same time; what is left waits for the next interval.
const flushRounds = 8

// attempt is one key's part in a commit.
type attempt struct {
	key    Key
	marked uint64 // of the entry when it was decided
	author author
	value  Stored
	ops    []discovery.Op // one CAS, after a holder check where that is needed
	bytes  int
}

// flush writes the marks of keys. Conflicts are settled by reading and merging
// again. The caller has the turn.
func (c *Checkpointer) flush(ctx context.Context, keys []Key) error {
	for round := range flushRounds {
		attempts, err := c.decideAll(ctx, keys)
		if err != nil {
			return err
		}
		if len(attempts) == 0 {
			return nil
		}
		keys = keys[:0:0]
		for len(attempts) > 0 {
			n := fit(attempts)
			again, err := c.commit(ctx, attempts[:n], round)
			if err != nil {
				return err
			}
			keys = append(keys, again...)
			attempts = attempts[n:]
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d positions changed at each of %d attempts", discovery.ErrConflict, len(keys), flushRounds)
}

// fit is how many attempts one commit takes.
func fit(attempts []attempt) (n int) {
	ops, bytes := 0, 0
	for _, a := range attempts {
		ops += len(a.ops)
		bytes += a.bytes
		if n > 0 && (ops > discovery.MaxCommitOps || bytes > discovery.MaxCommitBytes) {
			break
		}
		n++
	}
	return n
}

// decideAll decides for each key what to write, reading what is not known.
// Marks that need no write are cleared.
func (c *Checkpointer) decideAll(ctx context.Context, keys []Key) ([]attempt, error) {
	var attempts []attempt
	for _, key := range keys {
		e, dirty := c.snapshot(key)
		if !dirty {
			continue
		}
		if !e.seen.known {
			found, err := c.read(ctx, key)
			if err != nil {
				return nil, err
			}
			e.seen = found
			c.update(key, func(now *entry) { now.seen = found })
		}
		act, value := decide(e.author, e.mark, e.seen)
		switch act {
		case unchanged:
			c.clean(key, e.marked)
			continue
		case drop:
			c.metrics.dropped.Inc()
			c.log.Info("a late position was dropped: the partition was sought, claimed or made again since",
				zap.Stringer("key", key), zap.Uint64("generation", e.author.generation))
			c.clean(key, e.marked)
			continue
		}
		if value.Owner == c.opt.Owner && value.Generation == e.author.generation {
			value.Nonce = c.opt.Nonce
		}
		value.Writer = c.nextWriter()
		a := attempt{key: key, marked: e.marked, author: e.author, value: value}
		if act == writeHeld {
			a.ops = append(a.ops, discovery.Held(discovery.KeyOwner(key.Group, key.Topic, key.Partition), e.author.session))
		}
		offsetKey, b := discovery.KeyOffset(key.Group, key.Topic, key.Partition), discovery.Encode(value)
		a.ops = append(a.ops, discovery.CAS(offsetKey, b, e.seen.version))
		a.bytes = 2*len(offsetKey) + len(b)
		attempts = append(attempts, a)
	}
	return attempts, nil
}

// commit writes attempts in one commit; again are the keys to decide anew. A
// store names one conflict at a time, so from the second round on all of a
// commit that conflicts is read again.
func (c *Checkpointer) commit(ctx context.Context, attempts []attempt, round int) (again []Key, err error) {
	var ops []discovery.Op
	var of []int // attempt by op
	for i, a := range attempts {
		for range a.ops {
			of = append(of, i)
		}
		ops = append(ops, a.ops...)
	}
	written, err := c.store.Commit(ctx, ops...)
	var conflict *discovery.ConflictError
	switch {
	case err == nil:
		c.metrics.commits.WithLabelValues("ok").Inc()
		for i, a := range attempts {
			c.wrote(a, written[i])
		}
		return nil, nil
	case errors.As(err, &conflict) && conflict.Op >= 0 && conflict.Op < len(ops):
		c.metrics.commits.WithLabelValues("conflict").Inc()
		for i, a := range attempts {
			if named := i == of[conflict.Op]; named || round > 0 {
				c.contest(a, named && ops[conflict.Op].Verb == discovery.VerbHeld)
			}
		}
	case (errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrTooLarge)) && len(attempts) > 1:
		// The store did not say which: find out one by one.
		for i := range attempts {
			keys, err := c.commit(ctx, attempts[i:i+1], round)
			if err != nil {
				return nil, err
			}
			again = append(again, keys...)
		}
		return again, nil
	case errors.Is(err, discovery.ErrConflict), errors.Is(err, discovery.ErrSessionLost):
		c.metrics.commits.WithLabelValues("conflict").Inc()
		for _, a := range attempts {
			c.contest(a, a.ops[0].Verb == discovery.VerbHeld && c.notHeld(ctx, a.ops[0]))
		}
	case errors.Is(err, discovery.ErrUnknownOutcome):
		c.metrics.commits.WithLabelValues("unknown").Inc()
		for _, a := range attempts {
			c.contest(a, false)
		}
	default:
		c.metrics.commits.WithLabelValues("error").Inc()
		return nil, err
	}
	for _, a := range attempts {
		again = append(again, a.key)
	}
	return again, nil
}

// wrote remembers what a commit wrote.
func (c *Checkpointer) wrote(a attempt, found discovery.Entry) {
	if _, dropped := a.value.Position.Encode(); dropped > 0 {
		c.metrics.ranges.Add(float64(dropped))
	}
	c.metrics.keys.Inc()
	c.update(a.key, func(e *entry) {
		e.seen = seen{known: true, exists: true, version: found.Version, created: found.Created, stored: a.value}
		if len(a.ops) > 1 && e.author == a.author {
			e.author.created = found.Created // ours, proven by the lock
		}
		if e.marked == a.marked {
			e.dirty, e.mark = false, Position{}
		}
	})
}

// contest notes that the store may hold something else than was seen, or that
// the session does not hold the owner key any more.
func (c *Checkpointer) contest(a attempt, lostLock bool) {
	c.update(a.key, func(e *entry) {
		e.seen = seen{}
		if lostLock && e.author == a.author {
			e.author.session = ""
		}
	})
}

// clean clears a mark that needs no write, unless there is a newer one.
func (c *Checkpointer) clean(key Key, marked uint64) {
	c.update(key, func(e *entry) {
		if e.marked == marked {
			e.dirty, e.mark = false, Position{}
		}
	})
}

// update changes a key's entry, if it is still there.
func (c *Checkpointer) update(key Key, change func(*entry)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		change(e)
	}
}

// snapshot copies a key's entry; dirty is false when there is nothing to write.
func (c *Checkpointer) snapshot(key Key) (e entry, dirty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.entries[key]
	if now == nil || !now.dirty {
		return entry{}, false
	}
	e = *now
	e.mark = e.mark.Clone()
	return e, true
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

type checkpointMetrics struct {
	commits *prometheus.CounterVec
	claims  *prometheus.CounterVec
	keys    prometheus.Counter
	ranges  prometheus.Counter
	dropped prometheus.Counter
}

func newCheckpointMetrics(r prometheus.Registerer, pending func() int) checkpointMetrics {
	m := checkpointMetrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_offsets_checkpoint_commits_total",
			Help: "Commits of positions to the coordination store by result: ok, conflict, unknown or error.",
		}, []string{"result"}),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_offsets_claims_total",
			Help: "Claims of partitions by result: ok or error.",
		}, []string{"result"}),
		keys: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_offsets_checkpoint_positions_total",
			Help: "Positions written to the coordination store.",
		}),
		ranges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_offsets_checkpoint_dropped_ranges_total",
			Help: "Acknowledged ranges left out of a written position because it would not have fitted.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_offsets_checkpoint_late_total",
			Help: "Positions dropped because the partition was sought or claimed in another life since.",
		}),
	}
	if r != nil {
		r.MustRegister(m.commits, m.claims, m.keys, m.ranges, m.dropped, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_offsets_checkpoint_pending_positions",
			Help: "Positions that wait to be written to the coordination store.",
		}, func() float64 { return float64(pending()) }))
	}
	return m
}
