package kafka

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// budget bounds the bytes of all requests in memory.
//
// A request whose bytes are all at hand takes its whole size: it is served without any help of its client, and gives
// everything back. One that is still arriving cannot be trusted with that: its length is a claim, which costs a client
// four bytes, and holding memory for claims would let one client stop all others. So it takes room for what has come
// and some more (room), and asks again when that is full. But when many requests of which only a part is there want
// more at the same time and nothing is left, none would ever be whole. Therefore a request gets room only when
// afterwards all of them can still become whole in some order, each with what is left and what those before it gave
// back (the banker's algorithm, Dijkstra, EWD 623). A request that does not get it waits without being read.
//
// That counts on every client to finish. One that has not even filled its first room may never do, so besides, those
// that have must be able to become whole without anything coming back from the others, who have half of the room at
// most. Then clients that claim much and send little hold up nobody. Those that send much and then stop do: until they
// are closed for being slow, which is soon while others wait (see pace).
//
// All that is for when memory is short. While there is plenty a request gets room for its first MiB at once, which is
// mostly all of it, and is not copied while it grows. When there is not, a large one stands by for it: see standby.go.
//
// Requests that are arriving never take the whole budget: an eighth is left for those that are there, so that ordinary
// small requests are served whatever others hold back.
type budget struct {
	bytes    int64         // that all may have
	pool     int64         // of them, for requests that are arriving
	patience time.Duration // how long a large request stands by for plenty; 0 in a model without time
	shelf    shelf
	used     atomic.Int64 // by all; changed under mu

	mu       sync.Mutex // guards everything below and the shares of frames
	part     []claimant // those that are arriving, by what they lack
	held     int64      // by them
	claimed  int64      // what they will have when they are whole
	begun    int64      // what those hold that have not filled their first room
	turn     uint64     // counts changes of part
	waiting  []*waiter  // roughly the oldest first
	standing []*waiter  // who stands by and holds nothing, likewise: they do not overtake the first of them
	ticking  bool       // tick will be called
	doubt    time.Time  // nobody stands by before: one that had got room in plenty did not fill it
	pressed  bool       // one who waits gets its room as soon as others are served: nobody may overtake
}

// share is what a frame has of the budget. It is guarded by the budget's mu.
type share struct {
	has   int64
	claim int64 // while it is arriving: what it has in the end
	part  bool  // it is arriving
	grown bool  // it has filled its first room
}

// claimant is a frame that is arriving.
type claimant struct {
	f         *frame
	has, lack int64
	grown     bool
}

// waiter is a frame that waits for room.
type waiter struct {
	f     *frame
	have  int // its bytes that are known to be there
	room  int // what it got
	turn  uint64
	short bool          // it waits for memory that others hold; false: it stands by
	ready chan struct{} // closed when it got it
}

// verdict is what becomes of a wish for room.
type verdict uint8

const (
	granted verdict = iota
	notYet          // when there is plenty, or it has stood by for long enough
	soon            // when requests that are being served are answered
	unsafe          // when others that are arriving are whole or gone
)

const (
	// firstRoom is the least that an arriving request gets.
	firstRoom = 4 << 10
	// growth is how much room it gets for what has come when that is full: each step copies what is there, so steps must
	// not be small.
	growth = 4
	// firstChunk and secondChunk are what it gets instead while there is memory in plenty, and it mostly is: most
	// requests have their room at once then.
	firstChunk  = 1 << 20
	secondChunk = 16 << 20
	// maxLooks bounds how many who wait are looked at after one change: a look takes time with the number of requests
	// that are arriving. The others are looked at nextLooks later.
	maxLooks  = 16
	nextLooks = 10 * time.Millisecond
)

func newBudget(bytes int64) *budget {
	// The shelf is for speed only: what it keeps must not take the process to the limit.
	return &budget{bytes: bytes, pool: max(bytes-bytes/8, 1), patience: standBy, shelf: shelf{limit: bytes / 4 * 3, full: make(chan struct{}, 1)}}
}

// cost is what memory for size bytes takes of a limit: never more than there is, so that the largest request fits.
func cost(size int, limit int64) int64 {
	_, capacity := class(size)
	return min(int64(capacity), limit)
}

// try gives a frame room, of whose bytes have are there, and returns how much; 0 when it must wait.
func (b *budget) try(f *frame, have int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pressed {
		return 0
	}
	room, v := b.grant(f, have)
	if v != granted {
		return 0
	}
	return room
}

// wait is try for who can wait. It looks whether the frame's connection is gone every second.
func (b *budget) wait(ctx context.Context, f *frame, have int, gone func() bool) (int, error) {
	if room := b.try(f, have); room > 0 {
		return room, nil
	}
	w := &waiter{f: f, have: have, ready: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	b.settle() // something may have changed since
	b.mu.Unlock()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-w.ready:
			return w.room, nil
		case <-ctx.Done():
			b.leave(w)
			return 0, ctx.Err()
		case <-look.C:
			if gone() {
				b.leave(w)
				return 0, errDead
			}
		}
	}
}

// leave takes one who waits away. If it has got its room meanwhile, that is released with the frame.
func (b *budget) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, list := range []*[]*waiter{&b.waiting, &b.standing} {
		if i := slices.Index(*list, w); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
	}
	b.settle()
}

// arrived tells that all of a frame is there.
func (b *budget) arrived(f *frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.share.part {
		b.remove(f)
		b.settle()
	}
}

// release takes back what a frame has. It may be called again.
func (b *budget) release(f *frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.share.part {
		b.remove(f)
		b.disappointed(f, time.Now())
	}
	b.used.Add(-f.share.has)
	f.share = share{}
	b.settle()
}

// arriving is how many bytes the requests hold that are arriving.
func (b *budget) arriving() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// queue is how many requests wait for room.
func (b *budget) queue() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) + len(b.standing)
}

// remove takes a frame off part. mu is held.
func (b *budget) remove(f *frame) {
	i := slices.IndexFunc(b.part, func(c claimant) bool { return c.f == f })
	b.part = slices.Delete(b.part, i, i+1)
	b.held -= f.share.has
	b.claimed -= f.share.claim
	if !f.share.grown {
		b.begun -= f.share.has
	}
	f.share.part = false
	b.turn++
}

// add puts a frame that has its share into part. mu is held.
func (b *budget) add(f *frame, claim int64) {
	c := claimant{f, f.share.has, claim - f.share.has, f.share.grown}
	i, _ := slices.BinarySearchFunc(b.part, c.lack, func(c claimant, lack int64) int { return cmp.Compare(c.lack, lack) })
	b.part = slices.Insert(b.part, i, c)
	b.held += f.share.has
	b.claimed += claim
	if !f.share.grown {
		b.begun += f.share.has
	}
	f.share.claim, f.share.part = claim, true
	b.turn++
}

// settle gives room to those who wait, as far as there is some. mu is held.
func (b *budget) settle() {
	b.pressed = false
	var back []*waiter // the others get their look first next time
	looks, missed, timed := 0, false, false
	all, kept := b.waiting, b.waiting[:0]
	for _, w := range all {
		look := w.have < w.f.size || w.f.share.part
		switch { // a look is only worth it after a change, and only so many are
		case b.pressed, look && w.turn == b.turn+1:
			kept = append(kept, w)
			continue
		case look && looks == maxLooks:
			missed = true
			kept = append(kept, w)
			continue
		}
		v := b.offer(w)
		switch {
		case v == notYet && !w.f.share.part:
			b.standing = append(b.standing, w)
			continue // which costs nothing behind the first
		case v == unsafe:
			back = append(back, w)
		case v != granted:
			kept = append(kept, w)
			timed = timed || v == notYet
		}
		if look {
			looks++
		}
	}
	b.waiting = append(kept, back...)
	for len(b.standing) > 0 && !b.pressed && looks < maxLooks {
		w := b.standing[0]
		v := b.offer(w)
		if looks++; v == notYet {
			break
		}
		b.standing[0] = nil
		b.standing = b.standing[1:]
		if v != granted {
			b.waiting = append(b.waiting, w)
		}
	}
	if len(b.waiting) < len(all) {
		clear(all[len(b.waiting):])
	}
	switch {
	case missed || len(b.standing) > 0 && looks == maxLooks:
		b.tickIn(nextLooks)
	case len(b.standing) > 0 || timed:
		b.tickIn(livelyFor / 2)
	}
}

// offer is grant for one who waits. mu is held.
func (b *budget) offer(w *waiter) verdict {
	room, v := b.grant(w.f, w.have)
	w.short = v != notYet
	switch v {
	case granted:
		w.room = room
		close(w.ready)
	case unsafe:
		w.turn = b.turn + 1
	case soon:
		b.pressed = true
	}
	return v
}

// grant gives a frame room if it may have it. mu is held.
func (b *budget) grant(f *frame, have int) (room int, v verdict) {
	if have >= f.size && !f.share.part {
		n := cost(f.size, b.bytes)
		switch {
		case b.used.Load()+n <= b.bytes:
			f.share.has = n
			b.used.Add(n)
			return f.size, granted
		case b.held+n <= b.bytes:
			return 0, soon
		}
		return 0, unsafe
	}
	claim := cost(f.size, b.pool)
	if b.held-f.share.has+claim <= b.bytes/4*3 && b.begun <= b.bytes/4 {
		now := time.Now()
		if len(b.standing) > 0 && b.standing[0].f != f && !f.share.part && b.standsBy(f, now) {
			return 0, notYet
		}
		lively, begun := b.lively(f, now)
		served := b.used.Load() - b.held
		most := b.bytes / 8 * 3
		ours := min(claim, most) // the largest may have it alone
		switch {
		case lively+ours <= most && begun <= b.bytes/8 && served+lively+ours <= b.bytes/2: // plenty
			room := firstChunk
			if have >= firstChunk {
				room = max(2*have, secondChunk)
			}
			room = min(f.size, room)
			if v := b.give(f, room, claim); v == granted {
				f.given = now
				f.came.Store(0)
				return room, v
			}
		case b.standsBy(f, now):
			return 0, notYet
		}
	}
	room = have
	if f.share.part {
		room *= growth
	}
	room = min(f.size, max(room, firstRoom))
	return room, b.give(f, room, claim)
}

// give lets an arriving frame have as much as room costs, if that is possible and safe. mu is held.
func (b *budget) give(f *frame, room int, claim int64) verdict {
	more := min(cost(room, b.pool), claim) - f.share.has
	if room == f.size {
		more = claim - f.share.has
	}
	grown, claimed := f.share.part, b.claimed // who asks again has filled what it had
	if !grown {
		claimed += claim
	}
	switch {
	case !grown && b.begun > 0 && b.begun+more > b.pool/2:
		return unsafe
	case b.held+more > b.pool, claimed > b.pool && !b.safe(claimant{f, f.share.has + more, claim - f.share.has - more, grown}, more): // when all claims fit, all is safe
		return unsafe
	case b.used.Load()+more > b.bytes:
		return soon
	}
	if f.share.part {
		b.remove(f)
	}
	f.share.has += more
	f.share.grown = grown
	b.used.Add(more)
	b.add(f, claim)
	return granted
}

// safe tells whether all requests that are arriving can still become whole one after another when one has got more to
// be as it is given here: the one that lacks the least first, and each gives back what it had. mu is held.
func (b *budget) safe(mine claimant, more int64) bool {
	left := b.pool - b.held - more
	sure := left // when those that have not filled their first room give nothing back
	place := func(c claimant) bool {
		if c.lack > left || c.grown && c.lack > sure {
			return false
		}
		left += c.has
		if c.grown {
			sure += c.has
		}
		return true
	}
	placed := false
	for _, c := range b.part {
		if !placed && mine.lack <= c.lack {
			if !place(mine) {
				return false
			}
			placed = true
		}
		if c.f != mine.f && !place(c) {
			return false
		}
	}
	return placed || place(mine)
}
