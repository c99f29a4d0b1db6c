package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/discovery/clock"
)

// knowing is a store with a clock.
type knowing struct {
	discovery.Store
	at func() time.Time
}

func (s knowing) Clock(context.Context) (time.Time, error) { return s.at(), nil }

// A folder that has partitions and no count of its time: nobody knows how old
// they are. That is an alarm until a second clock agrees, the embedded store has
// none, and one that contradicts is told.
func TestAlarmOfAClockWithoutAWitness(t *testing.T) {
	c := newTestCluster(t)
	h := c.host("one")
	h.real = true
	h.kernel = func() (time.Time, bool) { return time.Time{}, false } // not synchronised
	h.start(c)
	h.ready()
	h.create("orders", 1)
	if h.hasAlarm("deleted by time") {
		t.Fatalf("a new folder has the alarm: %q", h.Alarms())
	}
	h.stop()
	h.start(c)
	h.ready()
	if h.hasAlarm("deleted by time") {
		t.Fatalf("a restart raises the alarm: %q", h.Alarms())
	}
	h.stop()
	if err := os.Remove(filepath.Join(h.dir, clock.File)); err != nil {
		t.Fatal(err)
	}
	h.start(c)
	h.ready()
	if !h.hasAlarm("nothing is deleted by time: when the data in this folder was written is not known") {
		t.Fatalf("no alarm: %q", h.Alarms())
	}
	// Nor does a new counter of producer ids begin by such a clock.
	if _, err := h.store.Commit(t.Context(), discovery.Delete(discovery.KeyProducerIDs)); err != nil {
		t.Fatal(err)
	}
	if first, n, err := h.NextProducerIDs(t.Context()); err != nil || n != drawn || first < drawnLow {
		t.Errorf("ids from %d, %d of them, %v: want ones that are drawn", first, n, err)
	}
	if s := h.Status(); !strings.Contains(strings.Join(s.Alarms, " "), "deleted by time") {
		t.Errorf("status: %q", s.Alarms)
	}
	h.stop()
	h.wrap = func(s discovery.Store) discovery.Store {
		return knowing{s, func() time.Time { return time.Now().Add(-2 * time.Hour) }}
	}
	h.start(c)
	h.await("a contradiction", func() bool { return h.hasAlarm("the coordination store's says") })
	h.stop()
	h.wrap = func(s discovery.Store) discovery.Store { return knowing{s, time.Now} }
	h.start(c)
	h.await("no alarm", func() bool { return len(h.Alarms()) == 0 })
}

// An agent whose clock has a witness tells it to those who have none, and only
// then.
func TestTheTimeIsTold(t *testing.T) {
	for _, synchronised := range []bool{false, true} {
		c := newTestCluster(t)
		h := c.host("one")
		h.kernel = func() (time.Time, bool) { return time.Now(), synchronised }
		h.start(c)
		h.ready()
		h.await("registered", func() bool { return h.liveSession() != nil })
		h.tellTimeOnce(t.Context())
		entries := c.keys(discovery.PrefixClocks)
		if !synchronised {
			if len(entries) > 0 {
				t.Errorf("it tells %s though it has no witness", entries[0].Value)
			}
			continue
		}
		if len(entries) != 1 || entries[0].Key != discovery.KeyClock(h.ID()) {
			t.Fatalf("told: %v", entries)
		}
		told, err := discovery.Decode[discovery.ToldTime](entries[0])
		if age := time.Since(time.UnixMilli(told.At)); err != nil || told.Boot == "" || age < 0 || age > time.Minute {
			t.Errorf("told: %+v, %v", told, err)
		}
	}
}
