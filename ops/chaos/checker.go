package chaos

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// Rules that a history of a group can break.
const (
	ruleSkip     = "skipped"             // never delivered
	ruleOrder    = "out of order"        // handed out although one below is neither acknowledged nor in the same lease
	ruleRepeat   = "repeated after ack"  // where the guarantees allow no repetition
	ruleOwners   = "two proven owners"   // a former owner hands out, and does not say that it is unproven
	ruleValue    = "wrong value"         // another value than promised, or two at one offset
	ruleAttempt  = "attempt not counted" // a later lease of a generation, and no higher attempt
	ruleReceipt  = "receipt refused"     // other than for a lease that is lost
	ruleAnswer   = "answer"              // an error that is none of those that a fault explains
	ruleLate     = "late"                // a fault cost more time than it may
	ruleMoved    = "moved"               // a partition moved that had no reason to
	ruleProcess  = "process"             // one ended by itself, or did not when it was told to
	ruleResource = "resource"            // memory or goroutines grow
)

// Checker watches one group on one topic, with explicit acknowledgements, and
// judges what its applications saw against what the guarantees say. It does no
// I/O and takes all times from its callers. Safe for concurrent use.
//
// Order, and that nothing is skipped, is one rule here: whoever is handed a
// message may infer that all below it (of its key, with order=key) are
// acknowledged, or come before it in the same lease. It holds across owners and
// whatever died.
type Checker struct {
	byKey bool // the group has order=key, else order=partition

	mu       sync.Mutex // guards all below
	parts    []*partitionLog
	broken   map[string][]string // by rule
	repeats  []repeat            // judged at the end, when all losses are known
	losses   []*loss
	ackedOK  int
	seen     int
	repeated int
	unproven int // deliveries that were called so
	promised int // messages that were answered 200
}

// partitionLog is one partition by offset.
type partitionLog struct {
	events  []event
	keys    map[string][]int64 // offsets of each key, as far as known, rising
	low     int64              // all below are acknowledged, or may be
	highest uint64
	since   time.Time // when a message of the highest generation first came
	last    string    // who delivered last
	lastAt  time.Time
}

// event is what is known of one offset.
type event struct {
	promised   bool
	promisedAt time.Time
	value      string // as promised, or as first delivered
	delivered  bool
	pending    int // acks that were sent and not answered
	acks       []acked
	gen        uint64 // of the last delivery, with its lease and attempt
	lease      uint64
	attempt    int
}

// acked is an ack that was answered well.
type acked struct {
	by          string
	at          time.Time // of the answer
	provisional bool
}

// repeat is a delivery that came after an ack by another sidecar. That of a
// former owner which says that it is unproven is none: it cannot know.
type repeat struct {
	id  string
	by  string
	at  time.Time
	ack acked
}

// loss is a time in which the acks of a sidecar may get lost to the others.
type loss struct {
	by   string // "": any
	why  string
	from time.Time
	to   time.Time // zero: not over
}

// NewChecker makes a checker of a topic with so many partitions, for a group with
// order=partition, or byKey with order=key.
func NewChecker(partitions int, byKey bool) *Checker {
	c := &Checker{broken: map[string][]string{}, byKey: byKey}
	for range partitions {
		c.parts = append(c.parts, &partitionLog{keys: map[string][]int64{}})
	}
	return c
}

// Break records that a rule was broken.
func (c *Checker) Break(rule, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakRule(rule, format, args...)
}

func (c *Checker) breakRule(rule, format string, args ...any) {
	c.broken[rule] = append(c.broken[rule], fmt.Sprintf(format, args...))
}

// Broken lists what was broken, by rule.
func (c *Checker) Broken() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]string{}
	for rule, list := range c.broken {
		out[rule] = append([]string(nil), list...)
	}
	return out
}

// Loses says that until over is called, and from a while before, the acks of a
// sidecar ("": of all) may be unknown to the others: repetitions of them are
// allowed.
func (c *Checker) Loses(by, why string, from time.Time) (over func(time.Time)) {
	l := &loss{by: by, why: why, from: from}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses = append(c.losses, l)
	return func(at time.Time) {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.to = at
	}
}

func (p *partitionLog) at(offset int64) *event {
	for int64(len(p.events)) <= offset {
		p.events = append(p.events, event{})
	}
	return &p.events[offset]
}

// know is at for an offset that is known to have a key.
func (p *partitionLog) know(offset int64, key string) *event {
	list := p.keys[key]
	if i, known := slices.BinarySearch(list, offset); !known {
		p.keys[key] = slices.Insert(list, i, offset)
	}
	return p.at(offset)
}

// open is the lowest offset that must not be open where top is handed out with
// those in: of its key, or of all. It is -1 when there is none.
func (p *partitionLog) open(byKey bool, key string, top int64, in map[int64]bool) int64 {
	if !byKey {
		for o := p.low; o < top; o++ {
			if !in[o] && !p.events[o].maybeAcked() {
				return o
			}
		}
		return -1
	}
	for _, o := range p.keys[key] {
		if o >= top {
			break
		}
		if !in[o] && !p.events[o].maybeAcked() {
			return o
		}
	}
	return -1
}

func keyOf(m api.Message) string {
	if m.Key == nil {
		return ""
	}
	return *m.Key
}

// maybeAcked says whether the owner may take the message for acknowledged.
func (e *event) maybeAcked() bool { return e.pending > 0 || len(e.acks) > 0 }

// Published records a publish that was answered 200 at a time.
func (c *Checker) Published(at time.Time, partition int32, offset int64, key, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.parts[partition].know(offset, key)
	if (e.promised || e.delivered) && e.value != value {
		c.breakRule(ruleValue, "partition %d offset %d was promised to %.60q, which had %.60q", partition, offset, value, e.value)
		return
	}
	e.promised, e.promisedAt, e.value = true, at, value
	c.promised++
}

// Delivered records the answer to a pull that was sent and answered at those
// times. What it leaves in the group's hands is judged at once.
func (c *Checker) Delivered(by string, sent, at time.Time, unproven bool, ms []api.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen += len(ms)
	if unproven {
		c.unproven += len(ms)
	}
	// A pull brings a lease of each of several partitions, one after the other.
	for len(ms) > 0 {
		n := 1
		r, err := readReceipt(ms[0].Receipt)
		if err != nil {
			c.breakRule(ruleReceipt, "%s: %v", ms[0].ID, err)
			return
		}
		for n < len(ms) && ms[n].Partition == ms[0].Partition {
			n++
		}
		c.delivered(by, sent, at, unproven, r, ms[:n])
		ms = ms[n:]
	}
}

func (c *Checker) delivered(by string, sent, at time.Time, unproven bool, r lease, batch []api.Message) {
	p := c.parts[batch[0].Partition]
	p.at(batch[len(batch)-1].Offset)
	in := map[int64]bool{}
	for i, m := range batch {
		in[m.Offset] = true
		if i > 0 && m.Offset <= batch[i-1].Offset {
			c.breakRule(ruleOrder, "%s follows offset %d in a batch of %s", m.ID, batch[i-1].Offset, by)
		}
		if l, err := readReceipt(m.Receipt); err != nil || l != r {
			c.breakRule(ruleReceipt, "%s: %v where a batch began with %v (%v)", m.ID, l, r, err)
		}
	}
	for i, m := range batch {
		if !c.byKey && i < len(batch)-1 {
			continue // what is open below the last is told once
		}
		if o := p.open(c.byKey, keyOf(m), m.Offset, in); o >= 0 {
			c.breakRule(ruleOrder, "%s got %s (generation %d, lease %d) at %s while offset %d is not acknowledged (delivered: %t)",
				by, m.ID, r.generation, r.lease, clock(at), o, p.events[o].delivered)
		}
	}
	switch {
	case r.generation > p.highest:
		p.highest, p.since = r.generation, at
	case r.generation < p.highest && p.since.Before(sent) && !unproven:
		c.breakRule(ruleOwners, "%s got %s of generation %d at %s by a pull sent at %s, after generation %d was seen at %s, and is not called unproven",
			by, batch[0].ID, r.generation, clock(at), clock(sent), p.highest, clock(p.since))
	}
	p.last, p.lastAt = by, at
	for _, m := range batch {
		e := p.know(m.Offset, keyOf(m))
		value := ""
		if m.Value != nil {
			value = *m.Value
		}
		if (e.promised || e.delivered) && e.value != value {
			c.breakRule(ruleValue, "%s: %.60q and %.60q", m.ID, e.value, value)
		}
		again := false
		for _, a := range e.acks {
			if !a.at.Before(sent) {
				continue // it may have been on its way when the ack came
			}
			again = true
			if a.by == by {
				c.breakRule(ruleRepeat, "%s came from %s by a pull sent at %s, which had answered its ack at %s", m.ID, by, clock(sent), clock(a.at))
				continue
			}
			if unproven && r.generation < p.highest {
				continue
			}
			c.repeats = append(c.repeats, repeat{m.ID, by, at, a})
		}
		if again {
			c.repeated++
		}
		if e.gen == r.generation && r.lease > e.lease && m.Attempt <= e.attempt {
			c.breakRule(ruleAttempt, "%s: attempt %d in lease %d of generation %d, and %d in lease %d before", m.ID, m.Attempt, r.lease, r.generation, e.attempt, e.lease)
		}
		if m.Attempt < 1 {
			c.breakRule(ruleAttempt, "%s: attempt %d", m.ID, m.Attempt)
		}
		if e.gen != r.generation || r.lease > e.lease {
			e.gen, e.lease, e.attempt = r.generation, r.lease, m.Attempt
		}
		e.delivered, e.value = true, value
	}
}

// AckSent records acks before they are sent: from now on they may count.
func (c *Checker) AckSent(ms []api.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range ms {
		c.parts[m.Partition].at(m.Offset).pending++
		c.parts[m.Partition].advance()
	}
}

// AckAnswered records what became of acks. Call it not at all when no answer
// came: they may count then, for ever.
func (c *Checker) AckAnswered(by string, at time.Time, ms []api.Message, results []api.ReceiptResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(results) != len(ms) {
		c.breakRule(ruleReceipt, "%d results for %d receipts", len(results), len(ms))
		return
	}
	for i, m := range ms {
		p := c.parts[m.Partition]
		e := p.at(m.Offset)
		switch res := results[i]; {
		case res.Error == nil:
			e.pending--
			e.acks = append(e.acks, acked{by, at, res.Provisional})
			c.ackedOK++
		case res.Error.Code == api.CodeLeaseLost:
			e.pending--
			if !e.maybeAcked() {
				p.low = min(p.low, m.Offset)
			}
		case res.Error.Code == api.CodeUnknownOutcome: // it may count
		default:
			c.breakRule(ruleReceipt, "%s: %s", m.ID, res.Error)
		}
	}
}

func (p *partitionLog) advance() {
	for p.low < int64(len(p.events)) && p.events[p.low].maybeAcked() {
		p.low++
	}
}

// Finish judges what can be judged only at the end. ends are the end offsets of
// the partitions.
func (c *Checker) Finish(ends map[int32]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.parts {
		end, ok := ends[int32(i)]
		if !ok || end < int64(len(p.events)) {
			c.breakRule(ruleSkip, "partition %d ends at %d, and offset %d was promised or delivered", i, end, len(p.events)-1)
			continue
		}
		for o := range end {
			if e := p.at(o); !e.delivered {
				c.breakRule(ruleSkip, "partition %d offset %d (promised: %t)", i, o, e.promised)
			}
		}
	}
	for _, r := range c.repeats {
		if !r.ack.provisional && !c.excused(r) {
			c.breakRule(ruleRepeat, "%s came from %s at %s, whose ack %s had answered at %s", r.id, r.by, clock(r.at), r.ack.by, clock(r.ack.at))
		}
	}
	c.repeats = nil
}

func (c *Checker) excused(r repeat) bool {
	for _, l := range c.losses {
		if (l.by == "" || l.by == r.ack.by) && !r.ack.at.Before(l.from) && !r.at.Before(l.from) && (l.to.IsZero() || !r.ack.at.After(l.to)) {
			return true
		}
	}
	return false
}

// Open lists the offsets below the ends that nobody acknowledged for certain,
// few of them, with their number.
func (c *Checker) Open(ends map[int32]int64) (n int, list string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for i, p := range c.parts {
		for o := range ends[int32(i)] {
			if e := p.at(o); !e.delivered || !e.maybeAcked() {
				out = append(out, fmt.Sprintf("%d/%d (delivered: %t)", i, o, e.delivered))
			}
		}
	}
	return len(out), few(out)
}

// DeliveredBy lists the partitions whose last delivery was by a sidecar.
func (c *Checker) DeliveredBy(by string) (partitions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.parts {
		if p.last == by {
			partitions = append(partitions, i)
		}
	}
	return partitions
}

// LastDelivery says who delivered a partition last, and when.
func (c *Checker) LastDelivery(partition int) (by string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.parts[partition]
	return p.last, p.lastAt
}

// Quiet lists the partitions of which nothing was delivered since a time.
func (c *Checker) Quiet(since time.Time) (partitions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.parts {
		if !p.lastAt.After(since) {
			partitions = append(partitions, i)
		}
	}
	return partitions
}

// Stuck lists the partitions with a message that was promised before a time and
// is not delivered yet.
func (c *Checker) Stuck(before time.Time) (partitions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.parts {
		if slices.ContainsFunc(p.events[p.low:], func(e event) bool { return e.promised && !e.delivered && e.promisedAt.Before(before) }) {
			partitions = append(partitions, i)
		}
	}
	return partitions
}

// Promised counts the messages that were answered 200.
func (c *Checker) Promised() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.promised
}

// Unproven counts the deliveries that were called so.
func (c *Checker) Unproven() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unproven
}

// Report sums up for people.
func (c *Checker) Report() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	messages := 0
	for _, p := range c.parts {
		messages += len(p.events)
	}
	why := map[string]int{}
	for _, l := range c.losses {
		why[l.why]++
	}
	var list []string
	for w, n := range why {
		list = append(list, fmt.Sprintf("%d × %s", n, w))
	}
	sort.Strings(list)
	return fmt.Sprintf("%d messages, %d deliveries (%d unproven), %d acks, %d repeated after an ack; acks at risk: %s",
		messages, c.seen, c.unproven, c.ackedOK, c.repeated, strings.Join(list, ", "))
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }
