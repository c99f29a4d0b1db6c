package spool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// One partition is away for long, and messages for the others pass through a
// spool that is much smaller than they are together.
func TestAPartitionThatIsAwayLeavesRoomForOthers(t *testing.T) {
	r := newFaultyRig(t, func(c *Config) { c.SegmentBytes, c.ParkAbove = 16<<10, 64<<10 }, func(disk.Op) error { return nil }, func(c *Config) { c.MaxBytes = 200_000 })
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[3].away = true })
	value := strings.Repeat("x", 500)
	three := int32(3)
	ids := map[int]string{}
	big := r.spool(3, strings.Repeat("y", 300<<10)[:90<<10]) // larger than what is read at once of the parked
	for i, end := 0, time.Now().Add(60*time.Second); i < 2000; {
		p := int32(i % 3)
		if i%40 == 0 {
			p = three
		}
		done, err := r.Publish(t.Context(), "t", publish.Message{Value: fmt.Appendf(nil, "%d %s", i, value), Partition: &p}, publish.Options{Ack: publish.AckSpool})
		if err == nil {
			if p == three {
				ids[i] = done.SpoolID
			}
			i++
			if i == 900 || i == 1500 {
				r.close()
				r.open()
			}
			continue
		}
		if codeOf(err) != api.CodeSpoolFull || time.Now().After(end) {
			t.Fatalf("message %d: %v; %+v", i, err, r.Status())
		}
		time.Sleep(time.Millisecond)
	}
	if r.journal.StartOffset() == 0 {
		t.Error("nothing of the journal was given back")
	}
	if r.parkedBytes.Load() < 90<<10 {
		t.Errorf("%d bytes are parked", r.parkedBytes.Load())
	}
	for _, id := range append([]string{big}, ids[0], ids[1000], ids[1960]) {
		if ev, err := r.Event(id); err != nil || ev.State != api.SpoolPending || ev.Partition != 3 {
			t.Errorf("%s: %+v, %v", id, ev, err)
		}
	}
	r.b.set(func() { r.b.topics["t"].parts[3].away = false })
	r.settled()
	values := r.b.values("t", 3)
	if len(values) != 51 {
		t.Fatalf("%d messages are written, want 51", len(values))
	}
	for k, v := range values[1:] {
		if atoi(v) != k*40 {
			t.Fatalf("at %d is %.10s", k+1, v)
		}
	}
	for _, id := range ids {
		if ev, err := r.Event(id); codeOf(err) != api.CodeNotFound && (err != nil || ev.State != api.SpoolWritten) { // of 1000 it remembers
			t.Errorf("%s: %+v, %v", id, ev, err)
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		files, err := r.fs.ReadDir("spool/" + parkedFolder)
		if err == nil && len(files) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are left, %v", len(files), err)
		}
	}
}
