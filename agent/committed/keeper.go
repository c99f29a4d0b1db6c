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
	"strings"
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
	// roundTries bounds how often one commit is tried after conflicts.
	roundTries = 8
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
}

// Keeper reads and writes committed offsets. Its methods may be called from
// several goroutines; Run must run for commits to be stored.
type Keeper struct {
	store discovery.Store
	opt   Options
	wake  chan struct{}
	known map[keyOf]stored // what was read or written last; owned by Run
	fails bool             // the last round failed; owned by Run

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
	return &Keeper{store: store, opt: opt, wake: make(chan struct{}, 1), known: map[keyOf]stored{},
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
	written, err := k.write(ctx, keys)
	if err == nil && k.fails {
		k.opt.Logger.Info("committed offsets are stored again")
	}
	if err != nil && !k.fails {
		k.opt.Logger.Warn("committed offsets could not be stored: consumers are told to try again", zap.Int("keys", len(keys)-written), zap.Error(err))
	}
	k.fails = err != nil
	if err != nil {
		if !errors.Is(err, cluster.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, key := range keys {
		if i < written {
			settle(k.flying[key], nil)
		} else {
			settle(k.flying[key], err)
		}
		delete(k.flying, key)
	}
	return true
}

// write stores the keys, in several commits when they are large, and returns
// how many of them, from the first on, are stored.
func (k *Keeper) write(ctx context.Context, keys []keyOf) (written int, err error) {
	for tries := 0; written < len(keys); tries++ {
		rest := keys[written:]
		if err := k.read(ctx, rest); err != nil {
			return written, err
		}
		ops := k.ops(rest)
		entries, err := k.store.Commit(ctx, ops...)
		if err == nil {
			k.learn(rest[:len(ops)], entries)
			written += len(ops)
			tries = 0
			continue
		}
		k.forget(rest[:len(ops)], err)
		if tries >= roundTries || !errors.Is(err, discovery.ErrConflict) && !errors.Is(err, discovery.ErrUnknownOutcome) {
			return written, err
		}
	}
	return written, nil
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

// ops are the writes of the first keys, as many as fit in one commit and at
// least one.
func (k *Keeper) ops(keys []keyOf) []discovery.Op {
	now := time.Now()
	var ops []discovery.Op
	size := 0
	for _, key := range keys {
		k.mu.Lock()
		newer := k.flying[key].offsets // not changed while it flies
		k.mu.Unlock()
		s := k.known[key]
		op := discovery.CAS(key.String(), discovery.Encode(overlay(s.value, newer, now)), s.version)
		if size += len(op.Key) + len(op.Value); len(ops) > 0 && size > discovery.MaxCommitBytes {
			break
		}
		ops = append(ops, op)
	}
	return ops
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

// Drop forgets the offsets of those partitions, or with nil all of the group.
// A commit that is on its way is stored after it.
func (k *Keeper) Drop(ctx context.Context, group string, which []cluster.PartitionID) error {
	for tries := 0; ; tries++ {
		entries, err := k.list(ctx, discovery.PrefixCommittedBy(group))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("%w: %q has no stored offsets", cluster.ErrUnknownGroup, group)
		}
		ops, err := without(entries, which)
		if err != nil {
			return err
		}
		err = k.commitAll(ctx, ops)
		if err == nil || tries >= roundTries || !errors.Is(err, discovery.ErrConflict) {
			return err
		}
	}
}

func (k *Keeper) commitAll(ctx context.Context, ops []discovery.Op) error {
	for len(ops) > 0 {
		n, size := 0, 0
		for n < len(ops) && n < discovery.MaxCommitOps && (n == 0 || size+len(ops[n].Value) < discovery.MaxCommitBytes) {
			size += len(ops[n].Key) + len(ops[n].Value)
			n++
		}
		call, cancel := context.WithTimeout(ctx, k.opt.Timeout)
		_, err := k.store.Commit(call, ops[:n]...)
		cancel()
		switch {
		case errors.Is(err, discovery.ErrConflict):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		ops = ops[n:]
	}
	return nil
}

// without is what takes partitions out of the entries of a group.
func without(entries []discovery.Entry, which []cluster.PartitionID) ([]discovery.Op, error) {
	var ops []discovery.Op
	for _, e := range entries {
		if which == nil {
			ops = append(ops, discovery.DeleteCAS(e.Key, e.Version))
			continue
		}
		value, err := discovery.Decode[discovery.Committed](e)
		if err != nil {
			return nil, fmt.Errorf("%w: key %s is not readable: %w", cluster.ErrUnavailable, e.Key, err)
		}
		changed := false
		for _, id := range which {
			_, uuid, shard, _ := discovery.SplitCommitted(e.Key)
			if uuid != id.Topic.String() || shard != int(id.Partition)/discovery.ShardPartitions {
				continue
			}
			if _, there := value.Offsets[id.Partition]; there {
				delete(value.Offsets, id.Partition)
				changed = true
			}
		}
		switch {
		case !changed:
		case len(value.Offsets) == 0:
			ops = append(ops, discovery.DeleteCAS(e.Key, e.Version))
		default:
			value.Writer = discovery.NewNonce()
			ops = append(ops, discovery.CAS(e.Key, discovery.Encode(value), e.Version))
		}
	}
	return ops, nil
}

// Of lists the keys that hold offsets of a topic, to be deleted with it.
func Of(entries []discovery.Entry, uuid string) []string {
	var keys []string
	for _, e := range entries {
		if _, id, _, ok := discovery.SplitCommitted(e.Key); ok && strings.EqualFold(id, uuid) {
			keys = append(keys, e.Key)
		}
	}
	return keys
}
