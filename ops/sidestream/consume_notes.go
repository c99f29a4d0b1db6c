package main

import (
	"fmt"
	"io"
	"time"

	"sidestream/sdk/api"
)

const (
	// notesWithin is how soon it is said that no answer comes: the wait of a pull
	// and as much again.
	notesWithin = 2 * time.Second
	// reasonLasts is how long a reason must have lasted: joining a group passes
	// through some that nobody needs to read.
	reasonLasts = consumeWait * 9 / 10
)

// reasonTexts are the reasons of a pull in the words of the command line.
var reasonTexts = map[api.Reason]string{
	api.ReasonAtEnd:             "everything there is was delivered",
	api.ReasonNoPartition:       "others of the group have all partitions",
	api.ReasonRebalancing:       "the group's partitions are being divided anew",
	api.ReasonInFlightFull:      "what was delivered waits for acknowledgements",
	api.ReasonNoTopic:           "no topic matches yet",
	api.ReasonRateLimited:       "a rate limit holds it back",
	api.ReasonPaused:            `it is paused ("sidestream group resume" ends that)`,
	api.ReasonBrokersDown:       "the brokers of its partitions are away, or do not let it read (the sidecar's /status says why)",
	api.ReasonCorruptRecord:     "a partition stands still at records that nobody can read (the sidecar's log names them and the offset to seek to)",
	api.ReasonDeadLetterBlocked: "a dead letter cannot be written (the sidecar's /status says why)",
	api.ReasonUnproven:          "Consul is away, and the group is exclusive=strict",
}

// waitNotes tells people why nothing comes, or not everything: each cause once, until
// there is another or it is over.
type waitNotes struct {
	out    io.Writer // for people
	reason api.Reason
	since  time.Time // of the reason
	told   bool
	gone   bool // the sidecar does not answer, or refuses
	cause  string
	parts  int // partitions that are away, as told
}

func (w *waitNotes) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.out, format+"\n", args...)
}

// away notes a pull that failed.
func (w *waitNotes) away(err error) {
	code := err.Error()
	if w.gone && w.cause == code {
		return
	}
	w.gone, w.cause = true, code
	w.say("nothing comes, trying again: %v", err)
}

// answered notes a pull that was answered.
func (w *waitNotes) answered() {
	if w.gone {
		w.gone, w.cause, w.reason = false, "", ""
		w.say("the sidecar answers again")
	}
}

// came notes that messages came, of all partitions but so many.
func (w *waitNotes) came(away int) {
	w.reason = ""
	w.partitions(away)
}

func (w *waitNotes) partitions(away int) {
	switch {
	case away == w.parts:
	case away == 0:
		w.say("the partitions that were away are back")
	default:
		w.say("%s away, since no broker leads: their messages come later", plural(away, "partition"))
	}
	w.parts = away
}

// empty notes a pull without messages that began some time ago.
func (w *waitNotes) empty(p api.Pulled, begun, now time.Time) {
	w.partitions(p.Away)
	if p.Reason == nil {
		return
	}
	if *p.Reason != w.reason {
		w.reason, w.since, w.told = *p.Reason, begun, false
	}
	if w.told || now.Sub(w.since) < reasonLasts {
		return
	}
	w.told = true
	text, known := reasonTexts[*p.Reason]
	if !known {
		text = "the reasons are in ops/docs/http-reference.md"
	}
	w.say("nothing comes: %s: %s", *p.Reason, text)
}
