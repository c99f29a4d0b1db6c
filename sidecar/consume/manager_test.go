package consume

import (
	"slices"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func TestFirstPullJoinsAndDelivers(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"hello": 1})
	l.produce("hello", 0, 0, 3)
	h := l.host("a")
	d := h.pullSome(PullRequest{Group: "g", Topic: "hello"})
	if got := offsetsOf(d.Messages); got != "[0 1 2]" {
		t.Fatalf("offsets %s", got)
	}
	m := d.Messages[0]
	if m.ID != "hello/0/0" || m.Attempt != 1 || m.Value == nil || *m.Value != "0" || m.Receipt == "" || m.LeaseUntil == nil {
		t.Fatalf("message %+v", m)
	}
	if d.Reason != nil || d.Ownership != "" {
		t.Fatalf("reason %v, ownership %q", d.Reason, d.Ownership)
	}
	// Everything is out: at the end.
	if d := h.pull(PullRequest{Group: "g", Topic: "hello"}); d.Reason == nil || *d.Reason != api.ReasonAtEnd || d.Messages == nil {
		t.Fatalf("with all out: %+v", d)
	}
	h.ackAll("g", "hello", d)
	o, err := h.m.Offsets(t.Context(), "g", "hello")
	if err != nil {
		t.Fatal(err)
	}
	p := o.Partitions[0]
	if p.Position != 3 || p.End != 3 || p.Lag != 0 || p.Source != "live" || p.Owner != "a" || p.Generation != 1 || o.Lag != 0 {
		t.Fatalf("offsets %+v", o)
	}
	// An ack again is no error, and a message that comes is delivered at once.
	h.ackAll("g", "hello", d)
	l.produce("hello", 0, 3, 1)
	d = h.pullSome(PullRequest{Group: "g", Topic: "hello", Ack: receiptsOf(d)})
	if got := offsetsOf(d.Messages); got != "[3]" || d.Acks == nil || d.Acks.OK != 3 {
		t.Fatalf("offsets %s, acks %+v", got, d.Acks)
	}
}

func TestTwoSidecarsShareEvenly(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 8}, nil...)
	for p := range int32(8) {
		l.produce("views", p, 0, 50)
	}
	a, b := l.host("a"), l.host("b")
	a.pull(PullRequest{Group: "g", Topic: "views"})
	b.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "four partitions each", func() bool {
		return len(a.partitions("g", "views")) == 4 && len(b.partitions("g", "views")) == 4
	})
	both := append(a.partitions("g", "views"), b.partitions("g", "views")...)
	slices.Sort(both)
	if !slices.Equal(both, []int32{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Fatalf("partitions %v", both)
	}
	sum := drain(t, "g", "views", 400, a, b)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice: %v", r)
	}
	for p, os := range sum.order {
		if !slices.IsSorted(os) {
			t.Fatalf("partition %d out of order: %v", p, os)
		}
	}
	g, err := a.m.Group(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Members) != 2 || len(g.Owners) != 8 || g.Planner == "" || len(g.History) == 0 || g.Members[0].Address == "" {
		t.Fatalf("group %+v", g)
	}
	// A second group sees all again, and neither is disturbed by the other.
	sum = drain(t, "audit", "views", 400, a, b)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice: %v", r)
	}
	if gs, err := b.m.Groups(t.Context()); err != nil || !slices.Equal(gs.Groups, []string{"audit", "g"}) {
		t.Fatalf("groups %v, %v", gs, err)
	}
	// One leaves in order: the other has all, and nothing acknowledged returns.
	b.close()
	eventually(t, "eight partitions", func() bool { return len(a.partitions("g", "views")) == 8 })
	d := a.pull(PullRequest{Group: "g", Topic: "views", Wait: 300 * time.Millisecond})
	if len(d.Messages) > 0 || *d.Reason != api.ReasonAtEnd {
		t.Fatalf("after the handover: %v %v", offsetsOf(d.Messages), d.Reason)
	}
}

// drain pulls and acknowledges through all hosts at once until so many distinct
// messages came.
func drain(t *testing.T, group, topic string, want int, hosts ...*host) *tally {
	t.Helper()
	sum := newTally()
	end := time.Now().Add(deadline)
	var wg sync.WaitGroup
	for _, h := range hosts {
		wg.Go(func() {
			for sum.distinct() < want && time.Now().Before(end) {
				d, err := h.m.Pull(t.Context(), PullRequest{Group: group, Topic: topic, Max: 20, Wait: 200 * time.Millisecond})
				if err != nil {
					t.Errorf("%s: %v", h.id, err)
					return
				}
				sum.add(d.Messages)
				if len(d.Messages) == 0 {
					continue
				}
				r, err := h.m.Ack(t.Context(), group, topic, api.Receipts{Receipts: receiptsOf(d)})
				if err != nil {
					t.Errorf("%s: %v", h.id, err)
					return
				}
				for _, res := range r.Results {
					if res.Error != nil && res.Error.Code != api.CodeLeaseLost {
						t.Errorf("%s: ack: %v", h.id, res.Error)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := sum.distinct(); n != want {
		t.Fatalf("%d distinct messages, want %d", n, want)
	}
	return sum
}
