package spool

import (
	"testing"
	"time"
)

// The journal keeps what is settled as long as something older waits for another
// partition. After a start, the partition that had nothing to send was forgotten
// all the same, and with it how far it had come: the next start sent everything
// of it again.
func TestWhatIsSettledIsRememberedWhileTheJournalHasIt(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.KeepEvery, c.ReclaimEvery = time.Millisecond, time.Millisecond
	})
	r.b.set(func() { r.b.topics["t"].parts[1].away = true })
	r.spool(1, "waits")
	for _, v := range []string{"a", "b", "c"} {
		id := r.spool(0, v)
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if ev, err := r.Event(id); err == nil && ev.Offset >= 0 && ev.State == "written" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not written", v)
			}
		}
	}
	for range 3 {
		r.restart()
		time.Sleep(50 * time.Millisecond) // the keeper looks some fifty times
	}
	if got := r.b.values("t", 0); len(got) != 3 {
		t.Errorf("partition 0 has %q", got)
	}
	r.b.set(func() { r.b.topics["t"].parts[1].away = false })
	r.settled()
	if got := r.b.values("t", 1); len(got) != 1 {
		t.Errorf("partition 1 has %q", got)
	}
}
