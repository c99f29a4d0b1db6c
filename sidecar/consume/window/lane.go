package window

import "time"

// lane is a sequence of messages that must be handed out in order: all of the
// partition, those of one key, or a single message that is bound to no other.
// At most one lease of it is out at a time; what the order promises of a nack or
// an expiry holds within it.
type lane[R any] struct {
	first, last *message[R] // those not acknowledged, by offset
	count       int         // of them
	hash        uint64      // of the key, with keyed
	keyed       bool        // it is in Window.keys

	out   int       // messages out, all under the lease
	lease uint64    // its number, while out > 0
	until time.Time // its end, while out > 0

	barrier int64 // messages below are redelivered before any above is handed out
	narrow  int   // most messages of a batch below the barrier; 0: any

	following *message[R] // of the Take under way: what it may take next
	back      int64       // of the Nack under way: its lowest message, with nacked
	nacked    bool

	in   *lanes[R] // the heap that it stands in, or nil
	at   int       // its place there
	rank int64
}

// push appends a message.
func (l *lane[R]) push(m *message[R]) {
	m.lane, m.prev = l, l.last
	if l.last == nil {
		l.first = m
	} else {
		l.last.next = m
	}
	l.last = m
	l.count++
}

// drop takes a message out, wherever it stands.
func (l *lane[R]) drop(m *message[R]) {
	if m.prev == nil {
		l.first = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.last = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
	l.count--
}

// widen lets batches grow again after one was acknowledged whole.
func (l *lane[R]) widen(most int) {
	if l.narrow *= narrowing; l.narrow >= most {
		l.narrow = 0
	}
}

// lanes is a heap of lanes, the lowest rank first. A lane stands in one heap at
// most.
type lanes[R any] struct{ all []*lane[R] }

func (h *lanes[R]) lowest() *lane[R] {
	if len(h.all) == 0 {
		return nil
	}
	return h.all[0]
}

// put moves a lane here, or to its new place here.
func (h *lanes[R]) put(l *lane[R], rank int64) {
	if l.in == h {
		if l.rank != rank {
			l.rank = rank
			h.down(h.up(l.at))
		}
		return
	}
	l.leave()
	l.in, l.at, l.rank = h, len(h.all), rank
	h.all = append(h.all, l)
	h.up(l.at)
}

// leave takes a lane out of the heap that it stands in, if any.
func (l *lane[R]) leave() {
	h := l.in
	if h == nil {
		return
	}
	l.in = nil
	end := len(h.all) - 1
	moved := h.all[end]
	h.all[end] = nil
	h.all = h.all[:end]
	if moved != l {
		h.all[l.at], moved.at = moved, l.at
		h.down(h.up(moved.at))
	}
}

func (h *lanes[R]) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if h.all[parent].rank <= h.all[i].rank {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i
}

func (h *lanes[R]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.all) {
			return
		}
		if right := child + 1; right < len(h.all) && h.all[right].rank < h.all[child].rank {
			child = right
		}
		if h.all[i].rank <= h.all[child].rank {
			return
		}
		h.swap(i, child)
		i = child
	}
}

func (h *lanes[R]) swap(i, j int) {
	h.all[i], h.all[j] = h.all[j], h.all[i]
	h.all[i].at, h.all[j].at = i, j
}

// place puts a lane where its state belongs. It is called after every change of
// what is out of it or of its first message.
func (w *Window[R]) place(l *lane[R]) {
	switch m := l.first; {
	case l.out > 0:
		w.out.put(l, w.rank(l.until))
	case m == nil:
		l.leave()
		if l.keyed {
			delete(w.keys, l.hash)
		}
	case w.exhausted(m):
		w.dead.put(l, m.offset)
	case !m.notBefore.IsZero():
		w.later.put(l, w.rank(m.notBefore))
	default:
		w.ready.put(l, m.offset)
	}
}

// promote makes the lanes ready whose first message has been put off for long
// enough.
func (w *Window[R]) promote(now time.Time) {
	for l := w.later.lowest(); l != nil && !l.first.notBefore.After(now); l = w.later.lowest() {
		w.ready.put(l, l.first.offset)
	}
}

// rank orders times. It counts from a moment of this process, so that a clock
// that is set keeps no lease from ending.
func (w *Window[R]) rank(t time.Time) int64 { return int64(t.Sub(w.epoch)) }

// laneOf is the lane that a record joins. free are lanes to use for messages
// that are bound to no other.
func (w *Window[R]) laneOf(r Record[R], free *[]lane[R]) *lane[R] {
	switch {
	case w.whole != nil:
		return w.whole
	case w.cfg.Order == OrderKey && r.Keyed:
		l := w.keys[r.Key]
		if l == nil {
			l = &lane[R]{hash: r.Key, keyed: true, barrier: w.restore}
			w.keys[r.Key] = l
		}
		return l
	}
	if len(*free) == 0 {
		*free = make([]lane[R], slab)
	}
	l := &(*free)[0]
	*free = (*free)[1:]
	return l
}

// slab is how many messages (or lanes) are made at once. One of them that is
// not acknowledged keeps all of a slab in memory, so it is small.
const slab = 32
