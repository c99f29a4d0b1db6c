package consume

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// A pull that repeats the token of one whose answer was lost gets the same
// messages under the same receipts, at the same attempt.
func TestAttemptTokenRepeatsTheBatch(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "abcd")
	a := l.host("a")
	a.configure("g", api.GroupConfig{Order: "key"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 2, Lease: time.Minute, AttemptToken: "one"}
	first := a.pullSome(req)
	again := a.pullSome(req)
	for i, m := range again.Messages {
		if want := first.Messages[i]; m.ID != want.ID || m.Receipt != want.Receipt || m.Attempt != 1 || *m.Value != *want.Value || m.LeaseUntil.Before(*want.LeaseUntil) {
			t.Errorf("again %+v, want %+v", m, want)
		}
	}
	if got := offsetsOf(again.Messages); got != "[0 1]" {
		t.Fatal(got)
	}
	// The first answer cannot be written after all: the second holds its messages.
	first.Return()
	if got := offsetsOf(a.pullSome(req).Messages); got != "[0 1]" {
		t.Fatal(got)
	}
	// Another token, and a pull without one, get others.
	other := req
	other.AttemptToken, other.Max = "two", 1
	if got := offsetsOf(a.pullSome(other).Messages); got != "[2]" {
		t.Fatal(got)
	}
	other.AttemptToken = ""
	if got := offsetsOf(a.pullSome(other).Messages); got != "[3]" {
		t.Fatal(got)
	}
	// Once any of it is acknowledged the answer has arrived: the token begins anew.
	a.ack("g", "jobs", again.Messages[1].Receipt)
	if d := a.pull(req); len(d.Messages) > 0 {
		t.Fatalf("after an ack: %s", offsetsOf(d.Messages))
	}
}

// Of an answer that could not be written nothing is out, and no attempt spent.
func TestAttemptTokenOfAnUnsentAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 3)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Max: 2, Lease: time.Minute, AttemptToken: "one"}
	a.pullSome(req).Return()
	a.pullSome(req)
	d := a.pullSome(req) // the repetition is lost as well
	d.Return()
	req.Max = 3
	d = a.pullSome(req)
	if got := offsetsOf(d.Messages); got != "[0 1 2]" || d.Messages[0].Attempt != 1 {
		t.Fatalf("%s %+v", got, d.Messages)
	}
	a.ackAll("g", "jobs", d)
	if n := len(a.m.tokens.by); n != 1 {
		t.Fatalf("%d tokens", n)
	}
	a.m.tokens.mu.Lock()
	a.m.tokens.sweep(time.Now().Add(2 * sweepEvery))
	n := len(a.m.tokens.by)
	a.m.tokens.mu.Unlock()
	if n != 0 {
		t.Fatalf("%d tokens of what is acknowledged", n)
	}
}

// Two pulls with one token at the same time get one batch between them.
func TestAttemptTokenAtTheSameTime(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	a.pull(PullRequest{Group: "g", Topic: "jobs"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1, Wait: deadline, Lease: time.Minute, AttemptToken: "one"}
	got := make(chan string, 2)
	for range 2 {
		go func() {
			d, err := a.m.Pull(t.Context(), req)
			if err != nil || len(d.Messages) != 1 {
				t.Errorf("%+v %v", d, err)
				got <- ""
				return
			}
			got <- d.Messages[0].Receipt
		}()
	}
	eventually(t, "both are there", func() bool {
		a.m.tokens.mu.Lock()
		defer a.m.tokens.mu.Unlock()
		for _, x := range a.m.tokens.by {
			return x.users == 2
		}
		return false
	})
	l.produce("jobs", 0, 0, 2)
	if one, two := <-got, <-got; one != two {
		t.Fatalf("receipts %s and %s", one, two)
	}
}

func TestAttemptTokenIsChecked(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	for _, req := range []PullRequest{
		{AttemptToken: strings.Repeat("x", MaxAttemptToken+1)},
		{AttemptToken: "one", AutoAck: true},
	} {
		req.Group, req.Topic = "g", "jobs"
		if _, err := a.m.Pull(t.Context(), req); !isCode(err, api.CodeBadRequest) {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// A token names a pull of several topics as well. What was out before a seek is
// not given again after it.
func TestAttemptTokenOfSeveralTopics(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs.a": 2, "jobs.b": 1})
	for p := range int32(2) {
		l.produce("jobs.a", p, 0, 2)
	}
	l.produce("jobs.b", 0, 0, 2)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs.*", Max: 6, Lease: time.Minute}
	eventually(t, "all three partitions have something", func() bool {
		d := a.pull(req)
		d.Return()
		return len(d.Messages) == 6
	})
	req.AttemptToken = "one"
	first, again := a.pullSome(req), a.pullSome(req)
	receipts := receiptsOf(first)
	slices.Sort(receipts)
	for _, m := range again.Messages {
		if _, ok := slices.BinarySearch(receipts, m.Receipt); !ok {
			t.Errorf("%s was not in the first answer under that receipt", m.ID)
		}
	}
	if len(first.Messages) != 6 || len(again.Messages) != 6 {
		t.Fatalf("%d, then %d messages", len(first.Messages), len(again.Messages))
	}
	if _, err := a.m.Seek(t.Context(), "g", "jobs.b", api.SeekRequest{To: "earliest"}); err != nil {
		t.Fatal(err)
	}
	if d := a.pullSome(req); len(d.Messages) != 2 || d.Messages[0].Topic != "jobs.b" {
		t.Fatalf("after a seek: %+v", d.Messages)
	}
}

// What must not be handed out is not repeated either.
func TestAttemptTokenOfAPausedGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 1)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute, AttemptToken: "one"}
	first := a.pullSome(req)
	if _, err := a.m.Pause(t.Context(), "g", ""); err != nil {
		t.Fatal(err)
	}
	if d := a.pull(req); len(d.Messages) > 0 || *d.Reason != api.ReasonPaused {
		t.Fatalf("while paused: %s %v", offsetsOf(d.Messages), d.Reason)
	}
	a.ackAll("g", "jobs", first)
}
