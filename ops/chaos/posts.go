package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Rules that publishing can break, beside ruleAnswer, ruleLate and ruleProcess.
const (
	ruleLost     = "lost"                // answered 200 or 202, and not in the log
	ruleTwice    = "twice"               // in the log more often than once
	rulePlace    = "elsewhere"           // not where the answer, or the request, says
	ruleRefused  = "there though absent" // an answer said that it was certainly not written
	ruleContent  = "another's content"   // nobody published it, or with another key
	ruleKeyOrder = "order of publishing" // before what was acknowledged before it was sent
	ruleReplay   = "another answer"      // a repeat with the same key was answered otherwise
	ruleFate     = "fate of the spool"   // GET /spool/{id} says otherwise than the log
)

// fate is what an answer says of one message.
type fate int

const (
	fateUnknown fate = iota // absent, or there once
	fateWritten             // there once, at the offset
	fateSpooled             // there once, when the spool is empty
	fateRefused             // absent
)

func (f fate) String() string {
	return [...]string{"unknown", "written", "spooled", "refused"}[f]
}

// outcome is an answer about one message.
type outcome struct {
	fate      fate
	partition int32
	offset    int64  // -1: not told
	spool     string // id
	why       string // of an error
	attempt   bool   // it says that this request wrote nothing, and nothing of one before
}

func (o outcome) String() string {
	switch o.fate {
	case fateWritten:
		return fmt.Sprintf("written at %d/%d", o.partition, o.offset)
	case fateSpooled:
		return fmt.Sprintf("spooled as %s for partition %d", o.spool, o.partition)
	}
	return fmt.Sprintf("%v (%s)", o.fate, o.why)
}

func (o outcome) good() bool { return o.fate == fateWritten || o.fate == fateSpooled }

// sent is one message of a post.
type sent struct {
	value     string // of which there is only one
	key       string
	partition int32  // -1: not asked for
	lane      string // in which the publisher's messages keep their order; "": in none
	outcome   outcome
}

// Post is one request of a publisher, with its repeats.
type Post struct {
	messages []sent
	attempts int
	what     string // for people: where, how and when
}

// Found is a message as it is in the log.
type Found struct {
	Partition  int32
	Offset     int64
	Key, Value string
	ID         string // of its header sidestream-id, the last where it has several
}

// PublishChecker judges what publishers were answered against what is in the
// log in the end. It does no I/O. Safe for concurrent use.
type PublishChecker struct {
	mu     sync.Mutex      // guards all below, and the posts
	posts  map[int][]*Post // by publisher, in the order in which they were sent
	broken map[string][]string
	counts map[string]int
}

// NewPublishChecker makes a checker that knows of nothing.
func NewPublishChecker() *PublishChecker {
	return &PublishChecker{posts: map[int][]*Post{}, broken: map[string][]string{}, counts: map[string]int{}}
}

// Break records that a rule was broken.
func (c *PublishChecker) Break(rule, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakRule(rule, format, args...)
}

func (c *PublishChecker) breakRule(rule, format string, args ...any) {
	c.broken[rule] = append(c.broken[rule], fmt.Sprintf(format, args...))
}

// Broken lists what was broken, by rule.
func (c *PublishChecker) Broken() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]string{}
	for rule, list := range c.broken {
		out[rule] = slices.Clone(list)
	}
	return out
}

// Sent records a request before it is sent for the first time. A publisher
// sends one after the other.
func (c *PublishChecker) Sent(publisher int, what string, messages []sent) *Post {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &Post{messages: messages, what: what}
	c.posts[publisher] = append(c.posts[publisher], p)
	return p
}

// Answered records what was answered to a post, message by message; where it was
// repeated this answer is the last word, and may not take back an earlier one.
func (c *PublishChecker) Answered(p *Post, outcomes []outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.attempts++
	for i, o := range outcomes {
		m := &p.messages[i]
		was := m.outcome
		if p.attempts > 1 && o.attempt {
			continue
		}
		if p.attempts > 1 && was.good() {
			if o.good() && o != was || o.fate == fateRefused {
				c.breakRule(ruleReplay, "%s: %q was %v, and then %v", p.what, short(m.value), was, o)
			}
			continue // the good one holds
		}
		m.outcome = o
	}
}

// Count counts something, for the report.
func (c *PublishChecker) Count(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

// Counts is what was counted: the fates of messages among it.
func (c *PublishChecker) Counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for what, n := range c.counts {
		out[what] = n
	}
	for _, posts := range c.posts {
		for _, p := range posts {
			for _, m := range p.messages {
				out[m.outcome.fate.String()]++
			}
		}
	}
	return out
}

// Spooled lists the ids of the messages that went through the spool, of one
// publisher, with their values.
func (c *PublishChecker) Spooled(publisher int) (ids []spooledAs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.posts[publisher] {
		for _, m := range p.messages {
			if m.outcome.fate == fateSpooled {
				ids = append(ids, spooledAs{m.outcome.spool, m.value})
			}
		}
	}
	return ids
}

type spooledAs struct{ id, value string }

// Finish judges, given all that is in the log. It may be called again with
// another log.
func (c *PublishChecker) Finish(log []Found) {
	c.mu.Lock()
	defer c.mu.Unlock()
	there := map[string][]Found{}
	for _, f := range log {
		there[f.Value] = append(there[f.Value], f)
	}
	known := 0
	for publisher, posts := range c.posts {
		acked := map[string]placed{} // by lane: the last that was acknowledged so far
		for _, p := range posts {
			for i := range p.messages {
				m := &p.messages[i]
				found := there[m.value]
				if len(found) > 0 {
					known++
				}
				c.judge(p, m, found)
			}
			c.order(publisher, p, there, acked)
		}
	}
	if known == len(there) {
		return
	}
	published := map[string]bool{}
	for _, posts := range c.posts {
		for _, p := range posts {
			for _, m := range p.messages {
				published[m.value] = true
			}
		}
	}
	for value, found := range there {
		if !published[value] {
			c.breakRule(ruleContent, "nobody published %q, which is at %s", short(value), at(found))
		}
	}
}

// judge holds one message against what is there of it.
func (c *PublishChecker) judge(p *Post, m *sent, found []Found) {
	o := m.outcome
	switch {
	case len(found) == 0 && o.good():
		c.breakRule(ruleLost, "%s: %q was %v, and is not there", p.what, short(m.value), o)
	case len(found) > 0 && o.fate == fateRefused:
		c.breakRule(ruleRefused, "%s: %q was %v, and is at %s", p.what, short(m.value), o, at(found))
	case len(found) > 1:
		c.breakRule(ruleTwice, "%s: %q was %v, and is at %s", p.what, short(m.value), o, at(found))
	}
	for _, f := range found {
		if f.Key != m.key {
			c.breakRule(ruleContent, "%s: %q has the key %q, and was published with %q", p.what, short(m.value), f.Key, m.key)
		}
		if m.partition >= 0 && f.Partition != m.partition {
			c.breakRule(rulePlace, "%s: %q is at %d/%d, and was published to partition %d", p.what, short(m.value), f.Partition, f.Offset, m.partition)
		}
		if o.good() && (f.Partition != o.partition || o.offset >= 0 && f.Offset != o.offset) && len(found) == 1 {
			c.breakRule(rulePlace, "%s: %q was %v, and is at %d/%d", p.what, short(m.value), o, f.Partition, f.Offset)
		}
	}
}

// placed is where an acknowledged message is.
type placed struct {
	Found
	what string
}

// order demands that messages of one lane lie in the order in which they were
// acknowledged: what was acknowledged before another was first sent comes before
// it. Within one request that was sent once they keep their order too.
func (c *PublishChecker) order(publisher int, p *Post, there map[string][]Found, acked map[string]placed) {
	after := map[string]placed{}
	for _, m := range p.messages {
		found := there[m.value]
		if m.lane == "" || len(found) == 0 {
			continue
		}
		first := slices.MinFunc(found, func(a, b Found) int { return cmp.Compare(a.Offset, b.Offset) })
		if before, ok := acked[m.lane]; ok && before.Partition == first.Partition && first.Offset < before.Offset {
			c.breakRule(ruleKeyOrder, "publisher %d, %s: %q of %s (%v) is at %d/%d, before what was acknowledged before it was sent: %q at %d of %s",
				publisher, p.what, short(m.value), m.lane, m.outcome, first.Partition, first.Offset, short(before.Value), before.Offset, before.what)
		}
		if !m.outcome.good() {
			continue
		}
		if before, ok := after[m.lane]; ok && p.attempts == 1 && first.Offset < before.Offset {
			c.breakRule(ruleKeyOrder, "publisher %d, %s: %q of %s is at %d/%d, before %q at %d, which precedes it in the request",
				publisher, p.what, short(m.value), m.lane, first.Partition, first.Offset, short(before.Value), before.Offset)
		}
		if before, ok := after[m.lane]; !ok || first.Offset > before.Offset {
			after[m.lane] = placed{first, p.what}
		}
	}
	for lane, f := range after {
		if before, ok := acked[lane]; !ok || f.Offset > before.Offset {
			acked[lane] = f
		}
	}
}

func at(found []Found) string {
	var list []string
	for _, f := range found {
		list = append(list, fmt.Sprintf("%d/%d", f.Partition, f.Offset))
	}
	return few(list)
}

// short is a value without what only makes it long.
func short(value string) string {
	if len(value) > 48 {
		return value[:48]
	}
	return value
}
