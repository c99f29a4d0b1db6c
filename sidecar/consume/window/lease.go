package window

import (
	"slices"
	"sort"
	"time"
)

// isolateAfter is from which failed attempt on a message is handed out with
// nothing behind it, and a batch that expired is narrowed: its first repetition
// is whole, since most failures pass.
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
// from now+delay on, and every unacknowledged message of it above them. errs has
// an entry for each offset: nil, ErrLeaseLost, ErrAcked or ErrUnknown. All offsets are
// judged before any is returned, so a batch may be nacked whole. returned are
// the offsets that came back, in order.
func (w *Window[R]) Nack(now time.Time, leaseNo uint64, nacked []int64, delay time.Duration) (returned []int64, errs []error) {
	errs = make([]error, len(nacked))
	lowest := int64(-1)
	for i, o := range nacked {
		errs[i] = w.leased(leaseNo, o)
		if errs[i] != nil {
			continue
		}
		m := w.find(o)
		m.notBefore = now.Add(max(0, delay))
		m.alone = m.spent >= isolateAfter
		if lowest < 0 || o < lowest {
			lowest = o
		}
	}
	if lowest >= 0 {
		returned = w.giveBack(w.leases[leaseNo], lowest)
	}
	return returned, errs
}

// Extend moves the end of a lease to now+lease, never to an earlier time. With
// order=partition a lease is one thing: the offsets only prove it, and all its
// messages are extended. errs is as Nack's; until is the lease's end.
func (w *Window[R]) Extend(now time.Time, leaseNo uint64, held []int64, lease time.Duration) (until time.Time, errs []error) {
	errs = make([]error, len(held))
	for i, o := range held {
		errs[i] = w.leased(leaseNo, o)
		if errs[i] == nil {
			l := w.leases[leaseNo]
			if to := now.Add(lease); to.After(l.until) {
				l.until = to
			}
			until = l.until
		}
	}
	return until, errs
}

// Expire ends the leases whose time is over; it returns the offsets that came
// back, in order.
func (w *Window[R]) Expire(now time.Time) (returned []int64) {
	for _, l := range w.leases {
		if l.until.After(now) {
			continue
		}
		back := w.giveBack(l, 0)
		if len(back) > 0 && w.find(back[0]).spent >= isolateAfter {
			w.narrow = max(1, len(back)/narrowing)
		}
		returned = append(returned, back...)
	}
	slices.Sort(returned)
	return returned
}

// Return takes back what a lease handed out and the application never got: no
// attempt is spent. It returns the offsets.
func (w *Window[R]) Return(leaseNo uint64) (returned []int64) {
	return w.ReturnFrom(leaseNo, 0)
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

// giveBack takes back the messages of a lease from offset from on.
func (w *Window[R]) giveBack(l *lease, from int64) (returned []int64) {
	i := sort.Search(len(w.msgs), func(i int) bool { return w.msgs[i].offset >= from })
	for ; i < len(w.msgs) && l.out > 0; i++ {
		m := &w.msgs[i]
		if m.lease != l.no || m.done {
			continue
		}
		m.lease = 0
		l.out--
		w.waiting++
		w.barrier = max(w.barrier, m.offset+1)
		returned = append(returned, m.offset)
	}
	if l.out == 0 {
		delete(w.leases, l.no)
	}
	return returned
}

// settle acknowledges a message, wherever it is.
func (w *Window[R]) settle(m *message[R]) {
	var none R
	m.done, m.ref = true, none
	w.bytes -= m.size
	if l := w.leases[m.lease]; l != nil {
		m.lease = 0
		if l.out--; l.out == 0 {
			delete(w.leases, l.no)
			w.widen()
		}
	} else {
		w.waiting--
	}
	w.pos.Ack(m.offset)
}

// widen lets batches grow again after one was acknowledged whole.
func (w *Window[R]) widen() {
	if w.narrow *= narrowing; w.narrow >= w.cfg.MaxMessages {
		w.narrow = 0
	}
}

// trim drops what is done from the front.
func (w *Window[R]) trim() {
	n := w.headIndex()
	clear(w.msgs[:n])
	w.msgs = w.msgs[n:]
	if len(w.msgs) == 0 {
		w.msgs = nil
	}
	if w.pos.Low >= w.barrier {
		w.narrow = 0
	}
}

// find is the message at an offset, done or not, or nil.
func (w *Window[R]) find(offset int64) *message[R] {
	i := sort.Search(len(w.msgs), func(i int) bool { return w.msgs[i].offset >= offset })
	if i < len(w.msgs) && w.msgs[i].offset == offset {
		return &w.msgs[i]
	}
	return nil
}
