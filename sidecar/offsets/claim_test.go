package offsets

import (
	"errors"
	"testing"

	"sidestream/discovery"
)

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
