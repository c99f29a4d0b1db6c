package commitlog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &pace{rate: 1000}
		for range 10 {
			must(t, p.take(t.Context(), 500))
		}
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("5000 bytes at 1000 a second took %v", took)
		}
		time.Sleep(time.Hour) // is not saved up
		began = time.Now()
		for range 10 {
			must(t, p.take(t.Context(), 500))
		}
		if took := time.Since(began); took < 4*time.Second {
			t.Errorf("after an idle hour 5000 bytes took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		must(t, p.take(ctx, 100_000))
		if err := p.take(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		free := &pace{}
		began = time.Now()
		must(t, free.take(t.Context(), 1<<40))
		must(t, free.take(t.Context(), 1<<40))
		if time.Since(began) != 0 {
			t.Error("without a rate it waits")
		}
	})
}

// A scrub at a pace finds a flipped bit in a closed segment, which is served
// around and left as it is; what a scrub was told to stop at, it stops at.
func TestScrub(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 60)
	must(t, l.Close())
	name := l.path(16, logSuffix)
	edit(t, m, name, func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	l = open(t, m, smallConfig())
	if damage := l.Damage(); len(damage) != 0 {
		t.Fatalf("known before anybody looked: %v", damage)
	}
	damage, err := l.Scrub(t.Context(), 100<<20)
	must(t, err)
	if known := l.Damage(); len(damage) != 1 || len(known) != 1 || damage[0].Path != name {
		t.Fatalf("found %v, known %v", damage, known)
	}
	bad := damage[0].Offset
	var corrupt *CorruptError
	if _, err := l.Read(bad, 100, l.EndOffset()); !errors.As(err, &corrupt) || !errors.Is(err, ErrCorrupt) || corrupt.Next != bad+1 {
		t.Errorf("offset %d: %v", bad, err)
	}
	wantDense(t, readAll(t, l, bad+1), bad+1, 60)
	if _, err := m.Stat(name); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Scrub(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
