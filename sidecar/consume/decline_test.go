package consume

import (
	"testing"
	"time"

	"sidestream/sdk/api"
)

// What an application took and did not begin comes again at once, at the
// attempt that it would have had.
func TestUnhandledMessagesSpendNoAttempt(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "aba.")
	a := l.host("a")
	a.configure("g", api.GroupConfig{Order: "key", MaxAttempts: new(2)})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 10, Lease: time.Minute}
	for range 4 { // more often than there are attempts
		d := a.pullSome(req)
		if got := offsetsOf(d.Messages); got != "[0 1 2 3]" {
			t.Fatal(got)
		}
		var receipts []string
		for _, m := range d.Messages {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			receipts = append(receipts, m.Receipt)
		}
		a.nack("g", "jobs", api.Receipts{Receipts: receipts, Unhandled: true})
	}
	for _, bad := range []api.Receipts{{Delay: "1s"}, {Error: "no"}} {
		bad.Receipts, bad.Unhandled = []string{"r"}, true
		if _, err := a.m.Nack(t.Context(), "g", "jobs", bad); !isCode(err, api.CodeBadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
