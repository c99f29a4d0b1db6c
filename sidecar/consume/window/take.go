package window

import (
	"math"
	"sort"
	"time"
)

// maxRanges is how many acknowledged ranges may stand between the low edge and
// the hand-out edge before new messages wait for what is out: about so many fit
// into what is stored in the coordination store, and what was acknowledged above
// them would be repeated after a takeover.
const maxRanges = 256

// Take hands out messages under one new lease that ends at now+length: at most
// max, and at most maxBytes of them (0: no limit) except that the first always
// comes. They are the lowest that may be handed out, by offset. Leases that are
// over have been expired first. It returns none when there is nothing to hand
// out now: Why says why.
func (w *Window[R]) Take(now time.Time, max, maxBytes int, length time.Duration) []Handout[R] {
	w.Expire(now)
	if max <= 0 || !w.anyReady(now) {
		return nil
	}
	w.lastNo++
	no, until := w.lastNo, now.Add(length)
	out := make([]Handout[R], 0, min(max, w.waiting))
	given := &lease[R]{}
	w.leases[no] = given
	size := 0
	top := w.top()
	for len(out) < max {
		l := w.ready.lowest()
		if l == nil || l.rank >= top {
			break
		}
		m := l.first
		if l.out > 0 {
			m = l.following
		}
		if len(out) > 0 && maxBytes > 0 && size+m.size > maxBytes {
			break
		}
		size += m.size
		if l.out == 0 {
			l.lease, l.until = no, until
			given.lanes = append(given.lanes, l)
		}
		l.out++
		w.handOut(m, no)
		out = append(out, Handout[R]{Offset: m.offset, Attempt: m.spent, LeaseNo: no, LeaseUntil: until, Ref: m.ref})
		if l.following = w.behind(m, now); l.following != nil {
			w.ready.put(l, l.following.offset)
		} else {
			w.place(l)
		}
	}
	given.out = len(out)
	for _, l := range given.lanes {
		l.following = nil
		w.place(l)
	}
	return out
}

// handOut counts a message as given to the application.
func (w *Window[R]) handOut(m *message[R], no uint64) {
	m.lease, m.lastLease = no, no
	m.spent++
	m.excused = false
	if m.spent > 1 {
		w.note(m)
	}
	w.inFlight++
	w.waiting--
	if m.offset >= w.pos.HandOut {
		w.pos.HandOut = m.offset + 1
	}
}

// behind is the message of the same lane that the lease which has just taken m
// may take next, or nil.
func (w *Window[R]) behind(m *message[R], now time.Time) *message[R] {
	l, next := m.lane, m.next
	if next == nil || m.alone || next.notBefore.After(now) || w.exhausted(next) {
		return nil
	}
	if l.first.offset < l.barrier && (next.offset >= l.barrier || l.narrow > 0 && l.out >= l.narrow) {
		return nil
	}
	return next
}

// top is the offset from which on nothing is handed out now.
func (w *Window[R]) top() int64 {
	if w.whole != nil || w.inFlight == 0 || len(w.pos.Acked) < maxRanges {
		return math.MaxInt64
	}
	below := sort.Search(len(w.pos.Acked), func(i int) bool { return w.pos.Acked[i].From >= w.pos.HandOut })
	if below < maxRanges {
		return math.MaxInt64
	}
	return w.pos.HandOut
}

// anyReady says whether there is something to hand out.
func (w *Window[R]) anyReady(now time.Time) bool {
	w.promote(now)
	l := w.ready.lowest()
	return l != nil && l.rank < w.top()
}

// Why says whether Take would hand something out at now, and if not, why.
func (w *Window[R]) Why(now time.Time) Why {
	if l := w.out.lowest(); l != nil && !l.until.After(now) || w.anyReady(now) {
		return Ready
	}
	for _, l := range w.dead.all {
		if l.first.blocked {
			return DeadBlocked
		}
	}
	switch {
	case w.inFlight > 0 && (w.whole != nil || w.waiting > 0 || w.Full()):
		return InFlightFull
	case w.waiting > 0:
		return Delayed
	}
	return AtEnd
}
