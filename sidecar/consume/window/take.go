package window

import "time"

// Take hands out messages under one new lease that ends at now+lease: at most
// max, and at most maxBytes of them (0: no limit) except that the first always
// comes. Leases that are over have been expired first. It returns none when
// there is nothing to hand out now: Why says why.
func (w *Window[R]) Take(now time.Time, max, maxBytes int, lease time.Duration) []Handout[R] {
	w.Expire(now)
	if max <= 0 || w.Why(now) != Ready {
		return nil
	}
	first := w.headIndex()
	n := w.batch(first, now, max, maxBytes)
	l := w.open(now.Add(lease))
	out := make([]Handout[R], 0, n)
	for i := first; len(out) < n; i++ {
		m := &w.msgs[i]
		if m.done {
			continue
		}
		m.lease, m.lastLease = l.no, l.no
		m.spent++
		l.out++
		w.waiting--
		if m.offset >= w.pos.HandOut {
			w.pos.HandOut = m.offset + 1
		}
		out = append(out, Handout[R]{Offset: m.offset, Attempt: m.spent, LeaseNo: l.no, LeaseUntil: l.until, Ref: m.ref})
	}
	return out
}

// batch counts the messages from index first that one lease takes.
func (w *Window[R]) batch(first int, now time.Time, max, maxBytes int) (n int) {
	redelivery := w.msgs[first].offset < w.barrier
	if redelivery && w.narrow > 0 {
		max = min(max, w.narrow)
	}
	size := 0
	for i := first; i < len(w.msgs) && n < max; i++ {
		m := &w.msgs[i]
		if m.done {
			continue
		}
		size += m.size
		if n > 0 && (w.exhausted(m) || m.notBefore.After(now) || maxBytes > 0 && size > maxBytes || redelivery && m.offset >= w.barrier) {
			break
		}
		n++
		if m.alone {
			break
		}
	}
	return n
}

// Why says whether Take would hand something out at now, and if not, why.
func (w *Window[R]) Why(now time.Time) Why {
	for _, l := range w.leases {
		if l.until.After(now) { // order=partition: one lease at a time
			return InFlightFull
		}
	}
	m := w.head()
	switch {
	case m == nil:
		return AtEnd
	case w.exhausted(m) && m.blocked:
		return DeadBlocked
	case w.exhausted(m):
		return Delayed
	case m.notBefore.After(now):
		return Delayed
	}
	return Ready
}

// open makes the next lease.
func (w *Window[R]) open(until time.Time) *lease {
	w.lastNo++
	l := &lease{no: w.lastNo, until: until}
	w.leases[l.no] = l
	return l
}

// headIndex is the index of the lowest message that is not acknowledged, or
// len(msgs).
func (w *Window[R]) headIndex() int {
	for i := range w.msgs {
		if !w.msgs[i].done {
			return i
		}
	}
	return len(w.msgs)
}

func (w *Window[R]) head() *message[R] {
	if i := w.headIndex(); i < len(w.msgs) {
		return &w.msgs[i]
	}
	return nil
}
