package kafka

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// impatient is a budget whose large requests do not stand by: time does not pass in the model.
func impatient(bytes int64) *budget {
	b := newBudget(bytes)
	b.patience = 0
	return b
}

// sender is a client in the model: it sends one request, and stops for good after some bytes or not at all.
type sender struct {
	f     *frame
	stop  int // it sends no byte after so many
	done  bool
	whole bool
}

func newSender(b *budget, size, stop int) *sender {
	return &sender{f: newFrame(size, b), stop: min(stop, size)}
}

// step sends up to n bytes, or asks for room; false when there is none or nothing is sent any more.
func (s *sender) step(t *testing.T, b *budget, n int) bool {
	n = min(n, s.stop-len(s.f.buf))
	if s.whole || s.done || n <= 0 {
		return false
	}
	if s.f.full() {
		known := s.f.known(n)
		room := b.try(s.f, known)
		if room == 0 {
			return false
		}
		if room <= len(s.f.buf) || room > s.f.size {
			t.Fatalf("room for %d after %d of %d", room, len(s.f.buf), s.f.size)
		}
		s.f.extend(room, known)
	}
	s.f.advance(min(n, len(s.f.space())))
	s.whole = s.f.whole()
	return true
}

// serve answers a request that is whole.
func (s *sender) serve() {
	s.f.release()
	s.done = true
}

// check compares the budget with the frames.
func check(t *testing.T, b *budget, all []*sender) {
	t.Helper()
	var used, held int64
	for _, s := range all {
		used += s.f.share.has
		if s.f.share.part {
			held += s.f.share.has
		}
	}
	switch {
	case used != b.used.Load() || held != b.held:
		t.Fatalf("%d bytes are used and %d held, by the books %d and %d", used, held, b.used.Load(), b.held)
	case used > b.bytes || held > b.pool:
		t.Fatalf("%d bytes are used of %d, %d held of %d", used, b.bytes, held, b.pool)
	}
}

// run has everybody send until nothing moves any more.
func run(t *testing.T, b *budget, all []*sender, rng *rand.Rand, step int) {
	t.Helper()
	for moved := true; moved; {
		moved = false
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, s := range all {
			if s.step(t, b, 1+rng.IntN(step)) {
				moved = true
			}
			if s.whole && !s.done && rng.IntN(3) == 0 {
				s.serve()
				moved = true
			}
		}
		check(t, b, all)
		for _, s := range all {
			moved = moved || s.whole && !s.done
		}
	}
}

// The whole size of a request was charged at its length prefix, so that one client that claimed 100 MB and then sent a
// byte now and then stopped all others. Taking room as bytes come instead must not end in many half requests that all
// wait for more: the sizes here ask for sixteen times the budget, and every order of arrival gets every request through.
func TestManyLargeRequestsAtOnceAllGetThrough(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := impatient(1 << 20)
		var all []*sender
		for range 64 { // sixteen times the budget
			size := 8 + rng.IntN(512<<10)
			all = append(all, newSender(b, size, size))
		}
		all = append(all, newSender(b, 1<<20, 1<<20)) // as large as the budget
		run(t, b, all, rng, 1000+rng.IntN(100_000))
		for _, s := range all {
			if !s.done {
				t.Fatalf("seed %d: a request of %d bytes stands still after %d", seed, s.f.size, len(s.f.buf))
			}
		}
	}
}

// Clients that claim much and send nearly nothing hold up nobody, not even for a while: one with the whole budget, 32 of
// 4 MB, and as many small ones.
func TestClaimsHoldUpNobody(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := impatient(100 << 20)
		var tricklers, good []*sender
		add := func(size int) { tricklers = append(tricklers, newSender(b, size, 2+rng.IntN(100))) }
		add(100 << 20)
		for range 32 {
			add(4 << 20)
			add(60_000)
		}
		run(t, b, tricklers, rng, 10)
		for range 60 {
			size := 8 + rng.IntN(1<<20)
			if rng.IntN(4) == 0 {
				size += rng.IntN(20 << 20)
			}
			good = append(good, newSender(b, size, size))
		}
		run(t, b, slices.Concat(good, tricklers), rng, 64<<10)
		for _, s := range good {
			if !s.done {
				t.Fatalf("seed %d: a request of %d bytes stands still after %d beside those that only claim", seed, s.f.size, len(s.f.buf))
			}
		}
	}
}

// Clients that do send most of what they claim and then stop hold memory that is really used. They keep others waiting
// until they are cut, but never small requests that are there; and when they are cut, all others get through.
func TestHalfRequestsLeaveRoomForSmallOnesAndAreSurvived(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 3))
		b := impatient(8 << 20)
		var stuck, good []*sender
		for range 64 {
			size := 8 + rng.IntN(1<<20)
			stuck = append(stuck, newSender(b, size, rng.IntN(size)))
			size = 8 + rng.IntN(2<<20)
			good = append(good, newSender(b, size, size))
		}
		run(t, b, slices.Concat(good, stuck), rng, 64<<10)
		for range 100 {
			small := newSender(b, 8+rng.IntN(64<<10), 64<<10)
			if !small.step(t, b, 64<<10) || !small.whole {
				t.Fatalf("seed %d: a small request finds no room beside half ones that hold %d of %d", seed, b.held, b.bytes)
			}
			small.serve()
		}
		for _, s := range stuck { // one after another
			s.serve()
			run(t, b, slices.Concat(good, stuck), rng, 64<<10)
		}
		for _, s := range good {
			if !s.done {
				t.Fatalf("seed %d: a request of %d bytes stands still after %d, and nobody holds anything up", seed, s.f.size, len(s.f.buf))
			}
		}
		if b.used.Load() != 0 || b.claimed != 0 || len(b.part) != 0 {
			t.Fatalf("left over: %d used, %d claimed, %d frames", b.used.Load(), b.claimed, len(b.part))
		}
	}
}

// The same with goroutines that wait: nobody is forgotten, whoever gives up.
func TestWaitingForRoom(t *testing.T) {
	b := newBudget(1 << 20)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 4))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := newFrame(8+rng.IntN(300_000), b)
			defer f.release()
			gives := i%10 == 0
			if gives {
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			for !f.whole() {
				if f.full() {
					known := f.known(1 + rng.IntN(100_000))
					room, err := b.wait(ctx, f, known, func() bool { return false })
					if err != nil {
						if !gives {
							t.Error(err)
						}
						return
					}
					f.extend(room, known)
				}
				f.advance(1 + rng.IntN(len(f.space())))
			}
		})
	}
	wg.Wait()
	if b.used.Load() != 0 || b.held != 0 || b.claimed != 0 || len(b.waiting) != 0 || b.pressed {
		t.Errorf("left over: %d used, %d held, %d claimed, %d wait", b.used.Load(), b.held, b.claimed, len(b.waiting))
	}
}

// Who waits goes before who comes later, if only requests that are being served are in its way.
func TestNobodyOvertakesWhoIsNext(t *testing.T) {
	b := newBudget(1 << 20)
	served := newSender(b, 600<<10, 600<<10)
	if !served.step(t, b, 600<<10) || !served.whole {
		t.Fatal("no room in an empty budget")
	}
	next := newFrame(600<<10, b)
	got := make(chan int, 1)
	go func() {
		room, err := b.wait(t.Context(), next, next.size, func() bool { return false })
		if err != nil {
			t.Error(err)
		}
		got <- room
	}()
	for b.queue() == 0 {
		time.Sleep(time.Millisecond)
	}
	late := newSender(b, 1000, 1000)
	if late.step(t, b, 1000) {
		t.Error("a later request got room")
	}
	served.serve()
	if room := <-got; room != next.size {
		t.Errorf("got room for %d", room)
	}
	if !late.step(t, b, 1000) {
		t.Error("a later request gets no room after that")
	}
}
