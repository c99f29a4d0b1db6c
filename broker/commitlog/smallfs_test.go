package commitlog

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"sidestream/broker/disk"
)

// mountSmall mounts a real file system of a few megabytes.
func mountSmall(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("this machine does not let root mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill appends until the disk is full.
func fill(t *testing.T, l *Log, value func(offset int64) string) {
	t.Helper()
	for {
		end := l.EndOffset()
		_, _, err := l.Append([][]byte{batch(value(end))}, 1, testStart)
		if err != nil {
			if !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			if l.EndOffset() != end {
				t.Fatalf("a failed append moved the end from %d to %d", end, l.EndOffset())
			}
			return
		}
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// A real file system that is full refuses appends and nothing else; retention
// makes room, writing resumes, and all is there after a restart.
func TestFullFileSystem(t *testing.T) {
	dir := mountSmall(t, "size=3m") + "/orders-0"
	cfg := DefaultConfig()
	cfg.SegmentBytes = 256 << 10
	cfg.RetentionBytes = 1 << 20
	cfg.CheckpointBytes = 100 << 10
	value := func(offset int64) string { return valueAt(offset) + strings.Repeat("x", 9000+int(offset%7)*100) }
	l, err := Open(disk.OS, dir, cfg, Options{})
	must(t, err)
	check := func() {
		t.Helper()
		list, err := readFrom(l, l.StartOffset(), 100_000)
		must(t, err)
		if int64(len(list)) != l.EndOffset()-l.StartOffset() {
			t.Fatalf("%d records, the log has %d to %d", len(list), l.StartOffset(), l.EndOffset())
		}
		for _, g := range list {
			if g.value != value(g.offset) {
				t.Fatalf("offset %d has another value", g.offset)
			}
		}
		if damage, err := l.Verify(t.Context()); err != nil || len(damage) > 0 {
			t.Fatal(damage, err)
		}
	}
	for round := range 4 {
		fill(t, l, value)
		check()
		start, end := l.StartOffset(), l.EndOffset()
		if round%2 == 1 { // stopped while it is full
			_ = l.Close() // noting the end may need the room that there is not
			if l, err = Open(disk.OS, dir, cfg, Options{}); err != nil {
				t.Fatal(err)
			}
			if l.EndOffset() != end || l.StartOffset() != start {
				t.Fatalf("%d to %d after a restart, before %d to %d", l.StartOffset(), l.EndOffset(), start, end)
			}
			check()
		}
		removed, err := l.Retain(testStart)
		if err != nil || removed == 0 {
			t.Fatalf("%d segments removed, %v", removed, err)
		}
		if l.StartOffset() <= start || l.EndOffset() != end {
			t.Fatalf("%d to %d after retention, before %d to %d", l.StartOffset(), l.EndOffset(), start, end)
		}
		check()
		_, _, err = l.Append([][]byte{batch(value(end))}, 1, testStart)
		must(t, err)
		flush(t, l)
	}
	must(t, l.Close())
	if l, err = Open(disk.OS, dir, cfg, Options{Clean: true}); err != nil {
		t.Fatal(err)
	}
	check()
	must(t, l.Close())
}

// A log that a crash left on a full disk opens, or nothing could make room; and
// what it serves then outlives another crash.
func TestCrashStartOnAFullDisk(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 60)
	flush(t, l)
	appendValues(t, l, 30) // over rolls, never flushed
	for seed := range uint64(30) {
		image := m.Crash(seed)
		full := true
		fsys := disk.WithFaults(image, func(op disk.Op) error {
			if full && op.Kind == disk.OpWrite {
				return disk.ShortWrite(0, errFull)
			}
			return nil
		})
		l, err := Open(fsys, testDir, smallConfig(), Options{})
		must(t, err)
		end := l.EndOffset()
		if end < 60 || l.FlushedOffset() != end {
			t.Fatalf("seed %d: ends at %d, flushed to %d", seed, end, l.FlushedOffset())
		}
		wantDense(t, readAll(t, l, 0), 0, end)
		again := open(t, image.Crash(seed+100), smallConfig())
		if again.EndOffset() != end {
			t.Fatalf("seed %d: served up to %d, after another crash it ends at %d", seed, end, again.EndOffset())
		}
		wantDense(t, readAll(t, again, 0), 0, end)
		cfg := smallConfig()
		cfg.RetentionBytes = 2000
		must(t, l.SetConfig(cfg))
		if n, err := l.Retain(testStart); err != nil || n == 0 {
			t.Fatalf("seed %d: %d segments removed, %v", seed, n, err)
		}
		full = false
		appendValues(t, l, 10)
		flush(t, l)
		must(t, l.Close())
		l = open(t, image, smallConfig())
		wantDense(t, readAll(t, l, l.StartOffset()), l.StartOffset(), end+10)
	}
}
