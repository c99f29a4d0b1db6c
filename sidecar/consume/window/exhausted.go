package window

import "time"

// Exhausted is a message that may not be handed out any more and is to be
// diverted: written elsewhere (a dead letter) or passed over by policy.
type Exhausted[R any] struct {
	Offset    int64
	Attempt   int    // hand-outs that were spent on it
	Reason    string // one of the Reason constants
	LastError string // what the application last said of it; "" when it said nothing
	Ref       R
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
	m := w.head()
	if m == nil || m.lease != 0 || !w.exhausted(m) || m.diverting {
		return nil
	}
	m.diverting, m.blocked = true, false
	return append(list, Exhausted[R]{Offset: m.offset, Attempt: m.spent, Reason: ReasonMaxAttempts, LastError: m.lastError, Ref: m.ref})
}

// Retain says that a message of Exhausted cannot be diverted now: it stays, Why
// is DeadBlocked while it holds up the rest, and Exhausted lists it again. It
// does nothing for a message that is acknowledged by now.
func (w *Window[R]) Retain(offset int64) {
	if m := w.find(offset); m != nil && !m.done && m.diverting {
		m.diverting, m.blocked = false, true
	}
}

// exhausted says whether a message has used up its attempts.
func (w *Window[R]) exhausted(m *message[R]) bool {
	return w.cfg.MaxAttempts > 0 && m.spent >= w.cfg.MaxAttempts
}
