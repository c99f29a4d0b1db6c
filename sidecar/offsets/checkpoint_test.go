package offsets

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sidestream/discovery"
)

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
		time.Sleep(interval)
		synctest.Wait()
		if why := a.Trouble(); !strings.Contains(why, discovery.ErrUnavailable.Error()) {
			t.Errorf("while the store is away the trouble is %q", why)
		}
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
