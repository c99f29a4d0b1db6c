// Package committed keeps in the coordination store the offsets that Kafka
// consumers without group membership commit to the cluster. What comes within a
// short time is written in one commit a host, so that the whole cluster stays
// within a fixed number of commits a second; a commit is answered when it is
// stored.
package committed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

const (
	// clusterRate is how many commits a second all hosts may make together,
	// half of what a coordination store is good for beside its other work.
	clusterRate = 50
	// readParallel is how many keys are read at once.
	readParallel = 8
	// cacheKeys bounds how many values are remembered, which saves reading a key
	// before it is written.
	cacheKeys = 4096
)

// Pace is the time between two commits of one host in a cluster of so many.
func Pace(hosts int) time.Duration {
	return time.Duration(max(1, hosts)) * time.Second / clusterRate
}

// Options of a keeper.
type Options struct {
	Timeout time.Duration        // of one call of the store; positive
	Pace    func() time.Duration // least time between two commits
	Logger  *zap.Logger          // nil: none
	// Topic is the name of a topic, which must be known to be live for offsets of
	// it to be stored. Nil: offsets are stored whatever becomes of their topics.
	Topic func(cluster.UUID) (name string, known bool)
}

// Keeper reads and writes committed offsets. Its methods may be called from
// several goroutines; Run must run for commits to be stored.
type Keeper struct {
	store  discovery.Store
	opt    Options
	wake   chan struct{}
	known  map[keyOf]stored       // what was read or written last; owned by Run
	topics map[cluster.UUID]guard // likewise, of the topics
	fails  bool                   // the last round failed; owned by Run

	mu      sync.Mutex // guards everything below
	ended   bool
	order   []keyOf // of waiting, oldest first
	waiting map[keyOf]*pending
	flying  map[keyOf]*pending // being stored now
}

type stored struct {
	value   discovery.Committed
	version uint64
}

// pending is what is to be stored under one key, and who waits for it.
type pending struct {
	offsets map[int32]cluster.CommittedOffset
	tickets []*ticket
}

// ticket is one caller's wait for all of its keys. It is counted down under the
// keeper's mu.
type ticket struct {
	left int
	err  error
	done chan struct{}
}

// New makes a keeper.
func New(store discovery.Store, opt Options) *Keeper {
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	return &Keeper{store: store, opt: opt, wake: make(chan struct{}, 1), known: map[keyOf]stored{}, topics: map[cluster.UUID]guard{},
		waiting: map[keyOf]*pending{}, flying: map[keyOf]*pending{}}
}

// Commit stores the offsets of a group and returns when they are stored. Of two
// commits of a partition the later one wins. When ctx ends first the offsets may
// be stored all the same.
func (k *Keeper) Commit(ctx context.Context, group string, offsets map[cluster.PartitionID]cluster.CommittedOffset) error {
	if len(offsets) == 0 {
		return nil
	}
	byKey := split(group, offsets)
	t := &ticket{left: len(byKey), done: make(chan struct{})}
	k.mu.Lock()
	if k.ended {
		k.mu.Unlock()
		return fmt.Errorf("%w: this broker is stopping", cluster.ErrUnavailable)
	}
	for key, newer := range byKey {
		p := k.waiting[key]
		if p == nil {
			p = &pending{offsets: map[int32]cluster.CommittedOffset{}}
			k.waiting[key] = p
			k.order = append(k.order, key)
		}
		maps.Copy(p.offsets, newer)
		p.tickets = append(p.tickets, t)
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run stores what is committed until ctx ends; who waits then is told so.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.end()
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return nil
		}
		for k.round(ctx) {
			timer := time.NewTimer(k.opt.Pace())
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
		}
	}
}

// end answers who still waits.
func (k *Keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	for _, p := range k.waiting {
		settle(p, fmt.Errorf("%w: this broker is stopping", cluster.ErrUnavailable))
	}
	k.waiting, k.order = map[keyOf]*pending{}, nil
}

// settle tells who waits for p. mu is held.
func settle(p *pending, err error) {
	for _, t := range p.tickets {
		t.err = errors.Join(t.err, err)
		if t.left--; t.left == 0 {
			close(t.done)
		}
	}
}

// round stores as many of the waiting keys as one commit takes. It is false
// when nothing waited.
func (k *Keeper) round(ctx context.Context) bool {
	k.mu.Lock()
	keys := k.order[:min(len(k.order), discovery.MaxCommitOps)]
	k.order = slices.Clone(k.order[len(keys):])
	for _, key := range keys {
		k.flying[key] = k.waiting[key]
		delete(k.waiting, key)
	}
	k.mu.Unlock()
	if len(keys) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, k.opt.Timeout)
	defer cancel()
	failed := k.write(ctx, keys)
	k.tell(failed)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		settle(k.flying[key], failed[key])
		delete(k.flying, key)
	}
	return true
}

// tell logs when storing begins to fail, and when it works again.
func (k *Keeper) tell(failed map[keyOf]error) {
	switch {
	case len(failed) == 0 && k.fails:
		k.opt.Logger.Info("committed offsets are stored again")
	case len(failed) > 0 && !k.fails:
		for _, err := range failed { // any
			k.opt.Logger.Warn("committed offsets could not be stored: consumers are told to try again", zap.Int("keys", len(failed)), zap.Error(err))
			break
		}
	}
	k.fails = len(failed) > 0
}

// write stores the keys, in several commits when they are large, and returns
// why some of them are not stored.
func (k *Keeper) write(ctx context.Context, keys []keyOf) map[keyOf]error {
	failed := map[keyOf]error{}
	fail := func(keys []keyOf, err error) {
		if !errors.Is(err, cluster.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		for _, key := range keys {
			failed[key] = err
		}
	}
	for lost := 0; ; lost++ {
		live, gone, err := k.guard(ctx, keys)
		fail(gone, errGone)
		if keys = live; err == nil {
			err = k.read(ctx, keys)
		}
		if err != nil {
			fail(keys, err)
			return failed
		}
		if len(keys) == 0 {
			return failed
		}
		ops, n := k.ops(keys)
		entries, err := k.store.Commit(ctx, ops...)
		if err == nil {
			k.learn(keys[:n], entries)
			keys = keys[n:]
			lost = -1
			continue
		}
		k.forget(keys[:n], err)
		again := errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrUnknownOutcome)
		if !again || !standBack(ctx, lost) {
			fail(keys, err)
			return failed
		}
	}
}

// read reads the keys that are not known.
func (k *Keeper) read(ctx context.Context, keys []keyOf) error {
	found := make([]*stored, len(keys))
	var g errgroup.Group
	g.SetLimit(readParallel)
	for i, key := range keys {
		if _, known := k.known[key]; known {
			continue
		}
		g.Go(func() error {
			e, err := k.store.Get(ctx, key.String())
			s := &stored{version: e.Version}
			switch {
			case errors.Is(err, discovery.ErrNotFound):
				s.version = 0
			case err != nil:
				return err
			default:
				if s.value, err = discovery.Decode[discovery.Committed](e); err != nil {
					return fmt.Errorf("key %s is not readable: %w", e.Key, err)
				}
			}
			found[i] = s
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, s := range found {
		if s != nil {
			k.remember(keys[i], *s)
		}
	}
	return nil
}

// ops are the writes of the first n keys, as many as fit in one commit and at
// least one, and after them the guards of their topics.
func (k *Keeper) ops(keys []keyOf) (ops []discovery.Op, n int) {
	now := time.Now()
	guards := map[cluster.UUID]discovery.Op{}
	size := 0
	for _, key := range keys {
		if len(ops)+len(guards)+2 > discovery.MaxCommitOps {
			break
		}
		k.mu.Lock()
		newer := k.flying[key].offsets // not changed while it flies
		k.mu.Unlock()
		s := k.known[key]
		op := discovery.CAS(key.String(), discovery.Encode(overlay(s.value, newer, now)), s.version)
		if size += len(op.Key) + len(op.Value); len(ops) > 0 && size > discovery.MaxCommitBytes {
			break
		}
		ops = append(ops, op)
		if g, guarded := k.topics[key.topic]; guarded {
			guards[key.topic] = discovery.Unchanged(g.key, g.version)
		}
	}
	n = len(ops)
	return slices.AppendSeq(ops, maps.Values(guards)), n
}

func (k *Keeper) learn(keys []keyOf, entries []discovery.Entry) {
	for i, key := range keys {
		if i >= len(entries) || entries[i].Key != key.String() {
			delete(k.known, key)
			continue
		}
		value, err := discovery.Decode[discovery.Committed](entries[i])
		if err != nil {
			delete(k.known, key)
			continue
		}
		k.remember(key, stored{value, entries[i].Version})
	}
}

func (k *Keeper) remember(key keyOf, s stored) {
	if len(k.known) >= cacheKeys {
		for old := range k.known { // any: it only costs a read
			delete(k.known, old)
			if len(k.known) < cacheKeys*3/4 {
				break
			}
		}
	}
	k.known[key] = s
}

// forget drops what a failed commit has shown to be out of date.
func (k *Keeper) forget(keys []keyOf, err error) {
	var conflict *discovery.ConflictError
	if errors.As(err, &conflict) && conflict.Op >= 0 && conflict.Op < len(keys) {
		delete(k.known, keys[conflict.Op])
		return
	}
	for _, key := range keys {
		delete(k.known, key)
		delete(k.topics, key.topic)
	}
}

// Offsets reads what a group has stored, and what is on its way there from this
// host.
func (k *Keeper) Offsets(ctx context.Context, group string) (map[cluster.PartitionID]cluster.CommittedOffset, error) {
	// The pending ones are taken first: what is stored meanwhile is then in both.
	late := k.pendingOf(group)
	entries, err := k.list(ctx, discovery.PrefixCommittedBy(group))
	if err != nil {
		return nil, err
	}
	out := map[cluster.PartitionID]cluster.CommittedOffset{}
	for _, e := range entries {
		_, uuid, _, ok := discovery.SplitCommitted(e.Key)
		topic, err := cluster.ParseUUID(uuid)
		if !ok || err != nil {
			continue
		}
		value, err := discovery.Decode[discovery.Committed](e)
		if err != nil {
			return nil, fmt.Errorf("%w: key %s is not readable: %w", cluster.ErrUnavailable, e.Key, err)
		}
		for p, o := range value.Offsets {
			out[cluster.PartitionID{Topic: topic, Partition: p}] = unpack(o)
		}
	}
	maps.Copy(out, late)
	return out, nil
}

func (k *Keeper) pendingOf(group string) map[cluster.PartitionID]cluster.CommittedOffset {
	out := map[cluster.PartitionID]cluster.CommittedOffset{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, from := range []map[keyOf]*pending{k.flying, k.waiting} { // the later over the earlier
		for key, p := range from {
			if key.group != group {
				continue
			}
			for n, o := range p.offsets {
				out[cluster.PartitionID{Topic: key.topic, Partition: n}] = o
			}
		}
	}
	return out
}

func (k *Keeper) list(ctx context.Context, prefix string) ([]discovery.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, k.opt.Timeout)
	defer cancel()
	entries, err := k.store.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
	}
	return entries, nil
}

// Groups lists the groups that have stored offsets, sorted.
func (k *Keeper) Groups(ctx context.Context) ([]string, error) {
	entries, err := k.list(ctx, discovery.PrefixCommitted)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if group, _, _, ok := discovery.SplitCommitted(e.Key); ok {
			out = append(out, group)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
