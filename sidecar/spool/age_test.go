package spool

import (
	"sync/atomic"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
)

// settable is a time that a test moves; 0: nobody knows it.
type settable struct{ at atomic.Int64 }

func (c *settable) set(at time.Time) { c.at.Store(stampOf(at)) }

func (c *settable) now() time.Time { return acceptedAt(c.at.Load()) }

// A message is not rejected for its age by a clock that nobody believes, nor as
// soon as one is believed that says it is years old: it was accepted while the
// time was not known.
func TestRejectionByAgeWaitsForATime(t *testing.T) {
	for name, known := range map[string]bool{"accepted at a known time": true, "accepted while nobody knew": false} {
		t.Run(name, func(t *testing.T) {
			clock, begun := &settable{}, time.Now()
			clock.set(time.Time{})
			if known {
				clock.set(begun)
			}
			r := newFaultyRig(t, func(c *Config) { c.OnAge = Reject }, func(disk.Op) error { return nil }, func(c *Config) { c.MaxAge = time.Hour })
			r.close()
			r.time = clock.now
			r.open()
			defer r.close()
			r.b.set(func() { r.b.topics["t"].parts[0].away = true })
			id := r.spool(0, "m")
			state := func() string {
				ev, err := r.Event(id)
				if err != nil {
					t.Fatal(err)
				}
				return string(ev.State)
			}
			r.restart()
			rests := func(when string) {
				t.Helper()
				time.Sleep(100 * time.Millisecond)
				if s := state(); s == string(api.SpoolRejected) {
					t.Fatalf("%s it is %s", when, s)
				}
			}
			clock.set(time.Time{})
			rests("while nobody knows the time")
			if !known {
				clock.set(begun.Add(1000 * time.Hour))
				rests("at the first look")
				begun = begun.Add(1000 * time.Hour)
			}
			clock.set(begun.Add(59 * time.Minute))
			rests("before its age")
			clock.set(begun.Add(61 * time.Minute))
			r.until(func() bool { return state() == string(api.SpoolRejected) })
		})
	}
}

// What has no date keeps its own timestamp, which is the wall clock's.
func TestEntriesWithoutADate(t *testing.T) {
	r := newRig(t, nil)
	r.close()
	r.time = func() time.Time { return time.Time{} }
	r.open()
	defer r.close()
	before := time.Now()
	r.spool(0, "m")
	r.settled()
	if got := r.b.values("t", 0); len(got) != 1 || got[0] != "m" {
		t.Errorf("written: %q", got)
	}
	var ts time.Time
	r.b.set(func() { ts = r.b.topics["t"].parts[0].recs[0].Timestamp })
	if ts.Before(before.Add(-time.Minute)) || ts.After(before.Add(time.Minute)) {
		t.Errorf("written with the timestamp %v", ts)
	}
}
