package broker

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/broker/disk"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// led opens a broker on fs that leads one partition with those configs. close ends it.
func led(t *testing.T, fs disk.FS, configs map[string]string) (p kafka.Partition, closeBroker func()) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir = "/data"
	b, err := Open(cfg, nowhere{}, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Lead(Lead{Topic: "t", ID: UUID{1}, Count: 1, Configs: configs}); err != nil {
		t.Fatal(err)
	}
	p, err = b.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	return p, func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// put appends one record and returns where its answer will come.
func put(t *testing.T, p kafka.Partition, acks int16) <-chan kafka.Appended {
	t.Helper()
	batch := recordtest.Batch(recordtest.Spec{})
	h, err := record.Check(batch, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan kafka.Appended, 1)
	p.Append(kafka.Append{Batch: batch, Header: h, Acks: acks, Done: func(a kafka.Appended) { done <- a }})
	return done
}

func countSyncs(n *atomic.Int64) func(disk.Op) error {
	return func(op disk.Op) error {
		if op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, ".log") {
			n.Add(1)
		}
		return nil
	}
}

func TestFlushByMessagesAndByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var syncs atomic.Int64
		p, closeBroker := led(t, disk.WithFaults(disk.NewMem(), countSyncs(&syncs)), map[string]string{"flush.messages": "3", "flush.ms": "1000"})
		defer closeBroker()
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := syncs.Load(); got != want {
				t.Errorf("%s: %d syncs, want %d", when, got, want)
			}
		}
		base := syncs.Load()
		if a := <-put(t, p, -1); a.Err != nil {
			t.Fatal(a.Err)
		}
		expect("one record", base)
		if at := p.Offsets(); at.HighWatermark != 1 {
			t.Errorf("high watermark %d, want 1: with this policy the page cache counts", at.HighWatermark)
		}
		time.Sleep(999 * time.Millisecond)
		expect("just before flush.ms", base)
		time.Sleep(time.Millisecond)
		expect("at flush.ms", base+1)
		for range 3 {
			<-put(t, p, 1)
		}
		expect("three records", base+2)
	})
}

// Appends that queue up while one is written may be more together than a segment holds.
func TestAGroupLargerThanASegmentIsWrittenAllTheSame(t *testing.T) {
	gate := make(chan struct{})
	var hold atomic.Bool
	fs := disk.WithFaults(disk.NewMem(), func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, ".log") && hold.CompareAndSwap(true, false) {
			<-gate
		}
		return nil
	})
	p, closeBroker := led(t, fs, map[string]string{"segment.bytes": "1024"})
	defer closeBroker()
	writesByItself(p)
	hold.Store(true)
	var answers []<-chan kafka.Appended
	for range 60 {
		answers = append(answers, put(t, p, -1))
	}
	close(gate)
	for i, ch := range answers {
		if a := <-ch; a.Err != nil || a.Base != int64(i) {
			t.Fatalf("append %d: %+v", i, a)
		}
	}
}

// writesByItself has all appends queued for the partition's writer: the disk counts as slow for ever.
func writesByItself(p kafka.Partition) { p.(*partition).dir.slow.Store(math.MaxInt64) }

// What is queued when a partition is resigned is answered, not lost.
func TestResignAnswersWhatIsQueued(t *testing.T) {
	gate := make(chan struct{})
	var hold atomic.Bool
	fs := disk.WithFaults(disk.NewMem(), func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, ".log") && hold.CompareAndSwap(true, false) {
			<-gate
		}
		return nil
	})
	p, closeBroker := led(t, fs, nil)
	writesByItself(p)
	hold.Store(true)
	first := put(t, p, -1)
	for hold.Load() {
		time.Sleep(time.Millisecond)
	}
	second := put(t, p, -1)
	closed := make(chan struct{})
	go func() {
		closeBroker()
		close(closed)
	}()
	for p.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if a := <-put(t, p, -1); a.Err != kafka.ErrNotLeader {
		t.Errorf("after resignation: %+v", a)
	}
	close(gate)
	if a := <-first; a.Err != nil || a.Base != 0 {
		t.Errorf("being written: %+v", a)
	}
	if a := <-second; a.Err != kafka.ErrNotLeader {
		t.Errorf("queued: %+v", a)
	}
	<-closed
}
