package window

import (
	"slices"
	"time"
)

// Exhausted is a message that may not be handed out any more and is to be
// diverted: written elsewhere (a dead letter) or passed over by policy.
type Exhausted[R any] struct {
	Offset     int64
	Attempt    int    // hand-outs that were spent on it
	Reason     string // one of the Reason constants
	FirstError string // what the application said of it at first, as far as is known here; "" when it said nothing
	LastError  string // and at last
	Ref        R
}

// Why a message is to be diverted.
const (
	ReasonMaxAttempts = "max_attempts" // it was handed out as often as the group allows
	ReasonWindowFull  = "window_full"  // it was put off, and what waits behind it fills the window
)

// Exhausted lists the messages that are to be diverted now, by offset, each
// once: the caller has it until it calls Skip (it is elsewhere, or passed over:
// it counts as acknowledged) or Retain (it cannot be diverted now). Until Skip
// it is not handed out, and holds back in its order what an unacknowledged
// message holds back. A late Ack of it is as good as a Skip.
func (w *Window[R]) Exhausted(now time.Time) (list []Exhausted[R]) {
	w.Expire(now)
	w.crowd(now)
	for _, l := range w.dead.all {
		m := l.first
		if m.diverting {
			continue
		}
		m.diverting, m.blocked = true, false
		e := Exhausted[R]{Offset: m.offset, Attempt: m.spent, Reason: ReasonMaxAttempts, FirstError: m.firstError, LastError: m.lastError, Ref: m.ref}
		if m.crowds {
			e.Reason = ReasonWindowFull
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Exhausted[R]) int { return int(a.Offset - b.Offset) })
	return list
}

// Retain says that a message of Exhausted cannot be diverted now: it stays, Why
// is DeadBlocked while it holds up the rest, and Exhausted lists it again. One
// that fills the window goes on waiting until the time that it was put off to.
// Retain does nothing for a message that is acknowledged by now.
func (w *Window[R]) Retain(offset int64) {
	m := w.find(offset)
	if m == nil || m.done || !m.diverting {
		return
	}
	m.diverting, m.blocked = false, !m.crowds
	if m.crowds {
		m.crowds, w.stuckSince = false, time.Time{}
		w.place(m.lane)
	}
}

// exhausted says whether a message has used up its attempts. The last of them
// must be a failure of its own: not a guess about an earlier owner's hand-outs,
// and not that of a message before it in its lane, which brought it back too.
func (w *Window[R]) exhausted(m *message[R]) bool {
	return m.crowds || w.cfg.MaxAttempts > 0 && m.spent >= w.cfg.MaxAttempts && !m.excused
}

// SetMaxAttempts changes the limit of a window that is at work.
func (w *Window[R]) SetMaxAttempts(n int) {
	if n == w.cfg.MaxAttempts {
		return
	}
	w.cfg.MaxAttempts = n
	for _, h := range []*lanes[R]{&w.ready, &w.later, &w.dead} {
		for _, l := range slices.Clone(h.all) {
			if m := l.first; !w.exhausted(m) {
				m.diverting, m.blocked = false, false
			}
			w.place(l)
		}
	}
}

// crowd finds the message because of which nothing goes on: one of a key that
// was put off while messages of that key fill the window behind it, so that
// nothing can be fetched for the other keys. It has FullPatience to come due.
func (w *Window[R]) crowd(now time.Time) {
	if w.cfg.Order != OrderKey || w.inFlight > 0 || !w.Full() || w.anyReady(now) {
		w.stuckSince = time.Time{}
		return
	}
	var most *lane[R]
	for _, l := range w.later.all {
		if most == nil || l.count > most.count || l.count == most.count && l.first.offset < most.first.offset {
			most = l
		}
	}
	if most == nil || 2*most.count < w.waiting {
		w.stuckSince = time.Time{}
		return
	}
	if w.stuckSince.IsZero() {
		w.stuckSince = now
	}
	if now.Sub(w.stuckSince) >= w.cfg.FullPatience {
		most.first.crowds = true
		w.place(most)
	}
}
