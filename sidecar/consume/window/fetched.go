package window

import (
	"fmt"
	"slices"
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
	var free []lane[R]
	var made []message[R]
	at := w.next
	for _, r := range f.Records {
		if r.Offset < w.next {
			continue
		}
		w.pos.AckRange(at, r.Offset)
		at = r.Offset + 1
		if w.pos.IsAcked(r.Offset) {
			continue
		}
		if len(made) == 0 {
			made = make([]message[R], slab)
		}
		w.push(r, &made[0], w.laneOf(r, &free))
		made = made[1:]
	}
	w.pos.AckRange(at, f.Next)
	w.next = f.Next
	if f.LeaderEpoch >= 0 {
		w.pos.LeaderEpoch = f.LeaderEpoch
	}
	return nil
}

// farthest is a time that is put off to at most, whatever was stored.
var farthest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// push appends a message, with what is known of it from before.
func (w *Window[R]) push(r Record[R], m *message[R], l *lane[R]) {
	m.offset, m.size, m.ref = r.Offset, r.Size, r.Ref
	if r.Offset < w.restore && !w.pos.WasPassed(r.Offset) {
		m.spent, m.excused = 1, true // it may have been handed out
	}
	if t, ok := w.pos.Retry(r.Offset); ok {
		m.excused = m.excused && t.Attempt == 0
		m.spent = max(m.spent, t.Attempt)
		if m.notBefore = t.NotBefore; m.notBefore.After(farthest) {
			m.notBefore = farthest
		}
		// Only a nack leaves a time; one that failed again and again goes on
		// being handed out with nothing behind it.
		m.alone = m.spent >= isolateAfter && !t.NotBefore.IsZero()
		w.note(m)
	}
	w.msgs = append(w.msgs, m)
	w.waiting++
	w.bytes += m.size
	first := l.first == nil
	l.push(m)
	if first {
		w.place(l)
	}
}

// SkipTo gives up everything below offset: the log's start has moved above it.
// It returns how many messages that were held and how many offsets that were
// not yet fetched are given up. The next fetch begins at offset or above.
func (w *Window[R]) SkipTo(offset int64) (held int, unfetched int64) {
	for _, m := range w.msgs {
		if m.offset < offset && !m.done {
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
	for _, m := range w.tried {
		if m.offset >= w.pos.HandOut || len(rs) == offsets.MaxRetries {
			break
		}
		attempt := m.spent
		if m.excused && w.cfg.MaxAttempts > 0 { // the next owner must not take it for used up
			attempt = min(attempt, w.cfg.MaxAttempts-1)
		}
		if attempt > 1 || !m.notBefore.IsZero() {
			rs = append(rs, offsets.Retry{Offset: m.offset, Attempt: attempt, NotBefore: m.notBefore})
		}
	}
	for _, r := range w.pos.Retries {
		if r.Offset >= w.next {
			rs = append(rs, r)
		}
	}
	p.SetRetries(rs)
	p.SetPassed(w.passed())
	return p
}

// mostPassed bounds how many ranges that were passed over are told of.
const mostPassed = 256

// passed are the offsets below the hand-out edge that were never handed out.
func (w *Window[R]) passed() (list []offsets.Range) {
	if !w.passes {
		return nil
	}
	add := func(from, to int64) {
		if n := len(list); n > 0 && list[n-1].To == from {
			list[n-1].To = to
		} else if n < mostPassed {
			list = append(list, offsets.Range{From: from, To: to})
		}
	}
	for _, m := range w.msgs {
		if m.offset >= w.pos.HandOut {
			break
		}
		if !m.done && m.spent == 0 {
			add(m.offset, m.offset+1)
		}
	}
	for _, r := range w.pos.Passed { // of what is not fetched yet
		if r.To > w.next {
			add(max(r.From, w.next), r.To)
		}
	}
	w.passes = w.whole == nil || len(list) > 0
	return list
}

// note remembers that there is more to store of a message than the hand-out edge
// tells.
func (w *Window[R]) note(m *message[R]) {
	if m.noted {
		return
	}
	m.noted = true
	if n := len(w.tried); n == 0 || w.tried[n-1].offset < m.offset {
		w.tried = append(w.tried, m)
		return
	}
	i, _ := slices.BinarySearchFunc(w.tried, m.offset, byOffset[R])
	w.tried = slices.Insert(w.tried, i, m)
}

func (w *Window[R]) unnote(m *message[R]) {
	if !m.noted {
		return
	}
	m.noted = false
	if i, ok := slices.BinarySearchFunc(w.tried, m.offset, byOffset[R]); ok {
		w.tried = slices.Delete(w.tried, i, i+1)
	}
}

func byOffset[R any](m *message[R], offset int64) int { return int(m.offset - offset) }

// NextWake is the next time at which something happens by itself: a lease ends,
// or a message that was put off comes due. ok is false when nothing is awaited.
func (w *Window[R]) NextWake(now time.Time) (at time.Time, ok bool) {
	if l := w.out.lowest(); l != nil {
		at, ok = l.until, true
	}
	if l := w.later.lowest(); l != nil && l.first.notBefore.After(now) && (!ok || l.first.notBefore.Before(at)) {
		at, ok = l.first.notBefore, true
	}
	return at, ok
}
