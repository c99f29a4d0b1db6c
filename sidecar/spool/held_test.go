package spool

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// spoolWithID spools a message that came with an id of its own.
func (r *rig) spoolWithID(partition int32, id string, size int) api.Published {
	r.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		done, err := r.Publish(r.t.Context(), "t", publish.Message{Value: []byte(strings.Repeat("x", size)), Partition: &partition,
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(id + "?")}, {Key: upstream.HeaderID, Value: []byte(id)}}},
			publish.Options{Ack: publish.AckSpool})
		if err == nil {
			return done
		}
		if codeOf(err) != api.CodeSpoolFull || time.Now().After(end) {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) checkHeld(when string, asked []string, want map[string]api.Published) {
	r.t.Helper()
	set := map[string]struct{}{}
	for _, id := range asked {
		set[id] = struct{}{}
	}
	held, err := r.Held(set)
	if err != nil {
		r.t.Fatalf("%s: %v", when, err)
	}
	for _, id := range asked {
		got, ok := held[id]
		w, wanted := want[id]
		if ok != wanted || ok && got != (api.BatchResult{Partition: w.Partition, Offset: -1, SpoolID: w.SpoolID}) {
			r.t.Errorf("%s: %s is held %v as %+v, want %v %+v", when, id, ok, got, wanted, w)
		}
	}
}

// What waits is found by the id that it came with, in the journal and out of it;
// what is written is not.
func TestHeld(t *testing.T) {
	r := newFaultyRig(t, func(c *Config) { c.SegmentBytes, c.ParkAbove = 16<<10, 64<<10 }, func(disk.Op) error { return nil }, func(c *Config) { c.MaxBytes = 200_000 })
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[3].away = true })
	first := r.spoolWithID(3, "first", 10)
	for i := range 600 { // the journal is cut off behind what waits
		r.spoolWithID(int32(i%3), fmt.Sprint("other ", i), 500)
	}
	for end := time.Now().Add(20 * time.Second); r.parkedBytes.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is parked")
		}
		r.spoolWithID(0, "more", 500)
	}
	last := r.spoolWithID(3, "last", 10)
	for end := time.Now().Add(20 * time.Second); r.Status().Pending > 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	asked := []string{"first", "last", "other 7", "first?", "never"}
	want := map[string]api.Published{"first": first, "last": last}
	r.checkHeld("at once", asked, want)
	r.close()
	r.open()
	r.checkHeld("after a restart", asked, want)
	r.b.set(func() { r.b.topics["t"].parts[3].away = false })
	r.settled()
	r.checkHeld("once all is written", asked, nil)
}

func TestHeldAfterAFailedSync(t *testing.T) {
	var broken atomic.Bool
	r := newFaultyRig(t, nil, func(op disk.Op) error {
		if broken.Load() && op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, ".log") {
			return syscall.EIO
		}
		return nil
	})
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	first := r.spoolWithID(0, "first", 10)
	broken.Store(true)
	zero := int32(0)
	if _, err := r.Publish(t.Context(), "t", publish.Message{Partition: &zero}, publish.Options{Ack: publish.AckSpool}); codeOf(err) != api.CodeUnknownOutcome {
		t.Fatal(err)
	}
	if held, err := r.Held(map[string]struct{}{"first": {}}); err == nil {
		t.Errorf("it says that it holds %v", held)
	}
	broken.Store(false)
	_ = r.Spool.Close(t.Context()) // it says what failed
	r.open()
	defer r.close()
	r.checkHeld("after the next start", []string{"first"}, map[string]api.Published{"first": first})
}
