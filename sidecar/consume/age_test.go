package consume

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sidecar/consume/window"
)

func TestOutsRemembersTheOldest(t *testing.T) {
	t0 := time.Unix(1000, 0)
	batch := func(lease uint64, offsets ...int64) handed {
		h := handed{}
		for _, o := range offsets {
			h.messages = append(h.messages, window.Handout[*kgo.Record]{Offset: o, LeaseNo: lease})
		}
		return h
	}
	var u outs
	u.add(batch(1, 0, 2, 4), t0)
	u.add(batch(2, 1, 3), t0.Add(time.Second))
	u.add(batch(3, 5), t0.Add(2*time.Second))
	for _, c := range []struct {
		unacked []int64
		after   time.Duration
		ok      bool
	}{
		{[]int64{0, 1, 2, 3, 4, 5}, 0, true},
		{[]int64{1, 4, 5}, 0, true},
		{[]int64{3, 5}, time.Second, true},
		{[]int64{5}, 2 * time.Second, true},
		{nil, 0, false},
	} {
		at, ok := u.oldest(func(o int64) bool { return slices.Contains(c.unacked, o) })
		if ok != c.ok || ok && !at.Equal(t0.Add(c.after)) {
			t.Errorf("with %v unacknowledged: %v %v", c.unacked, at, ok)
		}
	}
	if len(u) != 0 {
		t.Errorf("%d hand-outs are kept of which all is acknowledged", len(u))
	}
	// What never reached its application waits for nobody; redelivered, it does
	// since then.
	u.add(batch(4, 7), t0)
	u.back(4)
	u.add(batch(5, 7), t0.Add(time.Minute))
	if at, _ := u.oldest(func(int64) bool { return true }); !at.Equal(t0.Add(time.Minute)) {
		t.Errorf("since %v", at)
	}
}

// A group that is behind says by how long, on its owner and elsewhere; an
// application that does not acknowledge is told from one that is slow.
func TestLagInSeconds(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	a, b := l.host("a"), l.host("b")
	for i, age := range []time.Duration{3 * time.Hour, 2 * time.Hour, time.Hour} {
		r := &kgo.Record{Topic: "views", Partition: 0, Value: []byte{byte(i)}, Timestamp: time.Now().Add(-age)}
		if err := l.prod.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	near := func(seconds float64, hours float64) bool { return seconds > hours*3600-10 && seconds < hours*3600+60 }
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 3, Lease: time.Hour})
	a.ack("g", "views", d.Messages[0].Receipt)
	eventually(t, "both owned, and one acknowledged in the store", func() bool {
		st, err := b.m.stored(t.Context(), "g", "views")
		return err == nil && st[0].Position.Low == 1 && len(a.partitions("g", "views")) == 2
	})
	o, err := a.m.Offsets(t.Context(), "g", "views")
	if err != nil || !near(o.Partitions[0].LagSeconds, 2) || !near(o.LagSeconds, 2) || o.Partitions[1].LagSeconds != 0 {
		t.Errorf("on the owner %+v %v", o, err)
	}
	if s := o.Partitions[0].OldestUnackedSeconds; s <= 0 || s > 60 || o.OldestUnackedSeconds != s || o.Partitions[1].OldestUnackedSeconds != 0 {
		t.Errorf("unacknowledged for %v on the owner %+v", s, o)
	}
	if o, err = b.m.Offsets(t.Context(), "g", "views"); err != nil || !near(o.Partitions[0].LagSeconds, 2) || o.Partitions[1].LagSeconds != 0 || o.Partitions[0].OldestUnackedSeconds != -1 {
		t.Errorf("elsewhere %+v %v", o, err)
	}
	eventually(t, "the gauges", func() bool {
		return near(a.gauge("sidestream_consume_lag_seconds"), 2) && a.gauge("sidestream_consume_oldest_unacked_seconds") > 0.5
	})
	a.ack("g", "views", receiptsOf(d)...)
	if o, err = a.m.Offsets(t.Context(), "g", "views"); err != nil || o.LagSeconds != 0 || o.OldestUnackedSeconds != 0 || o.Lag != 0 {
		t.Errorf("with all acknowledged %+v %v", o, err)
	}
	eventually(t, "the gauges at rest", func() bool {
		return a.gauge("sidestream_consume_lag_seconds") == 0 && a.gauge("sidestream_consume_oldest_unacked_seconds") == 0
	})
	// Behind, and nobody of the group is there.
	a.close()
	l.produce("views", 1, 0, 1)
	eventually(t, "an idle group is behind", func() bool {
		o, err := b.m.Offsets(t.Context(), "g", "views")
		return err == nil && o.Lag == 1 && o.LagSeconds > 0 && o.LagSeconds < 60 && o.OldestUnackedSeconds == 0
	})
}
