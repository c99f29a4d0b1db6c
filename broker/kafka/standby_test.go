package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func alive() bool { return false }

// receive has a request come in at a rate in bytes a second, and tells how often its memory was moved to a larger one.
func receive(ctx context.Context, f *frame, rate int) (moves int, err error) {
	const step = 64 << 10
	for !f.whole() {
		if f.full() {
			known := f.known(2)
			room, err := f.held.wait(ctx, f, known, alive)
			if err != nil {
				return moves, err
			}
			if len(f.buf) > 0 {
				moves++
			}
			f.extend(room, known)
		}
		n := min(step, len(f.space()))
		time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
		f.advance(n)
	}
	return moves, nil
}

// 64 producers of uncompressed requests of some MB, all at once, used to get room in small steps, each of which copied
// what was there, from memory that had to be cleared: the broker took 1.9 times the processor time of a bare loop, and
// 1.3 times when they are read in turns. What is arriving stays within a quarter of the memory then.
func TestManyLargeRequestsAreReadInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100 << 20)
		var wg sync.WaitGroup
		var moves, large atomic.Int64
		var mu sync.Mutex
		var most int64
		for i := range 64 {
			wg.Go(func() {
				for range 5 {
					f := newFrame((1+i%8)<<20, b)
					n, err := receive(t.Context(), f, 40<<20)
					if err != nil {
						t.Error(err)
					}
					moves.Add(int64(n))
					if f.size > firstChunk {
						large.Add(1)
					}
					mu.Lock()
					most = max(most, b.arriving())
					mu.Unlock()
					time.Sleep(10 * time.Millisecond) // it is served
					f.release()
				}
			})
		}
		wg.Wait()
		if moves.Load() > large.Load() {
			t.Errorf("%d moves of memory, want one for each of the %d requests of more than 1 MiB", moves.Load(), large.Load())
		}
		if most > b.bytes/8*3 {
			t.Errorf("%d bytes were arriving, want three eighths of %d at most", most, b.bytes)
		}
		if b.used.Load() != 0 || len(b.waiting) != 0 || b.standing != nil {
			t.Errorf("left over: %d used, %d wait, standing %v", b.used.Load(), len(b.waiting), b.standing != nil)
		}
	})
}

// Clients that claim large requests and do not send them, however many come, delay a large request by little: they count
// as about to be whole for a fifth of a second, and when they hold too much nobody stands by for plenty.
func TestClaimsDelayNobodyWhoStandsBy(t *testing.T) {
	for _, hogs := range []int{1, 12, 30, 300} {
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(100 << 20)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var mine []*frame
			for range hogs {
				f := newFrame(8<<20, b)
				mine = append(mine, f)
				wg.Go(func() {
					room, err := b.wait(ctx, f, 2, alive)
					if err == nil {
						f.extend(room, 2)
						f.advance(100)
					} else if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			begun := time.Now()
			for range 5 {
				f := newFrame(3<<20, b)
				if _, err := receive(ctx, f, 100<<20); err != nil {
					t.Error(err)
				}
				f.release()
			}
			if took := time.Since(begun); took > standBy+5*(livelyFor+100*time.Millisecond) {
				t.Errorf("%d that only claim: five requests of 3 MiB took %s", hogs, took)
			}
			cancel()
			wg.Wait()
			for _, f := range mine {
				f.release()
			}
		})
	}
}

// Who comes later with a small claim does not overtake for ever who stands by with a large one.
func TestStandingByIsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(16 << 20)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { // four of 1 MiB are always arriving, which is all that there is in plenty
				for ctx.Err() == nil {
					f := newFrame(1<<20, b)
					_, _ = receive(ctx, f, 20<<20)
					f.release()
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		f := newFrame(4<<20, b)
		if _, err := receive(ctx, f, 20<<20); err != nil {
			t.Error(err)
		}
		f.release()
		if took := time.Since(begun); took > 600*time.Millisecond {
			t.Errorf("a request of 4 MiB took %s beside ones of 1 MiB, alone it takes 0.2 s", took)
		}
		cancel()
		wg.Wait()
	})
}
