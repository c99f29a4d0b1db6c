package window

import (
	"slices"
	"time"
)

// Out counts the messages that are out under a lease.
func (w *Window[R]) Out(leaseNo uint64) int {
	if l := w.leases[leaseNo]; l != nil {
		return l.out
	}
	return 0
}

// Prolong moves the end of a lease, and so of all messages under it, to until,
// never to an earlier time. False when the lease is over.
func (w *Window[R]) Prolong(leaseNo uint64, until time.Time) bool {
	l := w.leases[leaseNo]
	if l == nil {
		return false
	}
	for _, part := range l.lanes {
		if part.out > 0 && part.lease == leaseNo {
			w.prolong(part, until)
		}
	}
	return true
}

// More hands out what comes behind the messages that are out under a lease, and
// under that lease, which does not last longer for it: at most max, and at most
// maxBytes of them (0: no limit) except that the first always comes. Only with
// order=partition: what the lease's taker is handed it has in order, and a nack
// or an expiry returns all of it. It returns none when less than least is left
// of the lease.
func (w *Window[R]) More(now time.Time, leaseNo uint64, max, maxBytes int, least time.Duration) []Handout[R] {
	w.Expire(now)
	l, given := w.whole, w.leases[leaseNo]
	if l == nil || given == nil || l.out == 0 || l.lease != leaseNo || l.until.Sub(now) < least {
		return nil
	}
	last := l.first // what is out are the first of the lane
	for range l.out - 1 {
		last = last.next
	}
	var out []Handout[R]
	for size := 0; len(out) < max; {
		m := w.behind(last, now)
		if m == nil || len(out) > 0 && maxBytes > 0 && size+m.size > maxBytes {
			break
		}
		size += m.size
		l.out++
		given.out++
		w.handOut(m, leaseNo)
		out = append(out, Handout[R]{Offset: m.offset, Attempt: m.spent, LeaseNo: leaseNo, LeaseUntil: l.until, Ref: m.ref})
		last = m
	}
	w.place(l)
	return out
}

// ReturnFrom takes back the messages of a lease at offset from and above, which
// never reached the application: no attempt is spent. Those below stay out. It
// returns the offsets.
func (w *Window[R]) ReturnFrom(leaseNo uint64, from int64) (returned []int64) {
	l := w.leases[leaseNo]
	if l == nil {
		return nil
	}
	for _, part := range l.lanes {
		if part.out == 0 || part.lease != leaseNo {
			continue
		}
		barrier := part.barrier
		back := w.giveBack(part, from)
		part.barrier = barrier // it was no failure: nothing is to be repeated first
		for _, m := range back {
			m.spent--
			returned = append(returned, m.offset)
		}
		w.place(part)
	}
	slices.Sort(returned)
	if len(returned) > 0 {
		w.passes = true
		w.pos.HandOut = min(w.pos.HandOut, w.edge())
	}
	return returned
}
