package discovery_test

import (
	"slices"
	"testing"
	"time"

	d "sidestream/discovery"
)

func TestSuspicion(t *testing.T) {
	base := time.Unix(1000, 0)
	in := func(id string, passing bool) d.Instance {
		return d.Instance{Service: d.Service{ID: id}, Passing: passing, Beating: passing}
	}
	cut := func(id string) d.Instance { // its node is critical
		return d.Instance{Service: d.Service{ID: id}, Beating: true}
	}
	type step struct {
		at   time.Duration
		see  []d.Instance // nil: only ask
		gap  time.Duration
		life string // of service b; others have one only
		who  []string
	}
	const (
		limit = d.GapLimit
		just  = d.SuspectAfter
		long  = d.SuspectNodeAfter
	)
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"after a moment, not before", []step{
			{at: 0, see: []d.Instance{in("a", true), in("b", false)}},
			{at: just - 1},
			{at: just, who: []string{"b"}},
			{at: time.Hour, who: []string{"b"}},
		}},
		{"only while our own beats are regular", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: just, gap: limit, who: []string{"b"}},
			{at: just, gap: limit + 1},
		}},
		{"passing in between starts anew", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: time.Second, see: []d.Instance{in("b", true)}},
			{at: time.Second, see: []d.Instance{in("b", false)}},
			{at: just},
			{at: time.Second + just, who: []string{"b"}},
		}},
		{"other news leaves the time alone", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: time.Second, see: []d.Instance{in("b", false), in("c", false)}},
			{at: just, who: []string{"b"}},
			{at: time.Second + just, who: []string{"b", "c"}},
		}},
		{"one that is not listed is not suspected", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: just, see: []d.Instance{}},
		}},
		{"registered on two nodes: one passes", []step{
			{at: 0, see: []d.Instance{in("b", false), in("b", true), in("c", true), in("c", false), in("e", false), in("e", false)}},
			{at: just, who: []string{"e"}},
		}},
		// A process killed and started again had its new session ended within the
		// second, since the check that the dead one left was critical for long.
		{"a new life is not judged by what its earlier one left", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: just, who: []string{"b"}},
			{at: 2 * just, see: []d.Instance{in("b", false)}, life: "second"},
			{at: 3*just - 1, life: "second"},
			{at: 3 * just, life: "second", who: []string{"b"}},
		}},
		{"nor by that which ends when it has just begun", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: just, see: []d.Instance{in("b", false)}, life: "second"},
			{at: 2*just - 1, see: []d.Instance{in("b", true)}, life: "second"},
			{at: time.Hour, life: "second"},
		}},
		{"its node alone is critical: a longer moment", []step{
			{at: 0, see: []d.Instance{cut("b")}},
			{at: long - 1},
			{at: long, who: []string{"b"}},
		}},
		// What a host's Consul agent that paused for 10 s shows: the node is gone
		// after some seconds, the check ends as the agent wakes, then both return.
		{"its node first and its own check at the end", []step{
			{at: 0, see: []d.Instance{cut("b")}},
			{at: long - time.Second, see: []d.Instance{in("b", false)}},
			{at: long - 1},
			{at: long - 1, see: []d.Instance{in("b", true)}},
			{at: time.Hour},
		}},
		{"its own check fails for long while its node is critical", []step{
			{at: 0, see: []d.Instance{cut("b")}},
			{at: time.Second, see: []d.Instance{in("b", false)}},
			{at: time.Second + just - 1},
			{at: time.Second + just, who: []string{"b"}},
		}},
		{"its own check passes again while its node is critical", []step{
			{at: 0, see: []d.Instance{in("b", false)}},
			{at: time.Second, see: []d.Instance{cut("b")}},
			{at: just},
			{at: long, who: []string{"b"}},
		}},
		{"one that holds nothing is not judged", []step{
			{at: 0, see: []d.Instance{in("z", false)}},
			{at: time.Hour},
		}},
		{"nothing seen yet", []step{{at: time.Hour}}},
	} {
		var s d.Suspicion
		for i, st := range c.steps {
			now := base.Add(st.at)
			if st.see != nil {
				holders := []d.Holder{{Service: "b", Session: "session of b" + st.life}}
				for _, id := range []string{"a", "c", "e"} {
					holders = append(holders, d.Holder{Service: id, Session: "session of " + id})
				}
				s.Observe(now, st.see, holders)
			}
			var want []d.Holder
			for _, id := range st.who {
				h := d.Holder{Service: id, Session: "session of " + id}
				if id == "b" {
					h.Session += st.life
				}
				want = append(want, h)
			}
			if got := s.Suspects(now, st.gap); !slices.Equal(got, want) {
				t.Errorf("%s, step %d: suspects %q, want %q", c.name, i, got, want)
			}
		}
	}
}
