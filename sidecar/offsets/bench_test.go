package offsets

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sidestream/discovery"
)

// flaky is a store whose commits can be made to fail.
type flaky struct {
	discovery.Store
	mu      sync.Mutex // guards all below
	next    func(ops []discovery.Op) fault
	commits int
	ops     int
}

type fault int

const (
	none             fault = iota
	unavailable            // not applied
	lostBefore             // outcome unknown, not applied
	lostAfter              // outcome unknown, applied
	namelessConflict       // a conflict comes without the op that it is about
	falseConflict          // a nameless conflict although nothing conflicts
)

func (f *flaky) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	f.mu.Lock()
	f.commits++
	f.ops += len(ops)
	fail := none
	if f.next != nil {
		fail = f.next(ops)
	}
	f.mu.Unlock()
	switch fail {
	case unavailable:
		return nil, fmt.Errorf("test: %w", discovery.ErrUnavailable)
	case lostBefore:
		return nil, fmt.Errorf("test: %w", discovery.ErrUnknownOutcome)
	case falseConflict:
		return nil, &discovery.ConflictError{Op: -1, What: "test"}
	}
	entries, err := f.Store.Commit(ctx, ops...)
	var conflict *discovery.ConflictError
	switch {
	case fail == lostAfter:
		return nil, fmt.Errorf("test: %w", discovery.ErrUnknownOutcome)
	case fail == namelessConflict && errors.As(err, &conflict):
		return nil, &discovery.ConflictError{Op: -1, What: conflict.What}
	}
	return entries, err
}

func (f *flaky) fail(next func(ops []discovery.Op) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = next
}

func (f *flaky) count() (commits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// failNext makes the next commits fail in turn, then none.
func (f *flaky) failNext(faults ...fault) {
	f.fail(func([]discovery.Op) fault {
		if len(faults) == 0 {
			return none
		}
		next := faults[0]
		faults = faults[1:]
		return next
	})
}

// bench is a memory store with sidecars on it.
type bench struct {
	t     testing.TB
	ctx   context.Context
	mem   *discovery.Memory
	store *flaky
}

func newBench(t testing.TB) *bench {
	t.Helper()
	mem, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, ctx: context.Background(), mem: mem, store: &flaky{Store: mem}}
}

func (b *bench) close() {
	if err := b.mem.Close(); err != nil {
		b.t.Error(err)
	}
}

type host struct {
	*Checkpointer
	session discovery.Session
}

func (b *bench) host(name string) *host {
	b.t.Helper()
	s, err := b.mem.NewSession(b.ctx, name)
	if err != nil {
		b.t.Fatal(err)
	}
	opt := CheckpointOptions{Owner: name, Nonce: name + "-nonce"}
	if t, ok := b.t.(*testing.T); ok {
		opt.Logger = zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
	}
	return &host{NewCheckpointer(b.store, opt), s}
}

// lock gives the owner key to a host; nil takes it away.
func (b *bench) lock(key Key, h *host) {
	b.t.Helper()
	owner := discovery.KeyOwner(key.Group, key.Topic, key.Partition)
	if _, err := b.mem.Commit(b.ctx, discovery.Delete(owner)); err != nil {
		b.t.Fatal(err)
	}
	if h == nil {
		return
	}
	if _, err := b.mem.Commit(b.ctx, discovery.Acquire(owner, []byte(h.opt.Owner), h.session.ID())); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) claim(key Key, h *host, own Position) Stored {
	b.t.Helper()
	b.lock(key, h)
	s, err := h.Claim(b.ctx, key, h.session.ID(), own)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) flush(h *host, key Key) {
	b.t.Helper()
	if err := h.FlushKey(b.ctx, key); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) stored(key Key) Stored {
	b.t.Helper()
	e, err := b.mem.Get(b.ctx, discovery.KeyOffset(key.Group, key.Topic, key.Partition))
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := DecodeStored(e)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) expect(key Key, generation uint64, owner string, p Position) {
	b.t.Helper()
	s := b.stored(key)
	if s.Generation != generation || s.Owner != owner || !s.Position.Equal(p) {
		b.t.Errorf("stored is %+v; want generation %d, owner %s, %+v", s, generation, owner, p)
	}
}

var p0 = Key{"g", "orders", 0}

func acked(low int64, ranges ...Range) Position {
	return Position{Topic: "A", Low: low, HandOut: low, Acked: ranges}
}

func (b *bench) generation(h *host) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries[p0].author.generation
}
