package window

import "slices"

// Decline returns messages of a lease that is not over and that the application
// took and did not begin: no attempt is spent, and they may be handed out again
// at once. As with Nack every unacknowledged message of the lease above them in
// their lanes comes back as well; that is an attempt, unless it is declined too.
// errs is as Nack's; returned are the offsets that came back, in order.
func (w *Window[R]) Decline(leaseNo uint64, declined []int64) (returned []int64, errs []error) {
	errs = make([]error, len(declined))
	lowest := map[*lane[R]]int64{}
	given := map[int64]bool{}
	for i, o := range declined {
		if errs[i] = w.leased(leaseNo, o); errs[i] != nil {
			continue
		}
		given[o] = true
		l := w.find(o).lane
		if low, ok := lowest[l]; !ok || o < low {
			lowest[l] = o
		}
	}
	for l, low := range lowest {
		barrier := l.barrier
		back := w.giveBack(l, low)
		l.barrier = barrier // it was no failure: nothing is to be repeated first
		for _, m := range back {
			if given[m.offset] {
				m.spent--
			} else {
				m.excused = true
			}
			returned = append(returned, m.offset)
		}
		w.place(l)
	}
	slices.Sort(returned)
	if len(returned) > 0 {
		w.passes = true
		w.pos.HandOut = min(w.pos.HandOut, w.edge())
	}
	return returned, errs
}
