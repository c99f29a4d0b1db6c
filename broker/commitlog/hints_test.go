package commitlog

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"sidestream/broker/disk"
)

// Whoever reads on from where he found the last entry finds what one finds who
// begins anew, wherever he looks next and however the index grew meanwhile.
func TestLastNearFindsWhatLastFinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	f, err := newDisk(t).OpenFile("/data/x.index", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	must(t, err)
	x := index{width: offsetEntrySize, file: f}
	var part indexPart
	changes, rel := 0, uint32(0)
	for range 3000 {
		for range rng.IntN(4) {
			rel += 1 + uint32(rng.IntN(3))
			x.add(offsetEntry{rel, rel * 10}.bytes()...)
		}
		if rng.IntN(8) == 0 && len(x.pending) > 0 {
			_, err := f.Writev([][]byte{x.pending})
			must(t, err)
			x.wrote(x.count())
		}
		to := uint32(rng.IntN(int(rel) + 5))
		if rng.IntN(4) > 0 && len(part.bytes) > 0 { // a little further on
			to = binary.BigEndian.Uint32(part.bytes) + uint32(rng.IntN(200))
		}
		holds := func(b []byte) bool { return parseOffsetEntry(b).rel <= to }
		want, wantOK, err := x.last(holds)
		must(t, err)
		before := part.first
		got, ok, err := x.lastNear(&part, holds)
		must(t, err)
		if ok != wantOK || got != want {
			t.Fatalf("entry for %d of %d: got %v %t, want %v %t", to, rel, got, ok, want, wantOK)
		}
		if part.first != before {
			changes++
		}
	}
	if changes < 100 || changes > 2500 {
		t.Fatalf("the part was read %d times of 3000: it was of no use, or never changed", changes)
	}
}

// One who reads on in large batches needs the header of the first and of the
// last one, not the pages around them nor the index again: that was a sixth of
// what a fetch cost.
func TestReadingOnReadsLittle(t *testing.T) {
	var bytes, ops int64
	counted := disk.WithFaults(newDisk(t), func(op disk.Op) error {
		if op.Kind == disk.OpRead {
			ops++
			bytes += op.Size
		}
		return nil
	})
	cfg := DefaultConfig()
	l := open(t, counted, cfg)
	for range 400 {
		appendTo(t, l, batch(strings.Repeat("x", 60<<10)))
	}
	flush(t, l)
	ops, bytes = 0, 0
	slices := int64(0)
	for at := int64(0); at < l.EndOffset(); slices++ {
		s, err := l.Read(at, 200<<10, l.EndOffset())
		must(t, err)
		if s.Base != at || s.Next != min(at+3, 400) {
			t.Fatalf("read at %d: got %d to %d", at, s.Base, s.Next)
		}
		at = s.Next
		s.Release()
	}
	if ops > 3*slices || bytes > 512*slices {
		t.Fatalf("%d reads of %d bytes for %d slices of 180 KiB", ops, bytes, slices)
	}
}
