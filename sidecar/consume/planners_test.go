package consume

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// The planner, its stand-by and the one that would follow them die at once:
// those that are left find it out by themselves, and nothing is skipped nor
// delivered again that was acknowledged and checkpointed.
func TestThreePlannersDieAtOnce(t *testing.T) {
	t.Parallel()
	const partitions = 10
	l := newLab(t, map[string]int32{"views": partitions})
	for p := range int32(partitions) {
		l.produce("views", p, 0, 4)
	}
	var hosts []*host
	req := PullRequest{Group: "g", Topic: "views", Max: 2, Lease: time.Minute}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		h := l.host(id)
		hosts = append(hosts, h)
		h.pull(req)
		eventually(t, id+" is a member", func() bool { _, ok := h.m.lookup("g").joined(); return ok })
	}
	even := func(hs []*host, each int) func() bool {
		return func() bool {
			for _, h := range hs {
				if len(h.partitions("g", "views")) != each {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "two partitions each", even(hosts, 2))
	acked := map[string]bool{}
	for _, h := range hosts {
		d := h.pullSome(req)
		h.ackAll("g", "views", d)
		for _, m := range d.Messages {
			acked[m.ID] = true
		}
	}
	eventually(t, "the checkpoints", func() bool {
		st, err := hosts[4].m.stored(t.Context(), "g", "views")
		n := 0
		for _, s := range st {
			n += int(s.Position.Low)
		}
		return err == nil && n == len(acked)
	})
	var wg sync.WaitGroup
	for _, h := range hosts[:3] {
		wg.Go(h.kill)
	}
	wg.Wait()
	eventually(t, "five partitions each", even(hosts[3:], 5))
	sum := drain(t, "g", "views", partitions*4-len(acked), hosts[3:]...)
	for id := range acked {
		if sum.seen[id] > 0 {
			t.Errorf("%s was acknowledged and came again", id)
		}
	}
	g, err := hosts[4].m.Group(t.Context(), "g")
	if err != nil || g.Planner != "d" && g.Planner != "e" || len(g.Members) != 2 {
		t.Fatalf("%+v %v", g, err)
	}
	if es, err := l.store.List(t.Context(), discovery.PrefixAssign); err != nil || len(es) != 2 {
		t.Errorf("assignments of the dead are left: %v %v", es, err)
	}
	for _, dead := range []string{"a", "b", "c"} {
		if !slices.ContainsFunc(g.History, func(m api.Move) bool {
			return m.From == dead && strings.Contains(m.Cause, dead+"'s session ended")
		}) {
			t.Errorf("no move from %s in %+v", dead, g.History)
		}
	}
}

// A strict group has never two owners that hand out, not even while one is cut
// off from the store and does not know that another took over; and it stops
// within strict_after of its last proof.
func TestStrictGroupNeverHasTwoOwners(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 2000)
	strict := func(c *Config) { c.StrictAfter = time.Second }
	a, b := l.host("a", strict), l.host("b", strict)
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Exclusive: "strict"}); err != nil {
		t.Fatal(err)
	}
	const lease = time.Minute
	req := PullRequest{Group: "g", Topic: "views", Max: 1, Lease: lease}
	a.ackAll("g", "views", a.pullSome(req))
	b.pull(req)
	eventually(t, "b stands by", func() bool { _, ok := b.m.lookup("g").joined(); return ok })
	a.store.SetCut(true)
	cut := time.Now()
	var last, first time.Time // hand-outs, by the leases
	var held api.Reason
	eventually(t, "b hands out", func() bool {
		d := a.pull(req)
		for _, m := range d.Messages {
			last = m.LeaseUntil.Add(-lease)
			a.ack("g", "views", m.Receipt)
		}
		if d.Reason != nil {
			held = *d.Reason
		}
		for _, m := range b.pull(req).Messages {
			first = m.LeaseUntil.Add(-lease)
		}
		return !first.IsZero()
	})
	if !last.Before(first) {
		t.Errorf("a handed out at %s, after b had begun at %s", last, first)
	}
	if last.Sub(cut) > time.Second {
		t.Errorf("a handed out %s after it was cut off", last.Sub(cut))
	}
	if held != api.ReasonUnproven {
		t.Errorf("a held back with the reason %q", held)
	}
}

// The planner and its stand-by judge each other; when both die, the third
// notices long before their sessions end by themselves.
func TestPlannerAndStandByDieTogether(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 6})
	store, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: 4 * deadline, CheckTTL: 600 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	l.store = store
	var hosts []*host
	for _, id := range []string{"a", "b", "c", "d"} {
		h := l.host(id)
		hosts = append(hosts, h)
		h.pull(PullRequest{Group: "g", Topic: "views"})
		eventually(t, id+" is a member", func() bool { _, ok := h.m.lookup("g").joined(); return ok })
	}
	eventually(t, "all have a share", func() bool {
		n := 0
		for _, h := range hosts {
			k := len(h.partitions("g", "views"))
			if k == 0 {
				return false
			}
			n += k
		}
		return n == 6
	})
	time.Sleep(2 * testConfig().Recheck) // the third knows its place
	hosts[0].kill()
	hosts[1].kill()
	eventually(t, "three partitions each", func() bool {
		return len(hosts[2].partitions("g", "views")) == 3 && len(hosts[3].partitions("g", "views")) == 3
	})
}
