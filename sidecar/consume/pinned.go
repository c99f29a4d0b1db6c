package consume

import (
	"bytes"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sidecar/consume/window"
)

// Records share the memory of the answer that they came in, and one of them
// that waits for hours for its repetition would keep all of it. So what is left
// of an answer after a while, when it is the smaller part of it, gets memory of
// its own.

const (
	pinAge    = 200 * time.Millisecond // most messages are acknowledged sooner: they are not copied
	pinAgain  = 2 * time.Second        // when to look again at one whose messages are mostly there still
	pinIgnore = 16 << 10               // bytes of an answer that is not worth it
)

// pin is an answer that messages of a partition keep in memory.
type pin struct {
	from, to int64
	bytes    int
	due      time.Time // when to look at it
}

// pins are those of one partition, oldest first.
type pins []pin

func (ps *pins) add(from, to int64, bytes int, now time.Time) {
	if bytes >= pinIgnore {
		*ps = append(*ps, pin{from, to, bytes, now.Add(pinAge)})
	}
}

// release looks at the answers that are due and copies what is left of those
// of which it is less than half.
func (ps *pins) release(win *window.Window[*kgo.Record], now time.Time) {
	*ps = slices.DeleteFunc(*ps, func(p pin) bool { return !p.due.After(now) && p.release(win) })
	for i := range *ps {
		if p := &(*ps)[i]; !p.due.After(now) {
			p.due = now.Add(pinAgain)
		}
	}
}

// release reports whether nothing keeps the answer any more.
func (p pin) release(win *window.Window[*kgo.Record]) bool {
	left := 0
	win.Each(p.from, p.to, func(size int, r *kgo.Record) *kgo.Record {
		left += size
		return r
	})
	if left == 0 {
		return true
	}
	if 2*left >= p.bytes {
		return false
	}
	win.Each(p.from, p.to, func(_ int, r *kgo.Record) *kgo.Record { return ownRecord(r) })
	return true
}

// ownRecord is a copy that shares no memory. Whoever has the record still may
// go on reading it.
func ownRecord(r *kgo.Record) *kgo.Record {
	c := *r
	c.Key, c.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	c.Headers = slices.Clone(r.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = bytes.Clone(c.Headers[i].Value)
	}
	return &c
}
