package window

import "sort"

// Each goes through the messages from offset from to below to that are held and
// not acknowledged. What f returns takes the place of the message's Ref.
func (w *Window[R]) Each(from, to int64, f func(size int, ref R) R) {
	i := sort.Search(len(w.msgs), func(i int) bool { return w.msgs[i].offset >= from })
	for ; i < len(w.msgs) && w.msgs[i].offset < to; i++ {
		if m := w.msgs[i]; !m.done {
			m.ref = f(m.size, m.ref)
		}
	}
}
