package commitlog

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

func TestAppendGivesDenseOffsetsOverSegments(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	for i := range 50 {
		first, last := appendTo(t, l, batch(valueAt(int64(2*i)), valueAt(int64(2*i+1))))
		if first != int64(2*i) || last != int64(2*i+1) {
			t.Fatalf("append %d got %d to %d", i, first, last)
		}
	}
	wantDense(t, readAll(t, l, 0), 0, 100)
	if n := len(l.segments); n < 8 {
		t.Errorf("%d segments, want several", n)
	}
	for offset := range int64(100) {
		wantDense(t, readAll(t, l, offset), offset, 100)
	}
}

func TestAppendOfSeveralBatchesIsOneWrite(t *testing.T) {
	writes := 0
	fsys := disk.WithFaults(newDisk(t), func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, logSuffix) {
			writes++
		}
		return nil
	})
	l := open(t, fsys, DefaultConfig())
	first, last := appendTo(t, l, batch(valueAt(0)), batch(valueAt(1), valueAt(2)), batch(valueAt(3)))
	if first != 0 || last != 3 || writes != 1 {
		t.Fatalf("offsets %d to %d with %d writes, want 0 to 3 with 1", first, last, writes)
	}
	wantDense(t, readAll(t, l, 0), 0, 4)
}

func TestAppendStampsInPlace(t *testing.T) {
	l := open(t, newDisk(t), DefaultConfig())
	appendTo(t, l, batch("a", "b"))
	b := batch("c")
	if _, _, err := l.Append([][]byte{b}, 7, testStart); err != nil {
		t.Fatal(err)
	}
	h, err := record.Check(b, 0)
	if err != nil || h.BaseOffset != 2 || h.LeaderEpoch != 7 {
		t.Fatalf("stamped %d, epoch %d (%v)", h.BaseOffset, h.LeaderEpoch, err)
	}
}

func TestAppendRefuses(t *testing.T) {
	cfg := smallConfig()
	cfg.MaxBatchBytes = 200
	whole := batch("a")
	oldMagic := batch("a")
	oldMagic[16] = 1
	for name, c := range map[string]struct {
		batches [][]byte
		epoch   int32
		want    error
	}{
		"nothing":            {nil, 5, record.ErrInvalid},
		"a cut batch":        {[][]byte{whole[:len(whole)-1]}, 5, record.ErrInvalid},
		"less than a header": {[][]byte{whole[:30]}, 5, record.ErrTruncated},
		"two in one slice":   {[][]byte{append(batch("a"), batch("b")...)}, 5, record.ErrInvalid},
		"magic 1":            {[][]byte{oldMagic}, 5, record.ErrMagic},
		"over the limit":     {[][]byte{batch(strings.Repeat("x", 200))}, 5, ErrTooLarge},
		"an old epoch":       {[][]byte{whole}, 4, ErrStaleEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, newDisk(t), cfg)
			if _, _, err := l.Append([][]byte{batch("first")}, 5, testStart); err != nil {
				t.Fatal(err)
			}
			if _, _, err := l.Append(c.batches, c.epoch, testStart); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if l.EndOffset() != 1 {
				t.Errorf("the log ends at %d, want 1", l.EndOffset())
			}
		})
	}
}

func TestRollByAgeOfTheFirstAppend(t *testing.T) {
	cfg := DefaultConfig()
	cfg.SegmentAge = time.Hour
	l := open(t, newDisk(t), cfg)
	// The producer's timestamps say nothing about a segment's age.
	for _, at := range []time.Duration{0, 30 * time.Minute, 59 * time.Minute, time.Hour, 90 * time.Minute} {
		if _, _, err := l.Append([][]byte{batch("v")}, 1, testStart.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.segments); n != 2 || l.segments[1].base != 3 {
		t.Fatalf("%d segments, the last at %d; want 2, the last at 3", n, l.active().base)
	}
}

func TestFullDiskTakesTheAppendBack(t *testing.T) {
	for short := range int64(200) {
		m := newDisk(t)
		fail := false
		fsys := disk.WithFaults(m, func(op disk.Op) error {
			if fail && op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, logSuffix) {
				return disk.ShortWrite(short, errFull)
			}
			return nil
		})
		l := open(t, fsys, smallConfig())
		appendValues(t, l, 3)
		fail = true
		if _, _, err := l.Append([][]byte{batch("lost"), batch("lost")}, 1, testStart); !errors.Is(err, ErrNoSpace) {
			t.Fatalf("got %v, want ErrNoSpace", err)
		}
		fail = false
		wantDense(t, readAll(t, l, 0), 0, 3)
		appendValues(t, l, 3) // there is room again
		flush(t, l)
		wantDense(t, readAll(t, l, 0), 0, 6)
		l = open(t, m.Crash(uint64(short)), smallConfig())
		wantDense(t, readAll(t, l, 0), 0, 6)
	}
}

// What a producer is told is not there for good must not come back. Of an append of several batches a full disk may have
// taken the first one whole: that it was cut off again is not durable by itself, and a power cut brought it back.
func TestWhatWasNotAppendedStaysAway(t *testing.T) {
	size := int64(len(batch("lost")))
	for short := int64(0); short < 2*size; short += 13 {
		for seed := range uint64(60) {
			m := newDisk(t)
			fail := false
			fsys := disk.WithFaults(m, func(op disk.Op) error {
				if fail && op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, logSuffix) {
					return disk.ShortWrite(short, errFull)
				}
				return nil
			})
			l := open(t, fsys, smallConfig())
			appendValues(t, l, 3)
			flush(t, l)
			fail = true
			if _, _, err := l.Append([][]byte{batch("lost"), batch("lost")}, 1, testStart); !errors.Is(err, ErrNoSpace) || !errors.Is(err, ErrNotAppended) {
				t.Fatalf("got %v, want ErrNoSpace and ErrNotAppended", err)
			}
			l = open(t, m.Crash(seed), smallConfig())
			wantDense(t, readAll(t, l, 0), 0, 3)
		}
	}
}

func TestFullDiskAtARoll(t *testing.T) {
	m := newDisk(t)
	full := false
	fsys := disk.WithFaults(m, func(op disk.Op) error {
		if full && op.Kind == disk.OpOpen {
			return errFull
		}
		return nil
	})
	l := open(t, fsys, smallConfig())
	full = true
	var err error
	for err == nil {
		_, _, err = l.Append([][]byte{batch(valueAt(l.EndOffset()))}, 1, testStart)
	}
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, ErrNotAppended) {
		t.Fatalf("got %v, want ErrNoSpace and ErrNotAppended", err)
	}
	before := l.EndOffset()
	full = false
	appendValues(t, l, 5)
	if len(l.segments) != 2 || l.active().base != before {
		t.Fatalf("%d segments, the last at %d, want 2 with %d", len(l.segments), l.active().base, before)
	}
	wantDense(t, readAll(t, l, 0), 0, before+5)
}

func TestNoAppendOverATornOne(t *testing.T) {
	m := newDisk(t)
	failWrite, failCut := false, false
	fsys := disk.WithFaults(m, func(op disk.Op) error {
		switch {
		case failWrite && op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, logSuffix):
			return disk.ShortWrite(30, errFull)
		case failCut && op.Kind == disk.OpTruncate:
			return errors.New("no truncation either")
		}
		return nil
	})
	l := open(t, fsys, DefaultConfig())
	appendValues(t, l, 2)
	failWrite, failCut = true, true
	if _, _, err := l.Append([][]byte{batch("lost")}, 1, testStart); !errors.Is(err, ErrNoSpace) || !errors.Is(err, ErrOffline) || errors.Is(err, ErrNotAppended) {
		t.Fatalf("got %v, want ErrNoSpace and ErrOffline and no more: what was written could not be taken back", err)
	}
	failWrite = false
	if _, _, err := l.Append([][]byte{batch("refused")}, 1, testStart); !errors.Is(err, ErrOffline) || !errors.Is(err, ErrNotAppended) {
		t.Fatalf("got %v, want ErrOffline while the torn batch is there, and nothing appended", err)
	}
	failCut = false
	appendValues(t, l, 2)
	wantDense(t, readAll(t, l, 0), 0, 4)
	must(t, l.Close())
	wantDense(t, readAll(t, open(t, m, DefaultConfig()), 0), 0, 4)
}
