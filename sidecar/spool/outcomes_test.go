package spool

import (
	"testing"

	"sidestream/broker/disk"
)

// A crash may leave any part of a slot: what it tells then is the fate of an
// event that was noted, or nothing. Half a slot told offset 0 of partition 0.
func TestHalfAnOutcomeTellsNothing(t *testing.T) {
	fs := disk.NewMem()
	if err := fs.MkdirAll("spool", 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := openOutcomes(fs, "spool", 10)
	if err != nil {
		t.Fatal(err)
	}
	before := outcome{seq: 3, offset: 77, topic: 2, partition: 5}
	after := outcome{seq: 13, offset: 99, topic: 4, partition: 6}
	slot := func(x outcome) []byte {
		if err := o.put([]outcome{x}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, outcomeSize)
		if _, err := o.f.ReadAt(b, 3*outcomeSize); err != nil {
			t.Fatal(err)
		}
		return b
	}
	zero := make([]byte, outcomeSize)
	was, is := slot(before), slot(after)
	for _, old := range [][]byte{zero, was} {
		for cut := range outcomeSize + 1 {
			torn := append(append([]byte(nil), is[:cut]...), old[cut:]...)
			if _, err := o.f.WriteAt(torn, 3*outcomeSize); err != nil {
				t.Fatal(err)
			}
			for _, want := range []outcome{before, after} {
				if got, ok := o.get(want.seq); ok && got != want {
					t.Fatalf("cut at %d: event %d: %+v", cut, want.seq, got)
				}
			}
		}
	}
	if got, ok := o.get(13); !ok || got != after {
		t.Errorf("got %+v, %t", got, ok)
	}
	if err := o.f.Close(); err != nil {
		t.Fatal(err)
	}
}
