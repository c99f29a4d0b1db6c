package broker_test

import (
	"encoding/binary"
	"testing"
	"time"

	"sidestream/broker/record/recordtest"
)

// A batch says in its header what the highest timestamp of its records is. A producer that left it at -1 (there are
// clients that do), or lied, was believed: searches by time and for the highest timestamp answered with a time that no
// record has, and retention went by it.
func TestTheHighestTimestampIsThatOfTheRecords(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	now := time.Now().UnixMilli()
	for i, claimed := range []int64{-1, now - 1000, now + 3_600_000, 0} {
		ts := now + 10*int64(i)
		b := recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Timestamps: []int64{ts, ts + 5}})
		binary.BigEndian.PutUint64(b[35:], uint64(claimed))
		recordtest.Seal(b)
		if got := r.put("t", b); got.ErrorCode != 0 || got.BaseOffset != 2*int64(i) {
			t.Fatalf("batch %d: %+v", i, got)
		}
	}
	if got := listOffset(r, 7, -3); got.Offset != 7 || got.Timestamp != now+35 {
		t.Errorf("highest timestamp: %+v, want offset 7 at %d", got, now+35)
	}
	for ts, want := range map[int64]int64{now: 0, now + 5: 1, now + 6: 2, now + 15: 3, now + 30: 6, now + 35: 7, now + 36: -1} {
		if got := listOffset(r, 7, ts); got.Offset != want {
			t.Errorf("by time, %d after the first: offset %d, want %d", ts-now, got.Offset, want)
		}
	}
}
