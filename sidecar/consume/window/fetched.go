package window

import (
	"fmt"
	"time"

	"sidestream/sidecar/offsets"
)

// Add takes in what a fetch from Next brought. Records below Next (a batch is
// fetched whole) and acknowledged ones are left out; offsets without a record
// count as acknowledged. An error means that the fetch does not fit and nothing
// of it was taken.
func (w *Window[R]) Add(f Fetched[R]) error {
	if f.Next < w.next {
		return fmt.Errorf("window: the fetch ends at offset %d, before its start %d", f.Next, w.next)
	}
	last := int64(-1)
	for _, r := range f.Records {
		if r.Offset <= last {
			return fmt.Errorf("window: record offset %d follows %d: records must come by offset", r.Offset, last)
		}
		last = r.Offset
	}
	if last >= f.Next {
		return fmt.Errorf("window: record offset %d is not below the next fetch offset %d", last, f.Next)
	}
	at := w.next
	for _, r := range f.Records {
		if r.Offset < w.next {
			continue
		}
		w.pos.AckRange(at, r.Offset)
		at = r.Offset + 1
		if !w.pos.IsAcked(r.Offset) {
			w.push(r)
		}
	}
	w.pos.AckRange(at, f.Next)
	w.next = f.Next
	if f.LeaderEpoch >= 0 {
		w.pos.LeaderEpoch = f.LeaderEpoch
	}
	return nil
}

// push appends a message, with what is known of it from before.
func (w *Window[R]) push(r Record[R]) {
	m := message[R]{offset: r.Offset, size: r.Size, ref: r.Ref}
	if r.Offset < w.restore {
		m.spent = 1
	}
	if t, ok := w.pos.Retry(r.Offset); ok {
		m.spent = max(m.spent, t.Attempt)
		m.notBefore = t.NotBefore
		// Only a nack leaves a time; one that failed again and again goes on
		// being handed out with nothing behind it.
		m.alone = m.spent >= isolateAfter && !t.NotBefore.IsZero()
	}
	w.msgs = append(w.msgs, m)
	w.waiting++
	w.bytes += m.size
}

// SkipTo gives up everything below offset: the log's start has moved above it.
// It returns how many messages that were held and how many offsets that were
// not yet fetched are given up. The next fetch begins at offset or above.
func (w *Window[R]) SkipTo(offset int64) (held int, unfetched int64) {
	for i := range w.msgs {
		if m := &w.msgs[i]; m.offset < offset && !m.done {
			w.settle(m)
			held++
		}
	}
	if offset > w.next {
		unfetched = offset - w.next - w.pos.AckedBetween(w.next, offset)
		w.next = offset
	}
	w.pos.AckRange(w.pos.Low, offset)
	w.trim()
	return held, unfetched
}

// Position is what may be stored now: it shares nothing with the window.
func (w *Window[R]) Position() offsets.Position {
	p := w.pos.Clone()
	// Retries of messages not fetched yet stay as they were restored; of those
	// held the window knows better.
	var rs []offsets.Retry
	for i := range w.msgs {
		m := &w.msgs[i]
		if m.offset >= w.pos.HandOut || len(rs) == offsets.MaxRetries {
			break
		}
		if !m.done && (m.spent > 1 || !m.notBefore.IsZero()) {
			rs = append(rs, offsets.Retry{Offset: m.offset, Attempt: m.spent, NotBefore: m.notBefore})
		}
	}
	for _, r := range w.pos.Retries {
		if r.Offset >= w.next {
			rs = append(rs, r)
		}
	}
	p.SetRetries(rs)
	return p
}

// NextWake is the next time at which something happens by itself: a lease ends,
// or a message that was put off comes due. ok is false when nothing is awaited.
func (w *Window[R]) NextWake(now time.Time) (at time.Time, ok bool) {
	for _, l := range w.leases {
		if !ok || l.until.Before(at) {
			at, ok = l.until, true
		}
	}
	if ok {
		return at, true
	}
	if m := w.head(); m != nil && m.notBefore.After(now) {
		return m.notBefore, true
	}
	return time.Time{}, false
}
