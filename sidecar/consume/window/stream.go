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
