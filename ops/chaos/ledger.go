package chaos

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// Ledger keeps what was promised by an answer and what was seen, and judges.
// Safe for concurrent use.
type Ledger struct {
	mu        sync.Mutex          // guards all below
	published map[string]string   // id "topic/p/o" → value, answered 200
	unknown   map[string]struct{} // values whose publish was not answered 200
	delivered []Delivery
	acked     map[string]time.Time // id → when its ack was answered 200
}

// Delivery is one message handed to an application.
type Delivery struct {
	ID, Key, Value string
	Partition      int32
	Offset         int64
	Attempt        int
	By             string
	At             time.Time
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{published: map[string]string{}, unknown: map[string]struct{}{}, acked: map[string]time.Time{}}
}

// Published records an answer 200. An offset that was promised to two values
// is a fault at once.
func (l *Ledger) Published(topic string, partition int32, offset int64, value string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := fmt.Sprintf("%s/%d/%d", topic, partition, offset)
	if old, ok := l.published[id]; ok && old != value {
		return fmt.Errorf("%s was promised to two values: %.40q and %.40q", id, old, value)
	}
	l.published[id] = value
	return nil
}

// Unknown records a value whose fate the answer left open.
func (l *Ledger) Unknown(value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown[value] = struct{}{}
}

// Delivered records a pulled batch.
func (l *Ledger) Delivered(by string, at time.Time, ms []api.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range ms {
		d := Delivery{ID: m.ID, Partition: m.Partition, Offset: m.Offset, Attempt: m.Attempt, By: by, At: at}
		if m.Value != nil {
			d.Value = *m.Value
		}
		if m.Key != nil {
			d.Key = *m.Key
		}
		l.delivered = append(l.delivered, d)
	}
}

// Acked records ids whose ack was answered 200, at the time of the answer.
func (l *Ledger) Acked(at time.Time, ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if _, ok := l.acked[id]; !ok {
			l.acked[id] = at
		}
	}
}

// Counts are the sizes: promised, delivered, acknowledged.
func (l *Ledger) Counts() (published, delivered, acked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.published), len(l.delivered), len(l.acked)
}

// Skipped lists promised messages that were never delivered.
func (l *Ledger) Skipped() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{}
	for _, d := range l.delivered {
		seen[d.ID] = true
	}
	var out []string
	for id := range l.published {
		if !seen[id] {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}

// RepeatedAfterAck lists deliveries of messages whose ack had been answered
// before the delivery, with the time of that ack.
func (l *Ledger) RepeatedAfterAck() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]time.Time{}
	for _, d := range l.delivered {
		if at, ok := l.acked[d.ID]; ok && at.Before(d.At) {
			out[d.ID] = at
		}
	}
	return out
}

// WrongValues lists deliveries whose value is not the one promised at that
// offset, and offsets that were seen with two values.
func (l *Ledger) WrongValues() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	seen := map[string]string{}
	for _, d := range l.delivered {
		if want, ok := l.published[d.ID]; ok && want != d.Value {
			out = append(out, fmt.Sprintf("%s: promised %.40q, got %.40q", d.ID, want, d.Value))
		}
		if old, ok := seen[d.ID]; ok && old != d.Value {
			out = append(out, fmt.Sprintf("%s: seen as %.40q and as %.40q", d.ID, old, d.Value))
		}
		seen[d.ID] = d.Value
	}
	return out
}

// FirstSeen is the order in which the messages were delivered first.
func (l *Ledger) FirstSeen() []Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{}
	var out []Delivery
	for _, d := range l.delivered {
		if !seen[d.ID] {
			seen[d.ID] = true
			out = append(out, d)
		}
	}
	return out
}

// OutOfOrder lists messages delivered for the first time after a later offset
// of their partition had been.
func (l *Ledger) OutOfOrder() []string {
	high := map[int32]int64{}
	var out []string
	for _, d := range l.FirstSeen() {
		if h, ok := high[d.Partition]; ok && d.Offset < h {
			out = append(out, fmt.Sprintf("%s after offset %d", d.ID, h))
			continue
		}
		high[d.Partition] = d.Offset
	}
	return out
}

// few shortens a list for a failure message.
func few(list []string) string {
	if len(list) > 8 {
		return strings.Join(list[:8], ", ") + fmt.Sprintf(" … %d in all", len(list))
	}
	return strings.Join(list, ", ")
}
