package commitlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"sidestream/broker/disk"
)

// Readers, a writer, flushers, retention, searches by time and a scrub at once,
// on the real disk. Nobody ever sees anything but what was appended.
func TestConcurrentUse(t *testing.T) {
	cfg := smallConfig()
	cfg.RetentionBytes = 5000
	l, err := Open(disk.OS, t.TempDir()+"/p-0", cfg, Options{})
	must(t, err)
	const batches = 600
	var done atomic.Bool
	var all sync.WaitGroup
	background := func(do func() error) {
		all.Go(func() {
			for !done.Load() {
				if err := do(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		background(func() error { return follow(l, &done) })
	}
	for range 2 {
		background(func() error {
			want := l.EndOffset()
			durable, err := l.Flush()
			if err == nil && durable < want {
				err = fmt.Errorf("flushed to %d, %d was appended", durable, want)
			}
			return err
		})
	}
	background(func() error { _, err := l.Retain(testStart); return err })
	background(func() error { _, _, _, err := l.OffsetByTime(testStart.UnixMilli()); return err })
	background(func() error {
		damage, err := l.Verify(t.Context())
		if len(damage) > 0 {
			err = damage[0]
		}
		return err
	})
	for i := range batches {
		b := idempotent(1, 0, int32(2*i), valueAt(int64(2*i)), valueAt(int64(2*i+1)))
		if v := l.Producers().Check(header(t, b)); !v.Kind.Append() {
			t.Errorf("batch %d: %v", i, v)
		}
		if _, _, err := l.Append([][]byte{b}, int32(i/100), testStart); err != nil {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	all.Wait()
	must(t, l.Close())
}

// follow reads from the start to the end once, jumping over what was removed.
func follow(l *Log, done *atomic.Bool) error {
	from := l.StartOffset()
	for !done.Load() {
		list, err := readFrom(l, from, 700)
		for i, g := range list {
			if want := from + int64(i); g.offset != want || g.value != valueAt(want) {
				return fmt.Errorf("offset %d has %q, want %d", g.offset, g.value, want)
			}
		}
		from += int64(len(list))
		if errors.Is(err, ErrOutOfRange) && from < l.StartOffset() {
			from, err = l.StartOffset(), nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The same on the real disk as in memory, and a descriptor to send from.
func TestOnTheRealDisk(t *testing.T) {
	dir := t.TempDir() + "/topic-0"
	l, err := Open(disk.OS, dir, smallConfig(), Options{})
	must(t, err)
	appendValues(t, l, 100)
	flush(t, l)
	s, err := l.Read(50, 1000, 100)
	must(t, err)
	if fd, ok := s.File.Fd(); !ok || fd == 0 {
		t.Error("no descriptor for sendfile")
	}
	s.Release()
	must(t, l.Close())
	must(t, l.Close()) // twice is once
	for _, clean := range []bool{true, false} {
		l, err = Open(disk.OS, dir, smallConfig(), Options{Clean: clean})
		must(t, err)
		wantDense(t, readAll(t, l, 0), 0, 100)
		must(t, l.TruncateTo(90))
		appendValues(t, l, 10)
		must(t, l.Close())
	}
	l, err = Open(disk.OS, dir, smallConfig(), Options{Clean: true})
	must(t, err)
	must(t, l.Remove())
	if _, err := disk.OS.Stat(dir); err == nil {
		t.Error("the folder is still there")
	}
}

// Many old segments are read without keeping all their files open.
func TestFewFilesStayOpen(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 400)
	must(t, l.Close())
	l = open(t, m, smallConfig())
	readAll(t, l, 0)
	opened := 0
	for _, s := range l.segments {
		if s.file != nil {
			opened++
		}
		if s.refs != 0 {
			t.Errorf("segment %d has %d references", s.base, s.refs)
		}
	}
	if len(l.segments) < 40 || opened > maxOpenSegments+1 {
		t.Errorf("%d of %d segments are open", opened, len(l.segments))
	}
}

// A reader that goes on where it stopped needs no index.
func TestSequentialReadsUseNoIndex(t *testing.T) {
	indexReads := 0
	fsys := disk.WithFaults(newDisk(t), func(op disk.Op) error {
		if op.Kind == disk.OpRead && op.Name[len(op.Name)-len(indexSuffix):] == indexSuffix {
			indexReads++
		}
		return nil
	})
	cfg := DefaultConfig()
	cfg.IndexInterval = 200
	l := open(t, fsys, cfg)
	appendValues(t, l, 1000)
	from := int64(0)
	for from < 1000 {
		s, err := l.Read(from, 150, 1000)
		must(t, err)
		from = s.Next
		s.Release()
	}
	if indexReads > 0 {
		t.Errorf("%d reads of the index", indexReads)
	}
}

// Compaction beside appends, reads, flushes, deletions, a scrub and searches by
// time: an offset has what was written there or nothing.
func TestConcurrentCompaction(t *testing.T) {
	l, err := Open(newDisk(t), testDir, compactConfig(), compactOptions())
	must(t, err)
	value := func(offset int64) kv {
		return kv{fmt.Sprint("k", offset%9), fmt.Sprintf("%d-%s", offset, valueAt(offset))}
	}
	var done atomic.Bool
	var all sync.WaitGroup
	var compactions atomic.Int64
	background := func(do func() error) {
		all.Go(func() {
			for !done.Load() {
				if err := do(); err != nil && !errors.Is(err, ErrOutOfRange) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		background(func() error {
			list, err := readStored(l)
			for _, s := range list {
				if s.kv != value(s.offset) {
					return fmt.Errorf("offset %d has %v", s.offset, s.kv)
				}
			}
			return err
		})
	}
	background(func() error { return l.Checkpoint() })
	background(func() error {
		c, err := l.Compact(t.Context(), testStart, CompactOptions{})
		compactions.Add(int64(c.Segments))
		return err
	})
	background(func() error { return l.DeleteBefore(max(0, l.EndOffset()-400)) })
	background(func() error { _, _, _, err := l.OffsetByTime(testStart.UnixMilli()); return err })
	background(func() error {
		damage, err := l.Verify(t.Context())
		if len(damage) > 0 {
			err = damage[0]
		}
		return err
	})
	for i := int64(0); i < 100 || i < 5000 && compactions.Load() < 10; i++ {
		if _, _, err := l.Append([][]byte{keyed(value(2*i), value(2*i+1))}, 1, testStart); err != nil {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	all.Wait()
	if compactions.Load() == 0 {
		t.Error("no segment was compacted meanwhile")
	}
	must(t, l.Close())
}
