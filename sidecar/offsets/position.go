package offsets

import (
	"slices"
	"sort"
	"time"
)

// How many [Retry] entries are kept; those of the lowest offsets stay, since they
// are what holds the low edge back.
const (
	MaxRetries    = 256 // in a position, and so in the local store
	storedRetries = 64  // in the coordination store
)

// Range is a half-open range of offsets: From is in it, To is not.
type Range struct{ From, To int64 }

// Retry says that a message was handed out and not acknowledged, where that
// differs from what the hand-out edge tells: Attempt hand-outs were spent on it
// (the next carries Attempt+1), and it was put off until NotBefore (zero: it
// was not put off).
type Retry struct {
	Offset    int64
	Attempt   int
	NotBefore time.Time
}

// Position is what of one partition one group has acknowledged. Every offset
// below Low is acknowledged, and those in Acked. It is a plain value, but its
// slices are shared by a copy and changed in place by Ack: use Clone for a copy
// that lives on. It is not safe for concurrent use.
type Position struct {
	// Topic is the topic's UUID, or "" where the brokers give none. A position
	// of another topic UUID is of another log.
	Topic string
	// SeekEpoch counts the group's seeks of the topic. Within one epoch nothing
	// rewinds; a higher one replaces a lower one.
	SeekEpoch uint64
	// Low is the lowest offset that may be unacknowledged.
	Low int64
	// Acked are the acknowledged ranges above Low: sorted, disjoint, not
	// adjacent to each other or to Low.
	Acked []Range
	// HandOut is one past the highest offset ever handed to an application.
	HandOut int64
	// Passed are ranges below HandOut that were never handed out: others went
	// first. Sorted, disjoint, not adjacent, without what is acknowledged. One
	// that is left out counts as handed out, which costs an attempt and no more.
	Passed []Range
	// Retries are sorted by offset, at most MaxRetries.
	Retries []Retry
	// LeaderEpoch is of the last batch fetched; -1 or 0 when unknown.
	LeaderEpoch int32
}

// Clone returns a copy that shares nothing with p.
func (p Position) Clone() Position {
	p.Acked = slices.Clone(p.Acked)
	p.Passed = slices.Clone(p.Passed)
	p.Retries = slices.Clone(p.Retries)
	return p
}

// Equal says whether two positions say the same.
func (p Position) Equal(q Position) bool {
	return p.Topic == q.Topic && p.SeekEpoch == q.SeekEpoch && p.Low == q.Low && p.HandOut == q.HandOut &&
		p.LeaderEpoch == q.LeaderEpoch && slices.Equal(p.Acked, q.Acked) && slices.Equal(p.Passed, q.Passed) &&
		slices.EqualFunc(p.Retries, q.Retries, func(a, b Retry) bool {
			return a.Offset == b.Offset && a.Attempt == b.Attempt && a.NotBefore.Equal(b.NotBefore)
		})
}

// Ack acknowledges one offset and says whether that was news.
func (p *Position) Ack(offset int64) (added bool) {
	if offset < 0 || p.IsAcked(offset) {
		return false
	}
	p.AckRange(offset, offset+1)
	return true
}

// AckRange acknowledges from ≤ offset < to. Offsets that hold no message
// (compacted away, control records, aborted transactions, below the log's
// start) are acknowledged with it too.
func (p *Position) AckRange(from, to int64) {
	if from >= to || to <= p.Low {
		return
	}
	if from > p.Low {
		p.insert(Range{from, to})
	} else {
		p.Low = to
	}
	p.settle()
}

// insert adds a range that lies above Low, joining what it touches.
func (p *Position) insert(r Range) {
	// i is the first range that ends at or after the new one's start, j the
	// first that begins after its end: all between are swallowed.
	i := sort.Search(len(p.Acked), func(i int) bool { return p.Acked[i].To >= r.From })
	j := i
	for j < len(p.Acked) && p.Acked[j].From <= r.To {
		r.From = min(r.From, p.Acked[j].From)
		r.To = max(r.To, p.Acked[j].To)
		j++
	}
	p.Acked = slices.Replace(p.Acked, i, j, r)
}

// settle moves Low over the ranges that it reached, keeps the hand-out edge at
// or above it, and forgets the retries of what is acknowledged.
func (p *Position) settle() {
	n := 0
	for n < len(p.Acked) && p.Acked[n].From <= p.Low {
		p.Low = max(p.Low, p.Acked[n].To)
		n++
	}
	p.Acked = slices.Delete(p.Acked, 0, n)
	if len(p.Acked) == 0 {
		p.Acked = nil
	}
	p.HandOut = max(p.HandOut, p.Low)
	if len(p.Passed) > 0 {
		p.Passed = subtract(cut(p.Passed, p.Low, p.HandOut), p.Acked)
	}
	p.Retries = slices.DeleteFunc(p.Retries, func(r Retry) bool { return p.IsAcked(r.Offset) })
	if len(p.Retries) == 0 {
		p.Retries = nil
	}
}

// IsAcked says whether the offset is acknowledged.
func (p Position) IsAcked(offset int64) bool {
	if offset < p.Low {
		return true
	}
	i := sort.Search(len(p.Acked), func(i int) bool { return p.Acked[i].To > offset })
	return i < len(p.Acked) && p.Acked[i].From <= offset
}

// NextUnacked is the lowest offset ≥ from that is not acknowledged.
func (p Position) NextUnacked(from int64) int64 {
	from = max(from, p.Low)
	i := sort.Search(len(p.Acked), func(i int) bool { return p.Acked[i].To > from })
	if i < len(p.Acked) && p.Acked[i].From <= from {
		return p.Acked[i].To
	}
	return from
}

// AckedBetween counts the acknowledged offsets in from ≤ offset < to.
func (p Position) AckedBetween(from, to int64) int64 {
	if from >= to {
		return 0
	}
	var n int64
	if p.Low > from {
		n += min(p.Low, to) - from
	}
	for _, r := range p.Acked {
		if lo, hi := max(r.From, from), min(r.To, to); lo < hi {
			n += hi - lo
		}
	}
	return n
}

// Retry looks up the retry entry of an offset.
func (p Position) Retry(offset int64) (Retry, bool) {
	i, ok := slices.BinarySearchFunc(p.Retries, offset, func(r Retry, o int64) int { return cmpOffset(r.Offset, o) })
	if !ok {
		return Retry{}, false
	}
	return p.Retries[i], true
}

// SetRetries replaces the retry entries: sorted, without those of acknowledged
// offsets, the lowest MaxRetries of them.
func (p *Position) SetRetries(rs []Retry) {
	rs = slices.DeleteFunc(slices.Clone(rs), func(r Retry) bool { return p.IsAcked(r.Offset) })
	slices.SortFunc(rs, func(a, b Retry) int { return cmpOffset(a.Offset, b.Offset) })
	if len(rs) > MaxRetries {
		rs = rs[:MaxRetries]
	}
	if len(rs) == 0 {
		rs = nil
	}
	p.Retries = rs
}

func cmpOffset(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
