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
		return d.Instance{Service: d.Service{ID: id}, Passing: passing}
	}
	type step struct {
		at  time.Duration
		see []d.Instance // nil: only ask
		gap time.Duration
		who []string
	}
	const (
		limit = d.GapLimit
		just  = d.SuspectAfter
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
		{"nothing seen yet", []step{{at: time.Hour}}},
	} {
		var s d.Suspicion
		for i, st := range c.steps {
			now := base.Add(st.at)
			if st.see != nil {
				s.Observe(now, st.see)
			}
			if got := s.Suspects(now, st.gap); !slices.Equal(got, st.who) {
				t.Errorf("%s, step %d: suspects %q, want %q", c.name, i, got, st.who)
			}
		}
	}
}
