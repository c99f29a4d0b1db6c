package commitlog

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

// The younger of the credible ages counts.
func TestAgeOfASegment(t *testing.T) {
	const hour = int64(time.Hour / time.Millisecond)
	const day = 24 * hour
	appended := testStart.UnixMilli()
	now := appended + 2*day
	for name, c := range map[string]struct {
		maxTimestamp int64
		want         int64
	}{
		"as it is":                           {appended, appended},
		"an hour late":                       {appended - hour, appended},
		"1970":                               {0, appended},
		"no timestamp":                       {-1, appended},
		"written by a clock that was behind": {appended + day, appended + day},
		"a little ahead of now":              {now + hour/2, now + hour/2},
		"to come":                            {now + 2*hour, appended},
		"2100":                               {4102444800000, appended},
		"the end of time":                    {math.MaxInt64, appended},
	} {
		if got := ageFrom(c.maxTimestamp, appended, now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func dated(ts int64) []byte {
	return recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 300)}, Timestamps: []int64{ts}})
}

// Records from 1970 do not vanish at once, records from 2100 do not stay.
func TestRetentionByTime(t *testing.T) {
	for name, ts := range map[string]int64{"now": testStart.UnixMilli(), "1970": 0, "2100": 4102444800000, "none": -1} {
		t.Run(name, func(t *testing.T) {
			m := newDisk(t)
			cfg := smallConfig()
			cfg.Retention = time.Hour
			l := open(t, m, cfg)
			for range 10 {
				appendTo(t, l, dated(ts))
			}
			segments := len(l.segments)
			retain := func(at time.Duration, want int) {
				t.Helper()
				n, err := l.Retain(testStart.Add(at))
				must(t, err)
				if n != want {
					t.Fatalf("after %v %d segments removed, want %d", at, n, want)
				}
			}
			retain(0, 0)
			retain(59*time.Minute, 0)
			must(t, l.Close())
			l = open(t, m, cfg)
			retain(59*time.Minute, 0)
			retain(2*time.Hour, segments)
			if l.StartOffset() != 10 || l.EndOffset() != 10 || l.Size() != 0 {
				t.Errorf("%d to %d with %d bytes, want 10 to 10 with none", l.StartOffset(), l.EndOffset(), l.Size())
			}
			appendTo(t, l, dated(ts))
			must(t, l.Close())
			if l = open(t, m, cfg); l.StartOffset() != 10 || l.EndOffset() != 11 {
				t.Errorf("%d to %d after restart, want 10 to 11", l.StartOffset(), l.EndOffset())
			}
		})
	}
}

func TestRetentionBySize(t *testing.T) {
	l := open(t, newDisk(t), smallConfig())
	appendValues(t, l, 100)
	cfg := smallConfig()
	cfg.RetentionBytes = 3000
	must(t, l.SetConfig(cfg))
	n, err := l.Retain(testStart)
	must(t, err)
	if n == 0 || l.Size() < 3000 || l.Size() >= 3000+cfg.SegmentBytes {
		t.Fatalf("%d segments removed, %d bytes left", n, l.Size())
	}
	wantDense(t, readAll(t, l, l.StartOffset()), l.StartOffset(), 100)
	if _, err := l.Read(0, 100, 100); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("a removed offset: %v", err)
	}
	cfg.RetentionBytes = 0
	must(t, l.SetConfig(cfg))
	_, err = l.Retain(testStart)
	must(t, err)
	if len(l.segments) != 1 || l.Size() == 0 {
		t.Errorf("%d segments, %d bytes; the active one stays", len(l.segments), l.Size())
	}
}

func TestReaderFinishesInARemovedSegment(t *testing.T) {
	for name, remove := range map[string]func(l *Log) error{
		"retention":  func(l *Log) error { _, err := l.Retain(testStart.Add(1000 * time.Hour)); return err },
		"deletion":   func(l *Log) error { return l.DeleteBefore(l.EndOffset()) },
		"removal":    func(l *Log) error { return l.Remove() },
		"close":      func(l *Log) error { return l.Close() },
		"truncation": func(l *Log) error { return l.TruncateTo(20) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newDisk(t)
			opened, closed := 0, 0
			fsys := disk.WithFaults(m, func(op disk.Op) error {
				switch {
				case op.Kind == disk.OpOpen:
					if _, err := m.Stat(op.Name); err == nil || op.Flag&os.O_CREATE != 0 {
						opened++
					}
				case op.Kind == disk.OpClose:
					closed++
				}
				return nil
			})
			l := open(t, fsys, smallConfig())
			appendValues(t, l, 60)
			var slices []Slice
			for _, offset := range []int64{0, 10, 30, 32, 50, 59} {
				s, err := l.Read(offset, 300, 60)
				must(t, err)
				slices = append(slices, s)
			}
			must(t, remove(l))
			for i := range slices {
				if name == "truncation" && slices[i].Base >= 16 {
					slices[i].Release() // it is cut under the reader's feet, who sees a short read
					continue
				}
				b, err := slices[i].ReadAll()
				must(t, err)
				list, err := decodeBatches(b)
				must(t, err)
				wantDense(t, list, slices[i].Base, slices[i].Next)
				slices[i].Release()
				slices[i].Release() // twice is once
			}
			_ = l.Close()
			if opened != closed {
				t.Errorf("%d files opened, %d closed", opened, closed)
			}
		})
	}
}

// Retention works on a full disk, and writing resumes.
func TestRetentionOnAFullDisk(t *testing.T) {
	m := newDisk(t)
	budget := disk.NewBudget(16000)
	fsys := disk.WithFaults(m, budget.Rule)
	cfg := smallConfig()
	cfg.RetentionBytes = 2000
	l := open(t, fsys, cfg)
	var err error
	for err == nil {
		_, _, err = l.Append([][]byte{batch(valueAt(l.EndOffset()))}, 1, testStart)
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	end := l.EndOffset()
	size := l.Size()
	n, err := l.Retain(testStart)
	if err != nil || n == 0 {
		t.Fatalf("%d removed, %v", n, err)
	}
	for seed := range uint64(10) {
		again := open(t, m.Crash(seed), cfg)
		wantDense(t, readAll(t, again, again.StartOffset()), again.StartOffset(), again.EndOffset())
		if again.EndOffset() != end {
			t.Fatalf("ends at %d, %d were there before retention synced them", again.EndOffset(), end)
		}
	}
	budget.Free(size - l.Size())
	appendValues(t, l, 5)
	flush(t, l)
	wantDense(t, readAll(t, l, l.StartOffset()), l.StartOffset(), end+5)
}

func TestDeleteBefore(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 50)
	for _, c := range []struct{ at, want int64 }{{0, 0}, {13, 13}, {5, 13}, {50, 50}} {
		must(t, l.DeleteBefore(c.at))
		if l.StartOffset() != c.want {
			t.Errorf("delete before %d: starts at %d, want %d", c.at, l.StartOffset(), c.want)
		}
	}
	for _, bad := range []int64{-1, 51} {
		if err := l.DeleteBefore(bad); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("delete before %d: %v", bad, err)
		}
	}
	if again := open(t, m.Crash(1), smallConfig()); again.StartOffset() != 50 || again.EndOffset() != 50 {
		t.Errorf("%d to %d after a crash, want 50 to 50", again.StartOffset(), again.EndOffset())
	}
	appendValues(t, l, 3)
	wantDense(t, readAll(t, l, 50), 50, 53)
}

// A deletion that cannot be noted says so, and is not forgotten when it was.
func TestDeleteBeforeOnAFullDisk(t *testing.T) {
	m := newDisk(t)
	full := true
	fsys := disk.WithFaults(m, func(op disk.Op) error {
		if full && op.Kind == disk.OpWrite && strings.Contains(op.Name, checkpointFile) {
			return disk.ShortWrite(0, errFull)
		}
		return nil
	})
	full = false
	l := open(t, fsys, smallConfig())
	appendValues(t, l, 50)
	must(t, l.Checkpoint())
	full = true
	for _, c := range []struct{ at, want int64 }{{3, 0}, {20, 16}, {20, 16}} {
		if err := l.DeleteBefore(c.at); !errors.Is(err, ErrNoSpace) {
			t.Errorf("delete before %d: %v", c.at, err)
		}
		if l.StartOffset() != c.want {
			t.Errorf("delete before %d: starts at %d, want %d", c.at, l.StartOffset(), c.want)
		}
	}
	must(t, l.DeleteBefore(24)) // a segment's beginning needs no note
	for seed := range uint64(5) {
		if again := open(t, m.Crash(seed), smallConfig()); again.StartOffset() != 24 {
			t.Errorf("starts at %d after a crash", again.StartOffset())
		}
	}
	// Nor is what was appended since taken for synced: the recovery point was in
	// a segment that is gone.
	appendValues(t, l, 20)
	for seed := range uint64(20) {
		again := open(t, m.Crash(seed), smallConfig())
		if damage, err := again.Verify(t.Context()); err != nil || len(damage) > 0 {
			t.Errorf("seed %d: %v, damage %v", seed, err, damage)
		}
		wantDense(t, readAll(t, again, 24), 24, again.EndOffset())
	}
	full = false
	must(t, l.DeleteBefore(27))
	if again := open(t, m.Crash(1), smallConfig()); again.StartOffset() != 27 || again.EndOffset() != 70 {
		t.Errorf("%d to %d after a crash", again.StartOffset(), again.EndOffset())
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 30)
	must(t, l.Remove())
	if tree := m.Tree(); len(tree) != 0 {
		t.Errorf("left: %v", tree)
	}
	if _, _, err := l.Append([][]byte{batch("v")}, 1, testStart); !errors.Is(err, ErrClosed) {
		t.Errorf("append after removal: %v", err)
	}
	if _, err := l.Read(0, 1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("read after removal: %v", err)
	}
	if _, err := l.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("flush after removal: %v", err)
	}
	must(t, RemoveFolder(m, testDir)) // it is gone already
	for seed := range uint64(20) {
		c := m.Crash(seed)
		entries, err := c.ReadDir("/data")
		must(t, err)
		for _, e := range entries {
			if !IsDeletedFolder(e.Name()) {
				t.Errorf("seed %d: %s is back", seed, e.Name())
			}
		}
	}
}

// After all records were deleted the recovery point lies at the end of a segment
// that the next start removes. Such a start once took the log for one whose
// recovery point is lost, looked at its last segment only and served torn batches
// of those before it.
func TestPowerCutAfterDeletingAllRecords(t *testing.T) {
	for seed := range uint64(50) {
		m := newDisk(t)
		l := open(t, m, smallConfig())
		appendValues(t, l, 8) // a full segment
		must(t, l.DeleteBefore(8))
		appendValues(t, l, 30) // over several segments, never flushed
		crashed := m.Crash(seed)
		again := open(t, crashed, smallConfig())
		if damage, err := again.Verify(t.Context()); err != nil || len(damage) > 0 {
			t.Fatalf("seed %d: %v, damage %v", seed, err, damage)
		}
		wantDense(t, readAll(t, again, 8), 8, again.EndOffset())
		appendValues(t, again, 3)
		flush(t, again)
		end := again.EndOffset()
		must(t, again.Close())
		wantDense(t, readAll(t, open(t, crashed.Crash(seed), smallConfig()), 8), 8, end)
	}
}
