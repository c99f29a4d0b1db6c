package offsets

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"pgregory.net/rapid"

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

func TestClaimRaisesTheGeneration(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	first := b.claim(p0, a, acked(10))
	if first.Generation != 1 || first.Owner != "a" || first.Nonce != "a-nonce" || !first.Position.Equal(acked(10)) {
		t.Errorf("first claim: %+v", first)
	}
	a.Mark(p0, 1, acked(12, Range{15, 17}))
	b.flush(a, p0)
	second := b.claim(p0, c, acked(11, Range{20, 21}))
	want := acked(12, Range{15, 17}, Range{20, 21})
	if second.Generation != 2 || second.Owner != "c" || !second.Position.Equal(want) {
		t.Errorf("second claim: %+v", second)
	}
	b.expect(p0, 2, "c", want)

	// What the claimer knows of the topic and of seeks decides.
	third := b.claim(p0, a, Position{Topic: "A", SeekEpoch: 1, Low: 3, HandOut: 3})
	if third.Generation != 3 || third.Position.Low != 3 || third.Position.Acked != nil {
		t.Errorf("claim after a seek: %+v", third)
	}
	if s := b.claim(p0, c, acked(0)); s.Generation != 4 || s.Position.SeekEpoch != 1 || s.Position.Low != 3 {
		t.Errorf("a claimer that has not heard of the seek must learn of it: %+v", s)
	}
	if s := b.claim(p0, c, Position{Topic: "B", Low: 1}); s.Generation != 5 || s.Position.Topic != "B" || s.Position.Low != 1 {
		t.Errorf("claim of a topic made again: %+v", s)
	}
}

func TestClaimNeedsTheLock(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	for name, faults := range map[string][]fault{"plain": nil, "nameless": {namelessConflict}} {
		b.lock(p0, c)
		b.store.failNext(faults...)
		if _, err := a.Claim(b.ctx, p0, a.session.ID(), acked(1)); !errors.Is(err, ErrNotOwner) {
			t.Errorf("%s: claim without the lock: %v", name, err)
		}
	}
	b.lock(p0, nil)
	if err := a.session.Destroy(b.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Claim(b.ctx, p0, a.session.ID(), acked(1)); !errors.Is(err, ErrNotOwner) {
		t.Errorf("claim by a dead session: %v", err)
	}
	if _, err := b.mem.Get(b.ctx, discovery.KeyOffset("g", "orders", 0)); !errors.Is(err, discovery.ErrNotFound) {
		t.Errorf("a refused claim wrote: %v", err)
	}
}

func TestClaimUnderFaults(t *testing.T) {
	for name, c := range map[string]struct {
		faults     []fault
		err        error
		generation uint64
	}{
		"applied, reply lost":     {[]fault{lostAfter}, nil, 1},
		"not applied, reply lost": {[]fault{lostBefore}, nil, 1},
		"lost again and again":    {[]fault{lostBefore, lostAfter, lostAfter}, nil, 1},
		"a false conflict":        {[]fault{falseConflict}, nil, 1},
		"unavailable":             {[]fault{unavailable}, discovery.ErrUnavailable, 0},
		"lost, then unavailable":  {[]fault{lostBefore, unavailable}, discovery.ErrUnavailable, 0},
	} {
		b := newBench(t)
		a := b.host("a")
		b.lock(p0, a)
		b.store.failNext(c.faults...)
		s, err := a.Claim(b.ctx, p0, a.session.ID(), acked(4))
		if !errors.Is(err, c.err) || err == nil && (s.Generation != c.generation || s.Position.Low != 4) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if err == nil {
			if now := b.stored(p0); now.Generation != s.Generation || now.Writer != s.Writer {
				t.Errorf("%s: claimed %+v, stored %+v", name, s, now)
			}
			// The claim is remembered: marking on works.
			a.Mark(p0, s.Generation, acked(6))
			b.flush(a, p0)
			b.expect(p0, c.generation, "a", acked(6))
		}
		b.close()
	}
}

func TestClaimReplacesGarbage(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a := b.host("a")
	for value, generation := range map[string]uint64{"?": 1, `{"generation":41,"position":{"low":-1}}`: 42} {
		if _, err := b.mem.Commit(b.ctx, discovery.Set(discovery.KeyOffset("g", "orders", 0), []byte(value))); err != nil {
			t.Fatal(err)
		}
		quiet := NewCheckpointer(b.store, CheckpointOptions{Owner: "a"})
		b.lock(p0, a)
		if s, err := quiet.Claim(b.ctx, p0, a.session.ID(), acked(9)); err != nil || s.Generation != generation || s.Position.Low != 9 {
			t.Errorf("over %s: %+v, %v", value, s, err)
		}
	}
}

func TestFormerOwnerOnlyAddsAcks(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	b.claim(p0, a, acked(10))
	b.claim(p0, c, acked(10))
	late := acked(12, Range{20, 22})
	late.HandOut, late.Retries = 50, []Retry{{Offset: 13, Attempt: 7}}
	a.Mark(p0, 1, late)
	b.flush(a, p0)
	b.expect(p0, 2, "c", acked(12, Range{20, 22}))
	// The owner finds the former's in its way and keeps them.
	own := acked(11, Range{14, 15})
	own.HandOut = 30
	c.Mark(p0, 2, own)
	b.flush(c, p0)
	want := acked(12, Range{14, 15}, Range{20, 22})
	want.HandOut = 30
	b.expect(p0, 2, "c", want)
	if s, ok := c.Seen(p0); !ok || !s.Position.Equal(want) {
		t.Errorf("seen: %+v, %v", s, ok)
	}
	if n := a.Pending() + c.Pending(); n != 0 {
		t.Errorf("%d marks wait", n)
	}
}

func TestLatePositionsAreDropped(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	b.claim(p0, a, acked(10))
	sought := Position{Topic: "A", SeekEpoch: 1, Low: 2, HandOut: 2}
	b.claim(p0, c, sought)
	a.Mark(p0, 1, acked(99)) // a former owner, before the seek
	b.flush(a, p0)
	b.expect(p0, 2, "c", sought)
	c.Mark(p0, 2, acked(98)) // the owner itself, late
	b.flush(c, p0)
	b.expect(p0, 2, "c", sought)
	a.Mark(p0, 1, Position{Topic: "Z", SeekEpoch: 7, Low: 97}) // of another topic
	b.flush(a, p0)
	b.expect(p0, 2, "c", sought)
	if n := a.Pending() + c.Pending(); n != 0 {
		t.Errorf("%d dropped marks wait", n)
	}
}

func TestWipedStore(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	b.claim(p0, a, acked(10))
	offsetKey := discovery.KeyOffset("g", "orders", 0)
	del := func() {
		t.Helper()
		if _, err := b.mem.Commit(b.ctx, discovery.Delete(offsetKey)); err != nil {
			t.Fatal(err)
		}
	}
	del()
	a.Mark(p0, 1, acked(12)) // still holds the lock: it writes it again
	b.flush(a, p0)
	b.expect(p0, 1, "a", acked(12))
	a.Mark(p0, 1, acked(13))
	b.flush(a, p0)
	b.expect(p0, 1, "a", acked(13))

	for name, faults := range map[string][]fault{"plain": nil, "nameless": {namelessConflict}} {
		b.claim(p0, a, acked(0))
		del()
		b.lock(p0, nil) // and now it does not
		b.store.failNext(faults...)
		a.Mark(p0, b.generation(a), acked(20))
		b.flush(a, p0)
		if _, err := b.mem.Get(b.ctx, offsetKey); !errors.Is(err, discovery.ErrNotFound) {
			t.Errorf("%s: a former owner made the position of a deleted group again: %v", name, err)
		}
	}

	// Deleted and made again: what was acknowledged in the life before does not
	// count in this one, whatever the generations.
	for range 3 {
		b.claim(p0, a, acked(0))
	}
	del()
	b.claim(p0, c, acked(0))
	a.Mark(p0, b.generation(a), acked(30))
	b.flush(a, p0)
	b.expect(p0, 1, "c", acked(0))
}

func (b *bench) generation(h *host) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries[p0].author.generation
}

func TestRestoredSnapshot(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a := b.host("a")
	b.claim(p0, a, acked(5))
	b.claim(p0, a, acked(6)) // generation 2
	old := Stored{Generation: 1, Owner: "old", Position: acked(3, Range{8, 9})}
	offsetKey := discovery.KeyOffset("g", "orders", 0)
	restore := func() {
		t.Helper()
		old.Writer = discovery.NewNonce()
		if _, err := b.mem.Commit(b.ctx, discovery.Set(offsetKey, discovery.Encode(old))); err != nil {
			t.Fatal(err)
		}
	}
	restore()
	a.Mark(p0, 2, acked(7))
	b.flush(a, p0)
	b.expect(p0, 2, "a", acked(7, Range{8, 9}))
	restore()
	b.lock(p0, nil) // one that lost the lock meanwhile adds its acks and no more
	a.Mark(p0, 2, acked(7, Range{11, 12}))
	b.flush(a, p0)
	b.expect(p0, 1, "old", acked(7, Range{8, 9}, Range{11, 12}))
}

func TestFlushUnderFaults(t *testing.T) {
	for name, c := range map[string]struct {
		faults []fault
		err    error
	}{
		"reply lost, applied":     {[]fault{lostAfter}, nil},
		"reply lost, not applied": {[]fault{lostBefore}, nil},
		"lost three times":        {[]fault{lostBefore, lostAfter, lostBefore}, nil},
		"false conflict":          {[]fault{falseConflict, falseConflict}, nil},
		"unavailable":             {[]fault{unavailable}, discovery.ErrUnavailable},
	} {
		b := newBench(t)
		a := b.host("a")
		keys := make([]Key, 5)
		for i := range keys {
			keys[i] = Key{"g", "orders", int32(i)}
			b.claim(keys[i], a, acked(1))
			a.Mark(keys[i], 1, acked(10+int64(i)))
		}
		b.store.failNext(c.faults...)
		err := a.flushTurn(b.ctx, a.dirtyKeys)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			if a.Pending() != len(keys) {
				t.Errorf("%s: %d marks are left of %d", name, a.Pending(), len(keys))
			}
			if err := a.flushTurn(b.ctx, a.dirtyKeys); err != nil {
				t.Errorf("%s: the next flush: %v", name, err)
			}
		}
		for i, k := range keys {
			b.expect(k, 1, "a", acked(10+int64(i)))
		}
		if a.Pending() != 0 {
			t.Errorf("%s: %d marks wait", name, a.Pending())
		}
		b.close()
	}
}

func TestFlushSettlesManyConflicts(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a, c := b.host("a"), b.host("c")
	const keys = 100
	key := func(i int) Key { return Key{"g", "orders", int32(i)} }
	for i := range keys {
		b.claim(key(i), a, acked(0))
		b.claim(key(i), c, acked(0))
	}
	for i := range keys {
		a.Mark(key(i), 1, acked(0, Range{5, 6}))
		c.Mark(key(i), 2, acked(3))
	}
	for _, h := range []*host{a, c} { // each finds all keys changed
		if err := h.flushTurn(b.ctx, h.dirtyKeys); err != nil || h.Pending() != 0 {
			t.Errorf("%d marks are left: %v", h.Pending(), err)
		}
	}
	for i := range keys {
		b.expect(key(i), 2, "c", acked(3, Range{5, 6}))
	}
}

func TestFlushSkipsWhatIsStored(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a := b.host("a")
	b.claim(p0, a, acked(1))
	a.Mark(p0, 1, acked(5))
	b.flush(a, p0)
	before := b.store.count()
	for range 3 {
		a.Mark(p0, 1, acked(5))
		b.flush(a, p0)
		a.Mark(p0, 1, acked(4))
		b.flush(a, p0)
	}
	if n := b.store.count() - before; n != 0 {
		t.Errorf("%d commits for positions that are stored", n)
	}
	a.Forget(p0)
	if _, ok := a.Seen(p0); ok || a.Pending() != 0 {
		t.Error("a key was not forgotten")
	}
	b.flush(a, p0)
}

func TestFlushSkipsATruncatedPositionThatIsStored(t *testing.T) {
	b := newBench(t)
	defer b.close()
	a := b.host("a")
	b.claim(p0, a, acked(1))
	wide := acked(1)
	for i := range int64(3000) {
		wide.AckRange(10+3*i, 11+3*i)
	}
	a.Mark(p0, 1, wide)
	b.flush(a, p0)
	before := b.store.count()
	a.Mark(p0, 1, wide)
	b.flush(a, p0)
	a.contest(attempt{key: p0}, false) // read it again from the store
	a.Mark(p0, 1, wide)
	b.flush(a, p0)
	if n := b.store.count() - before; n != 0 {
		t.Errorf("%d commits for a position that is stored as far as it fits", n)
	}
	if s := b.stored(p0); len(s.Position.Acked) == 0 || len(s.Position.Acked) == 3000 {
		t.Errorf("%d ranges are stored", len(s.Position.Acked))
	}
}

func TestRunCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		a := b.host("a")
		interval := 3 * time.Second
		reg := prometheus.NewRegistry()
		a.Checkpointer = NewCheckpointer(b.store, CheckpointOptions{Owner: "a", Interval: func() time.Duration { return interval }, Registerer: reg})
		const keys = 150
		key := func(i int) Key { return Key{"g", "orders", int32(i)} }
		for i := range keys {
			b.claim(key(i), a, acked(0))
		}
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		if err := a.Run(ctx); err == nil {
			t.Error("a second Run was allowed")
		}
		before := b.store.count()
		for round := range 10 {
			for i := range keys {
				a.Mark(key(i), 1, acked(int64(round+1)))
			}
			time.Sleep(250 * time.Millisecond)
		}
		synctest.Wait()
		if n := b.store.count() - before; n != 0 {
			t.Fatalf("%d commits before the interval of %v was over", n, interval)
		}
		if n := metric(t, reg, "sidestream_offsets_checkpoint_pending_positions"); n != keys {
			t.Errorf("%v positions pending, want %d", n, keys)
		}
		time.Sleep(interval)
		synctest.Wait()
		if n := b.store.count() - before; n != 3 { // 64 + 64 + 22
			t.Errorf("%d commits for %d keys, want 3", n, keys)
		}
		for i := range keys {
			b.expect(key(i), 1, "a", acked(10))
		}
		// Nothing new: nothing is written.
		time.Sleep(5 * interval)
		synctest.Wait()
		if n := b.store.count() - before; n != 3 {
			t.Errorf("%d commits at rest", n-3)
		}

		// An outage loses nothing, and marking goes on meanwhile.
		b.mem.SetDown(true)
		a.Mark(p0, 1, acked(20))
		time.Sleep(2 * interval)
		a.Mark(p0, 1, acked(15, Range{30, 31})) // an older low edge
		b.mem.SetDown(false)
		time.Sleep(interval)
		synctest.Wait()
		b.expect(p0, 1, "a", acked(20, Range{30, 31}))

		// Close writes the rest at once.
		a.Mark(p0, 1, acked(21))
		if err := a.Close(b.ctx); err != nil {
			t.Error(err)
		}
		b.expect(p0, 1, "a", acked(21, Range{30, 31}))
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		a := b.host("a")
		b.claim(p0, a, acked(0))
		a.Mark(p0, 1, acked(1))
		b.mem.SetDown(true)
		if err := a.Close(b.ctx); !errors.Is(err, discovery.ErrUnavailable) {
			t.Errorf("close in an outage: %v", err)
		}
		b.mem.SetDown(false)
		// Another flush that hangs.
		a.turn <- struct{}{}
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Second)
		defer cancel()
		begin := time.Now()
		if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Second {
			t.Errorf("close after %v: %v", time.Since(begin), err)
		}
		<-a.turn
	})
}

func TestCheckpointInterval(t *testing.T) {
	for live, want := range map[int]time.Duration{0: time.Second, 3: time.Second, 100: time.Second, 250: 2500 * time.Millisecond} {
		if got := CheckpointInterval(live); got != want {
			t.Errorf("%d sidecars: %v, want %v", live, got, want)
		}
	}
}

// TestPropertyTwoFightOverAKey lets two sidecars claim, acknowledge and
// checkpoint one partition in any order while commits fail in every way. In the
// store the generation never falls and nothing rewinds; in the end all that was
// marked is there, and nothing that nobody acknowledged.
func TestPropertyTwoFightOverAKey(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		defer b.close()
		hosts := []*host{b.host("a"), b.host("c")}
		generations := make([]uint64, 2)
		positions := []Position{acked(0), acked(0)}
		all := map[int64]bool{}
		var last Stored
		check := func() {
			e, err := b.mem.Get(b.ctx, discovery.KeyOffset("g", "orders", 0))
			if errors.Is(err, discovery.ErrNotFound) {
				return
			}
			now := must(DecodeStored(e))
			if now.Generation < last.Generation || now.Generation == last.Generation && last.Owner != "" && now.Owner != last.Owner {
				rt.Fatalf("the generation went from %+v to %+v", last, now)
			}
			for o := range int64(span) {
				if last.Position.IsAcked(o) && !now.Position.IsAcked(o) {
					rt.Fatalf("offset %d rewound: %+v, %+v", o, last, now)
				}
				if now.Position.IsAcked(o) && !all[o] {
					rt.Fatalf("offset %d is acked in %+v, and nobody acked it", o, now)
				}
			}
			last = now
		}
		b.store.fail(func([]discovery.Op) fault {
			return rapid.SampledFrom([]fault{none, none, none, unavailable, lostBefore, lostAfter, namelessConflict, falseConflict}).Draw(rt, "fault")
		})
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "host")
			h := hosts[i]
			switch rapid.SampledFrom([]string{"ack", "ack", "flush", "flush", "claim"}).Draw(rt, "do") {
			case "claim":
				b.lock(p0, h)
				s, err := h.Claim(b.ctx, p0, h.session.ID(), positions[i])
				if err != nil {
					// An attempt may have been applied all the same.
					if !errors.Is(err, discovery.ErrUnavailable) && !errors.Is(err, discovery.ErrConflict) && !errors.Is(err, ErrNotOwner) {
						rt.Fatal(err)
					}
					break
				}
				if s.Generation <= last.Generation {
					rt.Fatalf("claimed generation %d after %d", s.Generation, last.Generation)
				}
				generations[i], positions[i] = s.Generation, s.Position
			case "ack":
				if generations[i] > 0 {
					o := rapid.Int64Range(0, span-1).Draw(rt, "offset")
					all[o] = true
					positions[i].Ack(o)
					h.Mark(p0, generations[i], positions[i])
				}
			case "flush":
				_ = h.FlushKey(b.ctx, p0)
			}
			check()
		}
		b.store.fail(nil)
		for i, h := range hosts {
			if err := h.FlushKey(b.ctx, p0); err != nil {
				rt.Fatalf("flush without faults: %v", err)
			}
			check()
			if generations[i] > 0 {
				for o := range int64(span) {
					if positions[i].IsAcked(o) && !last.Position.IsAcked(o) {
						rt.Fatalf("offset %d, acknowledged by %s, is not in %+v", o, h.opt.Owner, last)
					}
				}
			}
		}
	})
}
