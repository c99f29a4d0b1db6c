package kafka

import (
	"testing"
	"time"
)

// Each byte of a request gave it the whole receive timeout anew, so that a client which sent one every ten seconds kept
// 100 MB of the request memory for years. Now a byte gives back what it takes at 64 KiB a second.
func TestPaceOfARequest(t *testing.T) {
	const patience = 30 * time.Second
	begun := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		every time.Duration
		bytes int
		size  int
		cut   time.Duration // after its beginning; 0: never
	}{
		"fast":                       {time.Second, 10 << 20, 100 << 20, 0},
		"just fast enough":           {time.Second, minRate, 100 << 20, 0},
		"a byte every ten seconds":   {10 * time.Second, 1, 100 << 20, 31 * time.Second},
		"half as fast as it must be": {time.Second, minRate / 2, 100 << 20, 60 * time.Second},
		"slow and short":             {time.Second, minRate / 2, 20 * minRate / 2, 0},
		"nothing":                    {time.Hour, 0, 100, 31 * time.Second},
	} {
		var p pace
		p.begin(begun, patience)
		var cut time.Duration
		got := 0
		for at := time.Second; got < c.size && at < time.Hour; at += time.Second {
			now := begun.Add(at)
			if p.late(now, patience, patience) {
				cut = at
				break
			}
			if at%c.every == 0 {
				got += c.bytes
				p.progress(now, c.bytes, patience)
			}
		}
		if cut != c.cut {
			t.Errorf("%s: cut after %s, want %s", name, cut, c.cut)
		}
	}
	// One that stops in the middle is not allowed more than the timeout, however fast it was; a quarter in need.
	var p pace
	p.begin(begun, patience)
	p.progress(begun.Add(time.Second), 90<<20, patience)
	for allowed, want := range map[time.Duration]bool{patience: false, patience / 4: true} {
		if got := p.late(begun.Add(15*time.Second), patience, allowed); got != want {
			t.Errorf("silent for 14s of %s allowed: late %v", allowed, got)
		}
	}
	if !p.late(begun.Add(32*time.Second), patience, patience) {
		t.Error("silent for 31s and not late")
	}
	p.end()
	if p.late(begun.Add(time.Hour), patience, patience) {
		t.Error("late while nothing is expected")
	}
}
