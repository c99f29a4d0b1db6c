package sidecar

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/sidecar/upstream"
)

// A sidecar logged nothing of 837 publishes that failed while a broker was away,
// and was ready without a cause. The log has one line at the begin and one with
// the counts at the end, however the broker comes and goes meanwhile.
func TestAnOutageIsToldOnce(t *testing.T) {
	orders := func(away ...int32) []upstream.TopicAway {
		a := upstream.TopicAway{Topic: "orders", Partitions: 6, Away: away}
		if len(away) > 0 {
			a.Brokers = []int32{3}
		}
		return []upstream.TopicAway{a}
	}
	failed := func(n, unknown int64) map[string]failures { return map[string]failures{"orders": {n, unknown}} }
	well := sighting{published: orders(), failures: failed(5, 1)}
	var many []upstream.TopicAway
	for i := range 1000 {
		many = append(many, upstream.TopicAway{Topic: fmt.Sprintf("t%04d", i), Partitions: 100, Away: make([]int32, 100), Brokers: []int32{1, 2, 3}})
		for p := range many[i].Away {
			many[i].Away[p] = int32(p)
		}
	}
	type step struct {
		s     sighting
		after time.Duration
	}
	for name, c := range map[string]struct {
		steps []step
		lines []string // each has one of these, in order
		cause string   // as /readyz has it, "" none
	}{
		"nothing is used":   {[]step{{sighting{}, 0}}, nil, ""},
		"nothing is away":   {[]step{{well, 0}, {well, time.Second}}, nil, ""},
		"away at the start": {[]step{{sighting{published: orders(2, 5)}, 0}}, []string{"are away"}, "2 partitions are away since 12:00:00 UTC: orders (2 of 6); broker 3 has them"},
		"failures are counted from the last time that was well": {
			[]step{{well, 0}, {sighting{published: orders(2, 5), failures: failed(842, 3)}, time.Second}, {sighting{published: orders(2, 5), failures: failed(842, 3)}, time.Second}},
			[]string{"are away"}, "2 partitions are away since 12:00:01 UTC: orders (2 of 6); broker 3 has them; 837 messages for these topics were not taken (of 2 of them it is not known)"},
		"it ends": {
			[]step{{well, 0}, {sighting{published: orders(2, 5), failures: failed(842, 1)}, time.Second}, {sighting{published: orders(), failures: failed(842, 1)}, time.Minute},
				{sighting{published: orders(), failures: failed(842, 1)}, outageQuiet}, {sighting{published: orders(), failures: failed(842, 1)}, time.Second}},
			[]string{"are away", "any more after=1m0s partitions=2 topics=[orders] failed=837 unknown=0"}, ""},
		"it comes and goes": {
			[]step{{well, 0}, {sighting{published: orders(2)}, time.Second}, {sighting{published: orders()}, time.Second}, {sighting{published: orders(2)}, time.Second}, {sighting{published: orders()}, time.Second}, {sighting{published: orders(2)}, time.Second}},
			[]string{"are away"}, "1 partition is away since 12:00:01 UTC"},
		"it grows within moments": {[]step{{sighting{published: orders(2)}, 0}, {sighting{published: orders(2, 3)}, time.Second}}, []string{"are away"}, "2 partitions"},
		"it grows much later":     {[]step{{sighting{published: orders(2)}, 0}, {sighting{published: orders(2, 3)}, outageAgain}, {sighting{published: orders(2, 3)}, outageAgain}}, []string{"partitions of", "more partitions of"}, "2 partitions"},
		"another one later": {
			[]step{{sighting{published: orders(2)}, 0}, {sighting{published: orders()}, time.Second}, {sighting{published: orders()}, outageQuiet}, {sighting{published: orders(1), failures: failed(9, 0)}, time.Hour}},
			[]string{"are away", "any more", "are away"}, "1 partition is away since 13:00:03 UTC: orders (1 of 6); broker 3 has them; 9 messages"},
		"of a pull alone":           {[]step{{sighting{consumed: map[string][]int32{"views": {0, 1}}}, 0}}, []string{"are away"}, "2 partitions are away since 12:00:00 UTC: views (2)"},
		"of both":                   {[]step{{sighting{published: orders(2), consumed: map[string][]int32{"orders": {2}}}, 0}}, []string{"are away"}, "1 partition is away since 12:00:00 UTC: orders (1 of 6)"},
		"no broker answers":         {[]step{{well, 0}, {sighting{cause: "no broker answered", failures: failed(6, 1)}, time.Second}}, []string{"are away"}, "6 partitions are away since 12:00:01 UTC: orders (6 of 6); 1 messages"},
		"no broker has ever":        {[]step{{sighting{cause: "no broker answered", failures: failed(6, 1)}, 0}}, []string{"are away"}, "topics are away since 12:00:00 UTC: orders; 6 messages"},
		"100,000 partitions":        {[]step{{sighting{published: many}, 0}}, []string{"are away"}, "100000 partitions are away since 12:00:00 UTC: t0000 (100 of 100), t0001 (100 of 100), t0002 (100 of 100), t0003 (100 of 100), t0004 (100 of 100) and 995 more topics; brokers [1 2 3] have them"},
		"the topic is deleted then": {[]step{{well, 0}, {sighting{published: orders(2)}, time.Second}, {sighting{}, time.Second}, {sighting{}, outageQuiet}}, []string{"are away", "any more"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			w, err := newOutageWatch(nil, prometheus.NewRegistry(), zap.New(core))
			if err != nil {
				t.Fatal(err)
			}
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			for _, s := range c.steps {
				now = now.Add(s.after)
				w.take(s.s, now)
			}
			var lines []string
			for _, e := range logs.TakeAll() {
				m := e.ContextMap()
				line := e.Message
				if after, ok := m["after"]; ok {
					line += fmt.Sprintf(" after=%v partitions=%v topics=%v failed=%v unknown=%v", after, m["partitions"], m["topics"], m["failed_messages"], m["of_them_unknown"])
				}
				if e.Level != zap.WarnLevel || len(fmt.Sprint(m)) > 1000 {
					t.Errorf("%s %s with %d bytes of fields", e.Level, e.Message, len(fmt.Sprint(m)))
				}
				lines = append(lines, line)
			}
			if len(lines) != len(c.lines) {
				t.Fatalf("logged %q; want %q", lines, c.lines)
			}
			for i, want := range c.lines {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %q; want %q in it", lines[i], want)
				}
			}
			text := ""
			st := w.status()
			if st != nil {
				text = st.text()
				if len(st.Topics) > mostAwayTopics || len(st.Topics) > 0 && len(st.Topics[0].First) > mostAwayPartitions {
					t.Errorf("the status is without a bound: %d topics", len(st.Topics))
				}
			}
			if !strings.HasPrefix(text, c.cause) || c.cause == "" && text != "" {
				t.Errorf("cause %q; want %q", text, c.cause)
			}
		})
	}
}
