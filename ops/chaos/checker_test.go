package chaos

import (
	"encoding/base64"
	bin "encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// A checker that cannot fail proves nothing: each rule is broken here by a
// small history, and by it alone.
func TestCheckerFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		does func(h *history)
		want []string // rules
	}{
		{"all is well", func(h *history) {
			h.publish(6)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1, 2))
			h.ack("a", h.pull("a", 1, 2, 1, 3, 4, 5))
		}, nil},
		{"a message is never delivered", func(h *history) {
			h.publish(3)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
		}, []string{ruleSkip}},
		{"a message is passed over", func(h *history) {
			h.publish(3)
			h.ack("a", h.pull("a", 1, 1, 1, 0))
			h.ack("a", h.pull("a", 1, 2, 1, 2))
		}, []string{ruleOrder, ruleSkip}},
		{"the log is shorter than what was promised", func(h *history) {
			h.publish(3)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
			h.ends = 2
		}, []string{ruleSkip}},
		{"what follows comes before the ack", func(h *history) {
			h.publish(4)
			first := h.pull("a", 1, 1, 1, 0, 1)
			h.ack("a", first[1:])
			h.ack("a", h.pull("a", 1, 2, 1, 2, 3))
			h.ack("a", first[:1])
		}, []string{ruleOrder}},
		{"another owner goes on where nothing was acknowledged", func(h *history) {
			h.publish(4)
			h.pull("a", 1, 1, 1, 0, 1)
			h.ack("b", h.pull("b", 2, 1, 1, 2, 3))
			h.ack("b", h.pull("b", 2, 2, 2, 0, 1))
		}, []string{ruleOrder}},
		{"an ack that was refused does not count", func(h *history) {
			h.publish(2)
			h.refuse("a", h.pull("a", 1, 1, 1, 0), api.CodeLeaseLost)
			h.ack("b", h.pull("b", 2, 1, 1, 1))
			h.ack("b", h.pull("b", 2, 2, 2, 0))
		}, []string{ruleOrder}},
		{"an ack without an answer may count", func(h *history) {
			h.publish(2)
			h.c.AckSent(h.pull("a", 1, 1, 1, 0))
			h.ack("b", h.pull("b", 2, 1, 1, 1))
		}, nil},
		{"a batch out of order", func(h *history) {
			h.publish(2)
			h.ack("a", h.pull("a", 1, 1, 1, 1, 0))
		}, []string{ruleOrder}},
		{"acknowledged and repeated by the same sidecar", func(h *history) {
			h.publish(2)
			ms := h.pull("a", 1, 1, 1, 0, 1)
			h.ack("a", ms)
			h.c.Loses("", "anything", time.Time{}) // its own disk has it all the same
			h.ack("a", h.pull("a", 2, 1, 2, 0, 1))
		}, []string{ruleRepeat}},
		{"acknowledged and repeated by another without a reason", func(h *history) {
			h.publish(2)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
			h.ack("b", h.pull("b", 2, 1, 2, 0, 1))
		}, []string{ruleRepeat}},
		{"acknowledged long before the kill", func(h *history) {
			h.publish(2)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
			h.wait(time.Minute)
			h.c.Loses("a", "kill", h.now.Add(-time.Second))(h.now)
			h.ack("b", h.pull("b", 2, 1, 2, 0, 1))
		}, []string{ruleRepeat}},
		{"acknowledged by one and another was killed", func(h *history) {
			h.publish(2)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
			h.c.Loses("c", "kill", h.now.Add(-time.Minute))(h.now)
			h.ack("b", h.pull("b", 2, 1, 2, 0, 1))
		}, []string{ruleRepeat}},
		{"acknowledged shortly before the kill", func(h *history) {
			h.publish(2)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
			h.c.Loses("a", "kill", h.now.Add(-time.Second))(h.now)
			h.ack("b", h.pull("b", 2, 1, 2, 0, 1))
		}, nil},
		{"a pull that was under way when the ack came", func(h *history) {
			h.publish(1)
			first := h.pull("a", 1, 1, 1, 0)
			sent := h.now
			h.ack("a", first)
			h.c.Delivered("a", sent, h.now, false, h.batch(1, 2, 2, 0))
		}, nil},
		{"a former owner goes on and calls itself proven", func(h *history) {
			h.publish(2)
			h.pull("b", 2, 1, 1, 0)
			h.wait(time.Second)
			h.ack("a", h.pull("a", 1, 1, 1, 0, 1))
		}, []string{ruleOwners}},
		{"a former owner goes on and says that it is unproven", func(h *history) {
			h.publish(2)
			h.pull("b", 2, 1, 1, 0)
			h.wait(time.Second)
			ms := h.batch(1, 1, 1, 0, 1)
			h.c.Delivered("a", h.now, h.now, true, ms)
			h.ack("a", ms)
		}, nil},
		{"a former owner that is unproven repeats what the next one's ack settled", func(h *history) {
			h.publish(2)
			h.ack("b", h.pull("b", 2, 1, 1, 0, 1))
			h.c.Delivered("a", h.now, h.now, true, h.batch(1, 1, 2, 0, 1))
		}, nil},
		{"two values at one offset", func(h *history) {
			h.publish(1)
			ms := h.batch(1, 1, 1, 0)
			ms[0].Value = new("another")
			h.c.Delivered("a", h.now, h.now, false, ms)
			h.ack("a", ms)
		}, []string{ruleValue}},
		{"one offset is promised twice", func(h *history) {
			h.publish(1)
			h.c.Published(time.Now(), 0, 0, "key", "another")
			h.ack("a", h.pull("a", 1, 1, 1, 0))
		}, []string{ruleValue}},
		{"a redelivery that counts no attempt", func(h *history) {
			h.publish(1)
			h.pull("a", 1, 1, 1, 0)
			h.ack("a", h.pull("a", 1, 2, 1, 0))
		}, []string{ruleAttempt}},
		{"a receipt that is refused as none", func(h *history) {
			h.publish(1)
			ms := h.pull("a", 1, 1, 1, 0)
			h.refuse("a", ms, api.CodeBadRequest)
			h.ack("a", ms)
		}, []string{ruleReceipt}},
		{"by key: the same key goes on", func(h *history) {
			h.byKey()
			h.publish(6)
			first := h.pull("a", 1, 1, 1, 0, 1, 2)
			h.ack("a", h.pull("a", 1, 2, 1, 3))
			h.ack("a", first[1:])
			h.ack("a", h.pull("a", 1, 3, 1, 4, 5))
			h.ack("a", first[:1])
		}, []string{ruleOrder}}, // 3 is of 0's key
		{"by key: other keys go on", func(h *history) {
			h.byKey()
			h.publish(6)
			first := h.pull("a", 1, 1, 1, 0, 1, 2)
			h.ack("a", first[1:])
			h.ack("a", h.pull("a", 1, 2, 1, 4, 5))
			h.ack("a", first[:1])
			h.ack("b", h.pull("b", 2, 1, 1, 3))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &history{c: NewChecker(1, false), now: time.Unix(1000, 0), ends: -1}
			tc.does(h)
			if h.ends < 0 {
				h.ends = h.published
			}
			h.c.Finish(map[int32]int64{0: h.ends})
			got := slices.Sorted(maps.Keys(h.c.Broken()))
			slices.Sort(tc.want)
			if !slices.Equal(got, tc.want) {
				t.Errorf("broken: %q, want %q\n%v", got, tc.want, h.c.Broken())
			}
		})
	}
}

// history feeds a checker of one partition. Its clock moves with each step.
type history struct {
	c         *Checker
	now       time.Time
	published int64
	ends      int64
}

// byKey makes the group one with order=key, and three keys.
func (h *history) byKey() { h.c = NewChecker(1, true) }

func (h *history) key(offset int64) string { return fmt.Sprint("key ", offset%3) }

func (h *history) wait(d time.Duration) { h.now = h.now.Add(d) }

func (h *history) publish(n int64) {
	for range n {
		h.c.Published(time.Now(), 0, h.published, h.key(h.published), fmt.Sprint("value ", h.published))
		h.published++
	}
}

func (h *history) batch(generation, lease uint64, attempt int, offsets ...int64) (ms []api.Message) {
	for _, o := range offsets {
		b := bin.AppendUvarint([]byte{1}, generation)
		b = bin.AppendUvarint(bin.AppendUvarint(b, 0), lease)
		ms = append(ms, api.Message{
			ID: fmt.Sprintf("t/0/%d", o), Offset: o, Attempt: attempt, Key: new(h.key(o)), Value: new(fmt.Sprint("value ", o)),
			Receipt: base64.RawURLEncoding.EncodeToString(append(b, 0, 0, 0, 0)),
		})
	}
	return ms
}

func (h *history) pull(by string, generation, lease uint64, attempt int, offsets ...int64) []api.Message {
	ms := h.batch(generation, lease, attempt, offsets...)
	h.wait(10 * time.Millisecond)
	h.c.Delivered(by, h.now, h.now.Add(5*time.Millisecond), false, ms)
	h.wait(10 * time.Millisecond)
	return ms
}

func (h *history) ack(by string, ms []api.Message) {
	h.c.AckSent(ms)
	h.wait(time.Millisecond)
	h.c.AckAnswered(by, h.now, ms, make([]api.ReceiptResult, len(ms)))
}

func (h *history) refuse(by string, ms []api.Message, code api.Code) {
	h.c.AckSent(ms)
	results := make([]api.ReceiptResult, len(ms))
	for i := range results {
		results[i].Error = api.NewError(code, "refused")
	}
	h.c.AckAnswered(by, h.now, ms, results)
}

func TestReceiptOfAnotherVersionIsTold(t *testing.T) {
	c := NewChecker(1, false)
	c.Delivered("a", time.Time{}, time.Time{}, false, []api.Message{{ID: "t/0/0", Receipt: base64.RawURLEncoding.EncodeToString([]byte{9, 1, 1, 1})}})
	if b := c.Broken()[ruleReceipt]; len(b) != 1 || !strings.Contains(b[0], "no receipt of version 1") {
		t.Errorf("broken: %v", c.Broken())
	}
}

func TestCheckerStuck(t *testing.T) {
	c := NewChecker(2, false)
	at := time.Now()
	c.Published(at, 1, 0, "key", "value")
	for _, tc := range []struct {
		before time.Time
		want   int
	}{{at, 0}, {at.Add(1), 1}} {
		if got := c.Stuck(tc.before); len(got) != tc.want {
			t.Errorf("stuck since before %s: %v", clock(tc.before), got)
		}
	}
	c.parts[1].events[0].delivered = true
	if got := c.Stuck(at.Add(time.Hour)); len(got) > 0 {
		t.Errorf("a delivered message is stuck: %v", got)
	}
	if c.Promised() != 1 {
		t.Errorf("%d promised", c.Promised())
	}
}
