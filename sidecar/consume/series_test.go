package consume

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// seriesWith are the names of the series with a label's value.
func (h *host) seriesWith(label, value string) (names []string) {
	h.lab.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.lab.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == value && !slices.Contains(names, f.GetName()) {
					names = append(names, strings.TrimPrefix(f.GetName(), "sidestream_consume_"))
				}
			}
		}
	}
	return names
}

// The series of a group stayed for ever, so that one name a job filled the
// memory of a sidecar and of whoever collects its metrics.
func TestSeriesOfAGroupGoWithIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	a := l.host("a", noSweeps, func(c *Config) { c.LeaveAfter = 2 * time.Second })
	req := PullRequest{Group: "g", Topic: "views"}
	l.produce("views", 0, 0, 3)
	a.ackAll("g", "views", a.pullSome(req))
	eventually(t, "its gauges", func() bool { return slices.Contains(a.seriesWith("group", "g"), "lag_seconds") })
	eventually(t, "the gauges go when it is left, and the counters stay", func() bool {
		names := a.seriesWith("group", "g")
		return slices.Contains(names, "plans_total") && slices.Contains(names, "rebalances_total") && slices.Contains(names, "messages_acked_total") &&
			!slices.ContainsFunc(names, func(n string) bool {
				return strings.HasPrefix(n, "lag") || strings.HasPrefix(n, "oldest") || n == "unreadable_partitions"
			})
	})
	if err := a.m.DeleteGroup(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	if names := a.seriesWith("group", "g"); len(names) > 0 {
		t.Errorf("the group is deleted and has %v", names)
	}
	// What was under way counts after it.
	a.m.metrics.plans.WithLabelValues("g").Inc()
	a.m.removeSeries(time.Now().Add(seriesAgain))
	if names := a.seriesWith("group", "g"); len(names) > 0 {
		t.Errorf("a little later it has %v", names)
	}
	// One that is merely left, here or by another sidecar's doing.
	a.ackAll("h", "views", a.pullSome(PullRequest{Group: "h", Topic: "views"}))
	a.m.removeSeries(time.Now().Add(seriesUnused))
	if names := a.seriesWith("group", "h"); len(names) == 0 {
		t.Error("a group in use has no series")
	}
	eventually(t, "it is left", func() bool { return a.m.lookup("h") == nil })
	a.m.removeSeries(time.Now().Add(seriesUnused))
	if names := a.seriesWith("group", "h"); len(names) > 0 {
		t.Errorf("long after it was left it has %v", names)
	}
}

// Two of five gauges stayed when a topic of a group was dropped.
func TestSeriesOfATopicGoWithIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.a": 1, "orders.b": 1})
	a := l.host("a", noSweeps)
	l.produce("orders.a", 0, 0, 1)
	l.produce("orders.b", 0, 0, 1)
	req := PullRequest{Group: "g", Topic: "orders.*"}
	eventually(t, "both are consumed", func() bool {
		if d := a.pull(req); len(d.Messages) > 0 {
			a.ackAll("g", "orders.*", d)
		}
		names := a.seriesWith("topic", "orders.b")
		return slices.Contains(names, "lag_seconds") && slices.Contains(names, "messages_acked_total") && len(a.seriesWith("topic", "orders.a")) > 0
	})
	g := a.m.lookup("g")
	for _, s := range g.all() {
		if s.topic == "orders.b" {
			for _, o := range s.list() {
				s.remove(o)
			}
		}
	}
	g.follow(map[string][]int32{"orders.a": {0}})
	a.m.gaugeAges(g, "orders.b", ages{}) // was under way
	for _, n := range a.seriesWith("topic", "orders.b") {
		if strings.HasPrefix(n, "lag") || strings.HasPrefix(n, "oldest") || n == "unreadable_partitions" {
			t.Errorf("the topic was dropped and has %s", n)
		}
	}
	if names := a.seriesWith("topic", "orders.a"); !slices.Contains(names, "lag_seconds") {
		t.Errorf("the other has %v", names)
	}
}
