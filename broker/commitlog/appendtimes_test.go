package commitlog

import (
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"sidestream/broker/disk"
)

const day = 24 * time.Hour

// keeping is a log that keeps records for a day.
func keeping() Config {
	cfg := smallConfig()
	cfg.Retention = day
	return cfg
}

func retainAt(t *testing.T, l *Log, now time.Time, want int64) {
	t.Helper()
	_, err := l.Retain(now)
	must(t, err)
	if got := l.StartOffset(); got != want {
		t.Fatalf("by a clock that says %v the log begins at %d, want %d", now, got, want)
	}
}

// Records of now, and a file that says it is from 2020: a copy, a restored backup,
// or a host that began before its clock was set. They were deleted within a
// minute of the next start. That the file of append times is gone as well makes
// no difference.
func TestAFilesTimeDeletesNothing(t *testing.T) {
	for name, ts := range map[string]int64{"records of now": testStart.UnixMilli(), "of 2015": 1420070400000, "of 2100": 4102444800000} {
		for _, lost := range []bool{false, true} {
			dir := t.TempDir() + "/orders-0"
			l, err := Open(disk.OS, dir, keeping(), Options{})
			must(t, err)
			for range 5 {
				appendTo(t, l, dated(ts))
			}
			must(t, l.Close())
			if lost {
				must(t, disk.OS.Remove(dir+"/"+timesFile))
			}
			old := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
			must(t, os.Chtimes(dir+"/"+segmentName(0, logSuffix), old, old))
			l, err = Open(disk.OS, dir, keeping(), Options{Clean: true})
			must(t, err)
			retainAt(t, l, testStart.Add(time.Minute), 0)
			if l.EndOffset() != 5 {
				t.Errorf("%s: the log ends at %d", name, l.EndOffset())
			}
			// But they expire by when they were appended, or first seen.
			retainAt(t, l, testStart.Add(day-time.Minute), 0)
			retainAt(t, l, testStart.Add(day+2*time.Minute), 5)
			must(t, l.Close())
		}
	}
}

// A broker's clock that was wrong when records were appended contradicts them.
func TestAClockThatWasBehind(t *testing.T) {
	l := open(t, newDisk(t), keeping())
	_, _, err := l.Append([][]byte{batch("v")}, 1, testStart.Add(-2000*day))
	must(t, err)
	retainAt(t, l, testStart.Add(time.Minute), 0)
	retainAt(t, l, testStart.Add(day+time.Minute), 1)
}

// One that was ahead of its time does not keep them for ever.
func TestAClockThatWasAhead(t *testing.T) {
	l := open(t, newDisk(t), keeping())
	_, _, err := l.Append([][]byte{dated(4102444800000)}, 1, time.UnixMilli(4102444800000))
	must(t, err)
	retainAt(t, l, testStart, 0) // counts as appended now
	retainAt(t, l, testStart.Add(day-time.Minute), 0)
	retainAt(t, l, testStart.Add(day+time.Minute), 1)
}

// What is appended while nobody knows the time is as young as the first look by a
// clock that does, over a clean stop and over a crash.
func TestAppendsWithoutATime(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, m *disk.Mem, l *Log) *disk.Mem{
		"running": nil,
		"stopped": func(t *testing.T, m *disk.Mem, l *Log) *disk.Mem { must(t, l.Close()); return m },
		"crashed": func(t *testing.T, m *disk.Mem, l *Log) *disk.Mem { flush(t, l); return m.Crash(1) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newDisk(t)
			l := open(t, m, keeping())
			for range 30 {
				_, _, err := l.Append([][]byte{dated(0)}, 1, time.Time{})
				must(t, err)
			}
			if again != nil {
				l = open(t, again(t, m, l), keeping())
			}
			retainAt(t, l, time.Time{}, 0)
			retainAt(t, l, testStart.Add(1000*day), 0) // their age begins
			retainAt(t, l, testStart.Add(1001*day-time.Hour), 0)
			retainAt(t, l, testStart.Add(1001*day+time.Hour), 30)
		})
	}
}

// Nothing goes for its age while nobody knows the time; by size it does.
func TestRetainWithoutATime(t *testing.T) {
	cfg := keeping()
	l := open(t, newDisk(t), cfg)
	appendValues(t, l, 100)
	appendTo(t, l, idempotent(1, 0, 0, "v"))
	retainAt(t, l, time.Time{}, 0)
	if l.Producers().Len() != 1 {
		t.Error("the producer is forgotten")
	}
	cfg.RetentionBytes = 0
	must(t, l.SetConfig(cfg))
	n, err := l.Retain(time.Time{})
	must(t, err)
	if n == 0 {
		t.Error("nothing was removed by size")
	}
}

// The dates survive a crash as far as the last checkpoint; what came after it
// counts as appended when it is next looked at, never as older.
func TestAppendTimesAfterACrash(t *testing.T) {
	for seed := range uint64(20) {
		m := newDisk(t)
		l := open(t, m, keeping())
		appendAt := func(at time.Duration, n int) {
			for range n {
				_, _, err := l.Append([][]byte{dated(0)}, 1, testStart.Add(at))
				must(t, err)
			}
		}
		appendAt(0, 20)
		must(t, l.Checkpoint())
		appendAt(time.Hour, 7)
		flush(t, l)
		appendAt(2*time.Hour, 7)
		again := open(t, m.Crash(seed), keeping())
		var left int64
		for _, s := range again.segments { // those that ended below the checkpoint
			if next := s.base; next <= 20 {
				left = next
			}
		}
		retainAt(t, again, testStart.Add(3*time.Hour), 0)
		retainAt(t, again, testStart.Add(day+time.Hour/2), left)
		retainAt(t, again, testStart.Add(day+4*time.Hour), again.EndOffset())
	}
}

// A log of an older version has no append times. What is behind its active
// segment was appended before that was begun.
func TestAppendTimesOfAnOlderVersion(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, keeping())
	for i := range 20 {
		_, _, err := l.Append([][]byte{dated(0)}, 1, testStart.Add(time.Duration(i)*time.Minute))
		must(t, err)
	}
	appendTo(t, l, idempotent(1, 0, 0, "v"))
	active := l.active().base
	must(t, l.Close())
	must(t, m.Remove(testDir+"/"+timesFile))
	l = open(t, m, keeping())
	retainAt(t, l, testStart.Add(2*day), active)
	if l.Producers().Len() != 1 {
		t.Error("a producer of whom nobody knows when it was seen is forgotten")
	}
	must(t, l.Close())
	l = open(t, m, keeping())
	retainAt(t, l, testStart.Add(3*day-time.Minute), active)
	retainAt(t, l, testStart.Add(3*day+time.Minute), 21)
	if l.Producers().Len() != 0 {
		t.Error("the producer is remembered for ever")
	}
}

// A segment that compaction made of several is as young as the youngest, even if
// a crash came before that was noted.
func TestAppendTimesOfAMergedSegment(t *testing.T) {
	a := appendTimes{end: 40, segments: []segmentTimes{{0, 1, 5}, {10, 6, 50}, {20, 7, 30}, {30, 8, noTime}}}
	for _, c := range []struct{ base, next, first, last int64 }{
		{0, 10, 1, 5}, {0, 20, 1, 50}, {0, 30, 1, 50}, {10, 30, 6, 50}, {20, 40, 7, noTime}, {40, 50, noTime, noTime},
	} {
		if first, last := a.between(c.base, c.next); first != c.first || last != c.last {
			t.Errorf("%d to %d: %d, %d, want %d, %d", c.base, c.next, first, last, c.first, c.last)
		}
	}
}

func TestAppendTimesFile(t *testing.T) {
	a := appendTimes{end: 1742, segments: []segmentTimes{{0, 1700000000000, 1700000100000}, {900, noTime, noTime}}}
	got, err := parseAppendTimes(a.encode())
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Fatalf("%+v, %v", got, err)
	}
	whole := a.encode()
	for n := range whole {
		if _, err := parseAppendTimes(whole[:n]); err == nil {
			t.Fatalf("%d bytes of %d are read", n, len(whole))
		}
		torn := slices.Clone(whole)
		torn[n] ^= 1
		if _, err := parseAppendTimes(torn); err == nil {
			t.Fatalf("read with byte %d changed", n)
		}
	}
}

// What is appended after a truncation is not dated by what was cut off.
func TestAppendTimesAfterATruncation(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, keeping())
	appendTo(t, l, dated(0), dated(0), dated(0))
	must(t, l.Checkpoint())
	must(t, l.TruncateTo(1))
	_, _, err := l.Append([][]byte{dated(0)}, 1, testStart.Add(5*day))
	must(t, err)
	flush(t, l)
	l = open(t, m.Crash(3), keeping())
	retainAt(t, l, testStart.Add(5*day+time.Hour), 0)
}

// A producer that was seen while nobody knew the time is not forgotten at the
// first look.
func TestProducerSeenWithoutATime(t *testing.T) {
	l := open(t, newDisk(t), keeping())
	appendTo(t, l, idempotent(1, 0, 0, "v"))
	_, _, err := l.Append([][]byte{idempotent(1, 0, 1, "v")}, 1, time.Time{})
	must(t, err)
	retainAt(t, l, testStart.Add(time.Hour), 0)
	for at, want := range map[time.Duration]int{23 * time.Hour: 1, 26 * time.Hour: 0} {
		p := Producers{byID: map[int64]*producer{1: {seen: l.producers.byID[1].seen}}}
		if p.expire(testStart.Add(at), day); p.Len() != want {
			t.Errorf("after %v %d producers are remembered, want %d", at, p.Len(), want)
		}
	}
}

// A tombstone is neither dated nor removed while nobody knows the time. It is
// dated as soon as somebody does, though nothing else is due.
func TestTombstonesWithoutATime(t *testing.T) {
	l := openCompacted(t, newDisk(t), compactConfig())
	appendTo(t, l, keyed(kv{"a", "1"}, kv{"b", "1"}))
	appendTo(t, l, keyed(kv{"a", ""}, kv{"c", "1"}))
	closeActive(t, l)
	compactAt := func(now time.Time, removed int64) {
		t.Helper()
		done, err := l.Compact(t.Context(), now, CompactOptions{})
		must(t, err)
		if done.Records != removed {
			t.Fatalf("by a clock that says %v: %+v, want %d records removed", now, done, removed)
		}
	}
	compactAt(time.Time{}, 1)
	compactAt(time.Time{}, 0)
	compactAt(testStart.Add(time.Minute), 0)
	compactAt(time.Time{}, 0)
	compactAt(testStart.Add(time.Hour), 0)
	compactAt(testStart.Add(time.Hour+time.Minute), 1)
}

// A tombstone that was dated by a clock that was behind is younger than its date.
func TestTombstonesDatedByAWrongClock(t *testing.T) {
	l := openCompacted(t, newDisk(t), compactConfig())
	appendTo(t, l, keyed(kv{"a", "1"}))
	appendTo(t, l, keyed(kv{"a", ""}))
	closeActive(t, l)
	compact(t, l, -1000*day) // dates it
	if done := compact(t, l, 59*time.Minute); done.Records != 0 {
		t.Errorf("%+v: it went an hour after a date before its own timestamp", done)
	}
	if done := compact(t, l, time.Hour); done.Tombstones != 1 {
		t.Errorf("%+v: it stays for ever", done)
	}
}

// What must not be compacted before it has a certain age has none while nobody
// knows the time.
func TestCompactionLagWithoutATime(t *testing.T) {
	cfg := compactConfig()
	cfg.MinCompactionLag = time.Hour
	l := openCompacted(t, newDisk(t), cfg)
	appendTo(t, l, keyed(kv{"a", "1"}))
	appendTo(t, l, keyed(kv{"a", "2"}))
	closeActive(t, l)
	done, err := l.Compact(t.Context(), time.Time{}, CompactOptions{})
	must(t, err)
	if done.Records != 0 {
		t.Errorf("%+v", done)
	}
	if done := compact(t, l, time.Hour); done.Records != 1 {
		t.Errorf("%+v", done)
	}
}
