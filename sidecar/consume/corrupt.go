package consume

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
)

// Kinds of what cannot be delivered as it stands in the log.
const (
	kindUndecodable = "undecodable" // nobody can read it
	kindOversized   = "oversized"   // larger than this sidecar's max_message_bytes, or of a batch that takes more than its max_unpacked_bytes
)

// unreadable is a place in a log that cannot be delivered, and does not pass by
// itself.
type unreadable struct {
	offset int64 // the first that cannot
	after  int64 // the first after it, as far as its batch can be trusted; -1: not known
	end    int64 // the log's end; -1: not known
	kind   string
	why    string

	since  time.Time // when it was found first
	probed int64     // below it there is nothing that can be read, where after is not known
}

// passable says whether it may be passed over: where it ends is known, or it has
// been waited for long enough to look for that.
func (u unreadable) passable(now time.Time, wait time.Duration) bool {
	return u.after > u.offset || u.after < 0 && now.Sub(u.since) >= wait
}

// tooLarge is the first record over a limit, or nil.
func tooLarge(records []*kgo.Record, limit int) *unreadable {
	for _, r := range records {
		if n := sizeOf(r) - recordOverhead; n > limit {
			return &unreadable{offset: r.Offset, after: r.Offset + 1, kind: kindOversized,
				why: fmt.Sprintf("offset %d of partition %d of topic %s has %d bytes: at most %d are delivered (consume.max_message_bytes); what follows begins at offset %d",
					r.Offset, r.Partition, r.Topic, n, limit, r.Offset+1)}
		}
	}
	return nil
}

// before are the records below an offset.
func before(records []*kgo.Record, offset int64) []*kgo.Record {
	for i, r := range records {
		if r.Offset >= offset {
			return records[:i]
		}
	}
	return records
}

// corrupt implements sink.
func (o *owner) corrupt(u unreadable) {
	policy := unreadablePolicy(o.key.Group, o.key.Topic, o.s.g.settings())
	o.mu.Lock()
	if o.win == nil || o.win.Next() != u.offset {
		o.mu.Unlock()
		return // sought past it meanwhile
	}
	o.end = max(o.end, u.end)
	u.since, u.probed = time.Now(), u.offset+1
	if was := o.dead.bad; was != nil && was.offset == u.offset {
		u.since, u.probed = was.since, was.probed
	}
	o.dead.bad = &u
	if u.after > u.offset && policy != unreadableStop {
		// It is passed over in a moment, and told then.
		news := o.standStill(u.why)
		o.mu.Unlock()
		if news {
			o.s.g.m.outage.works(o.key.String())
			o.s.wake()
		}
		return
	}
	why := u.why + "; seek the group there to go on"
	news := o.standStill(why)
	o.mu.Unlock()
	if news {
		o.stoodStill(why)
	}
}

// standStill remembers why the log cannot be read here, under mu. It reports
// whether that is news: the reader finds it again and again.
func (o *owner) standStill(why string) (news bool) {
	news = o.why != why
	o.why, o.unreadable = why, true
	return news
}

func (o *owner) stoodStill(why string) {
	o.s.g.m.outage.works(o.key.String()) // it is no outage: it does not pass by itself
	o.log.Error("partition stands still", zap.String("why", why))
	o.s.wake()
}
