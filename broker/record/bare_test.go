package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// Taking a batch apart and putting it together gives the same bytes; with
// another first timestamp it gives the same records.
func TestBareRecordsGoTogetherAgain(t *testing.T) {
	b := recordtest.Batch(recordtest.Spec{
		Keys: []string{"a", "", "c"}, Values: []string{"1", "2", "3", "no key"}, Tombstones: []bool{false, false, true},
		Timestamps: []int64{5000, 4000, 9000, 7000}, Producer: true, ID: 7, Epoch: 2, Sequence: 100,
	})
	record.Stamp(b, 40, 3)
	h, err := record.Check(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	var same, moved []byte
	var keys []string
	for r, err := range record.BareRecords(b[record.HeaderSize:], h) {
		if err != nil {
			t.Fatal(err)
		}
		same = r.Append(same, h.FirstTimestamp)
		moved = r.Append(moved, 1_000_000)
		switch {
		case r.Key == nil:
			keys = append(keys, "none")
		case r.Tombstone:
			keys = append(keys, string(r.Key)+" gone")
		default:
			keys = append(keys, string(r.Key))
		}
	}
	if got := strings.Join(keys, ","); got != "a,,c gone,none" {
		t.Errorf("keys %s", got)
	}
	if again := record.AppendBatch([]byte("before"), h, same); !bytes.Equal(again, append([]byte("before"), b...)) {
		t.Errorf("got\n%x, want\n%x", again[6:], b)
	}
	h.SetDeleteHorizon(1_000_000)
	later := record.AppendBatch(nil, h, moved)
	h, err = record.CheckStored(later, 0)
	if err != nil {
		t.Fatal(err)
	}
	if ms, ok := h.DeleteHorizon(); !ok || ms != 1_000_000 || h.Thinned() {
		t.Errorf("horizon %d %v, thinned %v", ms, ok, h.Thinned())
	}
	var times []int64
	for r, err := range record.Records(later[record.HeaderSize:], h) {
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, r.Timestamp)
	}
	if len(times) != 4 || times[0] != 5000 || times[1] != 4000 || times[2] != 9000 || times[3] != 7000 {
		t.Errorf("timestamps %v", times)
	}
}

func TestCheckKeys(t *testing.T) {
	check := func(s recordtest.Spec) error {
		b := recordtest.Batch(s)
		h, err := record.Check(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		return record.CheckKeys(b[record.HeaderSize:], h)
	}
	if err := check(recordtest.Spec{Keys: []string{"a", ""}, Values: []string{"1", "2"}}); err != nil {
		t.Error(err)
	}
	err := check(recordtest.Spec{Keys: []string{"a"}, Values: []string{"1", "2"}})
	if !errors.Is(err, record.ErrInvalid) || !strings.Contains(err.Error(), "record 1 of 2 has no key") {
		t.Error(err)
	}
}

func TestCheckStoredTakesThinnedBatches(t *testing.T) {
	for count, want := range map[int32]error{-1: record.ErrInvalid, 0: nil, 1: nil, 3: nil, 4: record.ErrInvalid} {
		b := recordtest.Batch(recordtest.Spec{Values: []string{"1", "2", "3"}})
		binary.BigEndian.PutUint32(b[57:], uint32(count))
		recordtest.Seal(b)
		if _, err := record.CheckStored(b, 0); !errors.Is(err, want) {
			t.Errorf("%d records of 3: %v, want %v", count, err, want)
		}
		if _, err := record.Check(b, 0); (err == nil) != (count == 3) {
			t.Errorf("a producer's batch with %d records of 3: %v", count, err)
		}
	}
	b := recordtest.Batch(recordtest.Spec{})
	if _, err := record.CheckStored(b[:len(b)-1], 0); !errors.Is(err, record.ErrTruncated) {
		t.Error(err)
	}
}

// What is no record gives an error and never more than the bytes hold.
func FuzzBareRecords(f *testing.F) {
	for _, s := range []recordtest.Spec{{}, {Keys: []string{"k", "l"}, Values: []string{"v", "w"}, Tombstones: []bool{true}}} {
		b := recordtest.Batch(s)
		f.Add(b[record.HeaderSize:], int32(2), int32(1), int64(0))
	}
	f.Fuzz(func(t *testing.T, body []byte, count, delta int32, first int64) {
		h := record.Header{Count: count, LastOffsetDelta: delta, FirstTimestamp: first}
		n := int32(0)
		for r, err := range record.BareRecords(body, h) {
			if err != nil {
				return
			}
			n++
			if r.OffsetDelta < 0 || r.OffsetDelta > delta || len(r.Key) > len(body) {
				t.Fatalf("%+v of %d bytes", r, len(body))
			}
			one := r.Append(nil, first)
			alone := record.Header{Count: 1, LastOffsetDelta: delta, FirstTimestamp: first}
			for again, err := range record.BareRecords(one, alone) {
				if err != nil || again.Timestamp != r.Timestamp || !bytes.Equal(again.Key, r.Key) || again.Tombstone != r.Tombstone {
					t.Fatalf("%+v became %+v, %v", r, again, err)
				}
			}
		}
		if n != max(count, 0) {
			t.Fatalf("%d records without an error, announced were %d", n, count)
		}
	})
}
