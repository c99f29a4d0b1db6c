package kafka

import (
	"slices"
	"time"
)

// A large request that comes while too much is arriving or being served stands by: it stays unread, in turn, until it
// can have its room at once. So many producers at once are read one after another, through little memory, which is kept
// and still in the processor's caches. Given room in small steps instead, each would be copied several times.
//
// It counts on those before it to become whole. A claim costs nothing, so they are believed for a moment only, and when
// one of them sent next to nothing, nobody stands by for a while.
const (
	// standBySize is what a request has at least that stands by: copying a smaller one is cheap.
	standBySize = 64 << 10
	// standBy is how long it does.
	standBy = 3 * time.Second
	// livelyFor is how long a request that has got room in plenty counts as one that is about to become whole, and for
	// each second longer livelyRate bytes of it must have come.
	livelyFor  = 200 * time.Millisecond
	livelyRate = 8 << 20
	// doubtFor is how long nobody stands by after one that sent nothing: such clients delay a request once in that time.
	doubtFor = 3 * time.Second
)

// tick looks at those who stand by when nothing has changed but the time. It is one for all of them: looking at each
// when it would have its turn made 2,000 of them take a tenth of a processor.
func (b *budget) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ticking = false
	now := time.Now()
	kept := b.standing[:0]
	for _, w := range b.standing {
		if b.standsBy(w.f, now) {
			kept = append(kept, w)
		} else {
			b.waiting = append(b.waiting, w)
		}
	}
	clear(b.standing[len(kept):])
	b.standing = kept
	b.settle()
}

// tickIn has tick called, unless it will be. Nobody waits for that when the budget is not used any more: it finds nobody
// then, and is not called again. mu is held.
func (b *budget) tickIn(d time.Duration) {
	if !b.ticking {
		b.ticking = true
		time.AfterFunc(d, b.tick)
	}
}

// standsBy tells whether a frame should rather wait for plenty than take what it can get. mu is held.
func (b *budget) standsBy(f *frame, now time.Time) bool {
	if f.size < standBySize || b.patience == 0 || now.Before(b.doubt) {
		return false
	}
	if f.asked.IsZero() {
		f.asked = now
	}
	return now.Sub(f.asked) < b.patience
}

// lively is what those will have when they are whole that got room in plenty lately, and what those of them hold that
// have not filled it. Of f it counts nothing. mu is held.
func (b *budget) lively(f *frame, now time.Time) (claimed, begun int64) {
	for _, c := range b.part {
		if c.f == f {
			continue
		}
		if !c.f.lively(now) {
			b.disappointed(c.f, now)
			continue
		}
		claimed += c.has + c.lack
		if !c.grown {
			begun += c.has
		}
	}
	return claimed, begun
}

// disappointed is for a frame that is not about to become whole any more. If next to nothing of it came, others have
// stood by for nothing, and nobody does for a while: claims cost a client nothing, and a few a second could keep
// everybody standing. mu is held.
func (b *budget) disappointed(f *frame, now time.Time) {
	if !f.given.IsZero() && f.size >= standBySize && f.came.Load() < standBySize {
		b.doubt = now.Add(doubtFor)
	}
	f.given = time.Time{} // it is told once
}

// lively tells that it is about to become whole, as far as one can see. The budget's mu is held.
func (f *frame) lively(now time.Time) bool {
	return now.Sub(f.given) < livelyFor+time.Duration(f.came.Load())*(time.Second/livelyRate)
}

// short tells whether somebody waits for memory that others hold. Who stands by does not.
func (b *budget) short() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.waiting, func(w *waiter) bool { return w.short })
}
