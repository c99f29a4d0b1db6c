package commitlog

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sidestream/broker/disk"
)

var errFull = syscall.ENOSPC

func TestFlushCoversWhatWasAppendedBefore(t *testing.T) {
	l := open(t, newDisk(t), smallConfig())
	if l.FlushedOffset() != 0 {
		t.Fatal("a new log is flushed to", l.FlushedOffset())
	}
	appendValues(t, l, 7)
	if l.FlushedOffset() != 0 {
		t.Fatal("flushed without a flush")
	}
	flush(t, l)
	if l.FlushedOffset() != 7 {
		t.Fatal("flushed to", l.FlushedOffset())
	}
}

// While one sync runs, everybody who comes meanwhile shares the next one.
func TestGroupCommit(t *testing.T) {
	var mu sync.Mutex
	syncs := 0
	gate, entered := make(chan struct{}), make(chan struct{}, 100)
	fsys := disk.WithFaults(newDisk(t), func(op disk.Op) error {
		if op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, logSuffix) {
			mu.Lock()
			syncs++
			first := syncs == 1
			mu.Unlock()
			if first {
				entered <- struct{}{}
				<-gate
			}
		}
		return nil
	})
	l := open(t, fsys, DefaultConfig())
	appendValues(t, l, 1)
	var all sync.WaitGroup
	all.Go(func() { _, _ = l.Flush() })
	<-entered // its sync is running, with 1 record in it
	const waiters = 20
	for range waiters {
		first, _ := appendTo(t, l, batch("v"))
		all.Go(func() {
			durable, err := l.Flush()
			if err != nil || durable <= first {
				t.Errorf("flushed to %d (%v), want above %d", durable, err, first)
			}
		})
	}
	close(gate)
	all.Wait()
	if syncs < 2 || syncs > waiters/2 {
		t.Errorf("%d syncs for 1 + %d flushes, want few", syncs, waiters)
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	for name, kind := range map[string]disk.OpKind{"data": disk.OpDatasync, "names": disk.OpSyncDir} {
		t.Run(name, func(t *testing.T) {
			m := newDisk(t)
			fail := false
			fsys := disk.WithFaults(m, func(op disk.Op) error {
				if fail && op.Kind == kind {
					fail = false // the second time it would "work"
					return syscall.EIO
				}
				return nil
			})
			l := open(t, fsys, smallConfig())
			appendValues(t, l, 5)
			flush(t, l)
			appendValues(t, l, 20) // over a roll, so that names are synced as well
			fail = true
			if _, err := l.Flush(); !errors.Is(err, ErrOffline) || !errors.Is(err, syscall.EIO) {
				t.Fatalf("got %v, want ErrOffline with the cause", err)
			}
			if durable, err := l.Flush(); !errors.Is(err, ErrOffline) || durable != 5 {
				t.Fatalf("second flush: %d, %v; want 5 and ErrOffline", durable, err)
			}
			if _, _, err := l.Append([][]byte{batch("v")}, 1, testStart); !errors.Is(err, ErrOffline) {
				t.Fatalf("append: %v, want ErrOffline", err)
			}
			if l.Offline() == nil {
				t.Error("Offline says nothing")
			}
			wantDense(t, readAll(t, l, 0), 0, 25) // reads go on
			if err := l.Close(); !errors.Is(err, ErrOffline) {
				t.Errorf("close: %v, want ErrOffline", err)
			}
			for seed := range uint64(20) {
				again := open(t, m.Crash(seed), smallConfig())
				if again.EndOffset() < 5 {
					t.Fatalf("seed %d: ends at %d, 5 were flushed", seed, again.EndOffset())
				}
				wantDense(t, readAll(t, again, 0), 0, again.EndOffset())
			}
		})
	}
}

// A checkpoint that cannot be written costs nothing that was promised.
func TestCheckpointFailureIsTriedAgain(t *testing.T) {
	m := newDisk(t)
	fail := false
	fsys := disk.WithFaults(m, func(op disk.Op) error {
		if fail && op.Kind == disk.OpRename {
			return errFull
		}
		return nil
	})
	l := open(t, fsys, smallConfig())
	fail = true
	for range 5 {
		appendValues(t, l, 10)
		flush(t, l)
	}
	cp, _, _ := readCheckpoint(m, testDir)
	if cp.Recovery != 0 {
		t.Fatalf("recovery point %d, the rename failed", cp.Recovery)
	}
	again := open(t, m.Crash(3), smallConfig())
	wantDense(t, readAll(t, again, 0), 0, 50)
	fail = false
	appendValues(t, l, 1)
	flush(t, l)
	if cp, _, _ = readCheckpoint(m, testDir); cp.Recovery != 51 {
		t.Fatalf("recovery point %d, want 51", cp.Recovery)
	}
}

func TestCheckpointOfAnIdleLogWritesNothing(t *testing.T) {
	writes := 0
	fsys := disk.WithFaults(newDisk(t), func(op disk.Op) error {
		if op.Kind.Mutates() {
			writes++
		}
		return nil
	})
	l := open(t, fsys, DefaultConfig())
	appendValues(t, l, 3)
	must(t, l.Checkpoint())
	if l.FlushedOffset() != 3 {
		t.Fatal("a checkpoint flushes first")
	}
	writes = 0
	must(t, l.Checkpoint())
	if writes != 0 {
		t.Errorf("%d operations for nothing", writes)
	}
}
