package window

// Oldest is the lowest message held that is not acknowledged; ok is false when
// none is held.
func (w *Window[R]) Oldest() (offset int64, ref R, ok bool) {
	if len(w.msgs) > 0 {
		m := w.msgs[0] // what is done is trimmed from the front
		return m.offset, m.ref, true
	}
	return 0, ref, false
}
