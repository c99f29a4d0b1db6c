package discovery

import (
	"testing"
	"time"
)

func TestLongestGap(t *testing.T) {
	base := time.Unix(1000, 0)
	at := func(seconds ...float64) (beats []time.Time) {
		for _, s := range seconds {
			beats = append(beats, base.Add(time.Duration(s*float64(time.Second))))
		}
		return beats
	}
	for _, c := range []struct {
		name   string
		beats  []time.Time
		now    float64
		window float64
		want   float64
	}{
		{"regular", at(0, 1, 2, 3, 4, 5, 6), 6.5, 5, 1},
		{"since the last", at(0, 1, 2, 3), 6.5, 5, 3.5},
		{"a gap inside", at(0, 1, 2, 5, 6), 6, 5, 3},
		{"a gap that touches the window counts whole", at(0, 4, 5, 6, 7, 8), 8, 5, 4},
		{"a gap that ended before", at(0, 4, 5, 6, 7, 8, 9), 9.5, 5, 1},
		{"just begun", at(6), 6, 5, 5},
		{"begun two seconds ago", at(4, 5, 6), 6, 5, 3},
		{"begun at the window's start", at(1, 2, 3), 3, 2, 1},
		{"never", nil, 6, 5, 5},
		{"all beats before the window", at(0, 1), 20, 5, 19},
	} {
		l := beatLog{at: c.beats}
		got := l.longestGap(at(c.now)[0], time.Duration(c.window*float64(time.Second)))
		if got != time.Duration(c.want*float64(time.Second)) {
			t.Errorf("%s: %s, want %gs", c.name, got, c.want)
		}
	}

	var l beatLog
	for i := range 3 * beatsKept {
		l.add(at(float64(i))[0])
	}
	if len(l.at) != beatsKept || l.longestGap(l.at[beatsKept-1], time.Minute) != time.Second {
		t.Errorf("%d beats are kept, gap %s", len(l.at), l.longestGap(l.at[beatsKept-1], time.Minute))
	}
}
