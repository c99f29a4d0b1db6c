package kafka

import (
	"fmt"
	"testing"
	"time"
)

func TestLimiterHoldsARateAndAllowsABurst(t *testing.T) {
	l := newLimiter(Quota{Default: 1000, Clients: map[string]int64{"free": 0, "fast": 10_000}})
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		client string
		after  time.Duration
		bytes  int64
		want   time.Duration
	}{
		{"a", 0, 1000, 0}, // a second's worth at once
		{"a", 0, 500, 500 * time.Millisecond},
		{"a", 500 * time.Millisecond, 0, 0}, // paid
		{"a", 0, 100, 100 * time.Millisecond},
		{"b", 0, 1000, 0},                              // another id has its own
		{"a", time.Hour, 1500, 500 * time.Millisecond}, // silence saves up no more than a second's worth
		{"free", 0, 1 << 40, 0},
		{"fast", 0, 30_000, 2 * time.Second},
		{"c", 0, 1_001_000, maxThrottle}, // 1000 s of debt
		{"c", maxThrottle, 0, maxThrottle},
		{"c", 985 * time.Second, 0, 5 * time.Second},
	} {
		now = now.Add(c.after)
		if got := l.charge(c.client, c.bytes, now); got != c.want {
			t.Errorf("%+v: told to wait %s", c, got)
		}
	}
	if got := l.atOnce("a"); got != 1000 {
		t.Errorf("at once %d, want a second's worth", got)
	}
	if got := l.atOnce("free"); got != 0 {
		t.Errorf("at once %d, want no limit", got)
	}
}

func TestLimiterIsBoundedUnderMadeUpClientIDs(t *testing.T) {
	l := newLimiter(Quota{Default: 1000})
	now := time.Unix(1000, 0)
	for i := range 3 * maxBuckets {
		l.charge(fmt.Sprint(i), 1500, now)
	}
	if len(l.buckets) > maxBuckets+1 {
		t.Errorf("%d buckets", len(l.buckets))
	}
	now = now.Add(time.Hour)
	if got := l.charge("new", 500, now); got != 0 || len(l.buckets) > 2 {
		t.Errorf("when the flood is over: wait %s, %d buckets", got, len(l.buckets))
	}
}
