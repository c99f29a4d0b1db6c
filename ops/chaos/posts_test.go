package chaos

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// A checker that cannot fail proves nothing: each rule is broken here by a small
// history, and by it alone.
func TestPublishCheckerFails(t *testing.T) {
	written := func(offset int64) outcome { return outcome{fate: fateWritten, offset: offset} }
	spooled := outcome{fate: fateSpooled, offset: -1, spool: "s-1"}
	refused := outcome{fate: fateRefused, why: "brokers_unavailable"}
	unknown := outcome{fate: fateUnknown, why: "unknown_outcome"}
	for _, tc := range []struct {
		name string
		does func(h *publishing)
		want []string // rules
	}{
		{"all is well", func(h *publishing) {
			h.post("a", written(0))
			h.post("b", refused)
			h.post("c", unknown)
			h.post("d", unknown)
			h.post("e", spooled)
			h.post("f", written(3))
			h.log("a", "d", "e", "f")
		}, nil},
		{"a message that was answered 200 is not there", func(h *publishing) {
			h.post("a", written(0))
			h.log()
		}, []string{ruleLost}},
		{"a message that was answered 202 is not there", func(h *publishing) {
			h.post("a", spooled)
			h.log()
		}, []string{ruleLost}},
		{"a message that was answered 202 is there twice", func(h *publishing) {
			h.post("a", spooled)
			h.log("a", "a")
		}, []string{ruleTwice}},
		{"a message of unknown fate is there twice", func(h *publishing) {
			h.post("a", unknown)
			h.log("a", "a")
		}, []string{ruleTwice}},
		{"a message lies elsewhere", func(h *publishing) {
			h.post("a", written(1))
			h.log("a")
		}, []string{rulePlace}},
		{"a message lies in a partition that was not asked for", func(h *publishing) {
			h.sent("a").partition = 3
			h.answer(unknown)
			h.log("a")
		}, []string{rulePlace}},
		{"a spooled message lies in another partition than the answer says", func(h *publishing) {
			o := spooled
			o.partition = 2
			h.post("a", o)
			h.log("a")
		}, []string{rulePlace}},
		{"a message that was refused is there", func(h *publishing) {
			h.post("a", refused)
			h.log("a")
		}, []string{ruleRefused}},
		{"a message that is unknown and then refused is there", func(h *publishing) {
			h.post("a", unknown)
			h.answer(refused)
			h.log("a")
		}, []string{ruleRefused}},
		{"nobody published a message", func(h *publishing) {
			h.post("a", written(0))
			h.log("a", "b")
		}, []string{ruleContent}},
		{"a message has another key", func(h *publishing) {
			h.post("a", written(0))
			h.log("a")
			h.found[0].Key = "another"
		}, []string{ruleContent}},
		{"a message lies before one that was acknowledged before it", func(h *publishing) {
			h.post("a", spooled)
			h.post("b", written(0))
			h.log("b", "a")
		}, []string{ruleKeyOrder}},
		{"so does one of unknown fate", func(h *publishing) {
			h.post("a", written(1))
			h.post("b", unknown)
			h.log("b", "a")
		}, []string{ruleKeyOrder}},
		{"one before the last but one", func(h *publishing) {
			h.post("a", written(1))
			h.post("b", written(2))
			h.post("c", unknown)
			h.log("c", "a", "b")
		}, []string{ruleKeyOrder}},
		{"what comes after a message of unknown fate may lie before it", func(h *publishing) {
			h.post("a", unknown)
			h.post("b", written(0))
			h.log("b", "a")
		}, nil},
		{"a request's messages lie the other way round", func(h *publishing) {
			h.post("a", outcome{})
			h.last.messages = append(h.last.messages, message("b"))
			h.last.attempts = 0
			h.answer(written(1), written(0))
			h.log("b", "a")
		}, []string{ruleKeyOrder}},
		{"they may after a repeat that sent what was refused before", func(h *publishing) {
			h.post("a", outcome{})
			h.last.messages = append(h.last.messages, message("b"))
			h.answer(refused, written(0))
			h.answer(written(1), written(0))
			h.log("b", "a")
		}, nil},
		{"a repeat finds the message elsewhere", func(h *publishing) {
			h.post("a", written(0))
			h.answer(written(1))
			h.log("a")
		}, []string{ruleReplay}},
		{"a repeat is told that a written message is absent", func(h *publishing) {
			h.post("a", written(0))
			h.answer(refused)
			h.log("a")
		}, []string{ruleReplay}},
		{"a repeat that never arrived tells nothing of what was sent before", func(h *publishing) {
			h.post("a", written(0))
			h.answer(outcome{fate: fateRefused, why: "never sent", attempt: true})
			h.post("b", unknown)
			h.answer(outcome{fate: fateRefused, why: "never sent", attempt: true})
			h.log("a", "b")
		}, nil},
		{"a first attempt that never arrived is there", func(h *publishing) {
			h.post("a", outcome{fate: fateRefused, why: "never sent", attempt: true})
			h.log("a")
		}, []string{ruleRefused}},
		{"a repeat that is told nothing takes nothing back", func(h *publishing) {
			h.post("a", written(0))
			h.answer(unknown)
			h.log()
		}, []string{ruleLost}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &publishing{c: NewPublishChecker()}
			tc.does(h)
			h.c.Finish(h.found)
			broken := h.c.Broken()
			if got := slices.Sorted(maps.Keys(broken)); !slices.Equal(got, tc.want) {
				t.Errorf("broken: %v, want %v", broken, tc.want)
			}
		})
	}
}

// publishing is a small history of one publisher with one key.
type publishing struct {
	c     *PublishChecker
	last  *Post
	found []Found
}

func message(value string) sent { return sent{value: value, key: "k", partition: -1, lane: "k"} }

func (h *publishing) sent(value string) *sent {
	h.last = h.c.Sent(1, "post "+value, []sent{message(value)})
	return &h.last.messages[0]
}

func (h *publishing) answer(outcomes ...outcome) { h.c.Answered(h.last, outcomes) }

func (h *publishing) post(value string, o outcome) {
	h.sent(value)
	h.answer(o)
}

// log is what lies in the log in the end, in partition 0.
func (h *publishing) log(values ...string) {
	for i, v := range values {
		h.found = append(h.found, Found{Offset: int64(i), Key: "k", Value: fmt.Sprint(v)})
	}
}
