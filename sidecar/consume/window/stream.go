package window

import "time"

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
	if until.After(l.until) {
		l.until = until
	}
	return true
}

// ReturnFrom takes back the messages of a lease at offset from and above, which
// never reached the application: no attempt is spent. Those below stay out. It
// returns the offsets.
func (w *Window[R]) ReturnFrom(leaseNo uint64, from int64) (returned []int64) {
	l := w.leases[leaseNo]
	if l == nil {
		return nil
	}
	barrier := w.barrier
	returned = w.giveBack(l, from)
	w.barrier = barrier // it was no failure: nothing is to be repeated first
	for _, o := range returned {
		w.find(o).spent--
	}
	// The hand-out edge falls back to the highest message that was handed out.
	edge := max(w.restore, w.pos.Low)
	for i := len(w.msgs) - 1; i >= 0; i-- {
		if m := &w.msgs[i]; m.done || m.spent > 0 {
			edge = max(edge, m.offset+1)
			break
		}
	}
	w.pos.HandOut = min(w.pos.HandOut, edge)
	return returned
}
