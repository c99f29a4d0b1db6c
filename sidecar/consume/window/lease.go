package window

import (
	"slices"
	"time"
)

// isolateAfter is from which failed attempt on a message is handed out with
// nothing of its lane behind it, and a batch that expired is narrowed: its first
// repetition is whole, since most failures pass.
const isolateAfter = 2

// narrowing is by how much a batch shrinks at each further expiry and grows
// again with each that was acknowledged.
const narrowing = 4

// Ack acknowledges a message that was handed out under the lease: also after
// the lease is over, and also when it is out again under a later one. added is
// false when it was acknowledged before, which is no error. ErrUnknown: it was
// not handed out under such a lease.
func (w *Window[R]) Ack(leaseNo uint64, offset int64) (added bool, err error) {
	m := w.find(offset)
	if m == nil || m.done {
		// Acknowledged messages are forgotten, so their lease cannot be checked.
		if leaseNo == 0 || leaseNo > w.lastNo || offset < 0 || !w.pos.IsAcked(offset) {
			return false, ErrUnknown
		}
		return false, nil
	}
	if leaseNo == 0 || leaseNo > m.lastLease {
		return false, ErrUnknown
	}
	w.settle(m)
	w.trim()
	return true, nil
}

// Skip counts a message as acknowledged whatever its lease: it went elsewhere
// (a dead letter) or cannot be delivered. False when there is no such message.
func (w *Window[R]) Skip(offset int64) bool {
	m := w.find(offset)
	if m == nil || m.done {
		return false
	}
	w.settle(m)
	w.trim()
	return true
}

// Nack returns messages of a lease that is not over, to be handed out again
// from now+delay on, and every unacknowledged message of the lease above them in
// their lanes. why is what the application says of it, for Exhausted; "" leaves
// what it said before. errs has an entry for each offset: nil, ErrLeaseLost,
// ErrAcked or ErrUnknown. All offsets are judged before any is returned, so a
// batch may be nacked whole. returned are the offsets that came back, in order.
func (w *Window[R]) Nack(now time.Time, leaseNo uint64, nacked []int64, delay time.Duration, why string) (returned []int64, errs []error) {
	errs = make([]error, len(nacked))
	var from []*lane[R]
	for i, o := range nacked {
		errs[i] = w.leased(leaseNo, o)
		if errs[i] != nil {
			continue
		}
		m := w.find(o)
		m.notBefore = now.Add(max(0, delay))
		m.alone = m.spent >= isolateAfter
		m.fail(why)
		w.note(m)
		if l := m.lane; !l.nacked {
			l.nacked, l.back = true, o
			from = append(from, l)
		} else {
			l.back = min(l.back, o)
		}
	}
	for _, l := range from {
		l.nacked = false
		for _, m := range w.giveBack(l, l.back) {
			m.excused = !slices.Contains(nacked, m.offset)
			returned = append(returned, m.offset)
		}
		w.place(l)
	}
	slices.Sort(returned)
	return returned, errs
}

// Extend moves the end of a lease to now+lease, never to an earlier time, for
// the messages named and for all others of the lease in their lanes: with
// order=partition a lease is one thing. errs is as Nack's; until is the end for
// the last that was extended.
func (w *Window[R]) Extend(now time.Time, leaseNo uint64, held []int64, lease time.Duration) (until time.Time, errs []error) {
	errs = make([]error, len(held))
	for i, o := range held {
		errs[i] = w.leased(leaseNo, o)
		if errs[i] == nil {
			until = w.prolong(w.find(o).lane, now.Add(lease))
		}
	}
	return until, errs
}

func (w *Window[R]) prolong(l *lane[R], to time.Time) time.Time {
	if to.After(l.until) {
		l.until = to
		w.place(l)
	}
	return l.until
}

// Holds says whether all of the messages are out under the lease.
func (w *Window[R]) Holds(leaseNo uint64, offsets []int64) bool {
	for _, o := range offsets {
		if w.leased(leaseNo, o) != nil {
			return false
		}
	}
	return true
}

// Again repeats hand-outs of a lease whose answer may not have arrived: the same
// messages with the same attempts, for at least lease from now on. It is not ok,
// and nothing is changed, when the lease is over for one of them or one has been
// settled.
func (w *Window[R]) Again(now time.Time, leaseNo uint64, offsets []int64, lease time.Duration) (out []Handout[R], ok bool) {
	if w.Expire(now); !w.Holds(leaseNo, offsets) {
		return nil, false
	}
	out = make([]Handout[R], len(offsets))
	for i, o := range offsets {
		m := w.find(o)
		until := w.prolong(m.lane, now.Add(lease))
		out[i] = Handout[R]{Offset: o, Attempt: m.spent, LeaseNo: leaseNo, LeaseUntil: until, Ref: m.ref}
	}
	return out, true
}

// Expire ends the leases whose time is over; it returns the offsets that came
// back, in order.
func (w *Window[R]) Expire(now time.Time) (returned []int64) {
	for l := w.out.lowest(); l != nil && !l.until.After(now); l = w.out.lowest() {
		back := w.giveBack(l, 0)
		if len(back) > 0 && back[0].spent >= isolateAfter {
			l.narrow = max(1, len(back)/narrowing)
		}
		for i, m := range back {
			// In its order the application has come to the first at most.
			m.excused = i > 0
			returned = append(returned, m.offset)
		}
		w.place(l)
	}
	slices.Sort(returned)
	return returned
}

// Return takes back what a lease handed out and the application never got: no
// attempt is spent. It returns the offsets.
func (w *Window[R]) Return(leaseNo uint64) (returned []int64) {
	return w.ReturnFrom(leaseNo, 0)
}

// edge is one past the highest message that may be in the hands of an
// application, or was in those of an earlier owner's.
func (w *Window[R]) edge() int64 {
	edge := max(w.restore, w.pos.Low)
	for i := len(w.msgs) - 1; i >= 0; i-- {
		if m := w.msgs[i]; !m.done && m.spent > 0 {
			return max(edge, m.offset+1)
		}
	}
	return edge
}

// leased says whether the message is out under that lease.
func (w *Window[R]) leased(leaseNo uint64, offset int64) error {
	m := w.find(offset)
	switch {
	case leaseNo == 0 || leaseNo > w.lastNo:
		return ErrUnknown
	case m == nil || m.done:
		if offset >= 0 && w.pos.IsAcked(offset) {
			return ErrAcked
		}
		return ErrUnknown
	case m.lease == leaseNo:
		return nil
	case leaseNo > m.lastLease:
		return ErrUnknown
	}
	return ErrLeaseLost
}

// giveBack takes back what is out of a lane from offset from on; the caller
// places the lane.
func (w *Window[R]) giveBack(l *lane[R], from int64) (returned []*message[R]) {
	for m := l.first; m != nil && l.out > 0; m = m.next {
		if m.lease == 0 || m.offset < from {
			continue
		}
		w.unlease(m)
		w.waiting++
		l.barrier = max(l.barrier, m.offset+1)
		returned = append(returned, m)
	}
	return returned
}

// unlease takes a message from its lease.
func (w *Window[R]) unlease(m *message[R]) {
	if l := w.leases[m.lease]; l != nil {
		if l.out--; l.out == 0 {
			delete(w.leases, m.lease)
		}
	}
	m.lease = 0
	m.lane.out--
	w.inFlight--
}

// settle acknowledges a message, wherever it is.
func (w *Window[R]) settle(m *message[R]) {
	var none R
	l := m.lane
	m.done, m.ref = true, none
	w.settled++
	w.bytes -= m.size
	w.unnote(m)
	l.drop(m)
	if m.lease != 0 {
		if w.unlease(m); l.out == 0 {
			l.widen(w.cfg.MaxMessages)
		}
	} else {
		w.waiting--
	}
	if l.first == nil || l.first.offset >= l.barrier {
		l.narrow = 0
	}
	w.pos.Ack(m.offset)
	w.place(l)
}

// trim forgets messages that are done: those at the front, and all when they
// are many.
func (w *Window[R]) trim() {
	n := 0
	for n < len(w.msgs) && w.msgs[n].done {
		n++
	}
	clear(w.msgs[:n])
	w.msgs = w.msgs[n:]
	w.settled -= n
	if w.settled > 2*slab && 2*w.settled > len(w.msgs) {
		w.msgs = slices.DeleteFunc(w.msgs, func(m *message[R]) bool { return m.done })
		w.settled = 0
	}
	if len(w.msgs) == 0 {
		w.msgs = nil
	}
}

// find is the message at an offset, or nil; it may be done.
func (w *Window[R]) find(offset int64) *message[R] {
	if len(w.msgs) == 0 || offset < w.msgs[0].offset {
		return nil
	}
	// Where the log has no holes the place is known, and it is never above.
	most := offset - w.msgs[0].offset
	if most >= int64(len(w.msgs)) {
		most = int64(len(w.msgs)) - 1
	}
	if m := w.msgs[most]; m.offset == offset {
		return m
	}
	i, ok := slices.BinarySearchFunc(w.msgs[:most], offset, byOffset[R])
	if !ok {
		return nil
	}
	return w.msgs[i]
}
