package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// gated has the writes to logs wait while it is locked, and take as long as it says.
type gated struct {
	sync.Mutex
	take time.Duration
}

func (g *gated) rule(op disk.Op) error {
	if op.Kind == disk.OpWrite {
		g.Lock()
		defer g.Unlock()
		time.Sleep(g.take)
	}
	return nil
}

// An append that nothing stands in the way of is written before Append returns, and its answer with acks=1 is there.
func TestAQuickAppendIsWrittenAtOnce(t *testing.T) {
	p, closeBroker := led(t, disk.NewMem(), nil)
	defer closeBroker()
	for i := range int64(3) {
		answer := put(t, p, 1)
		select {
		case a := <-answer:
			if a.Err != nil || a.Base != i {
				t.Fatalf("append %d: %+v", i, a)
			}
		default:
			t.Fatalf("append %d was not written at once", i)
		}
	}
}

// Whoever brings an append may be an event loop: it does not wait for a log that is busy, nor for a disk that was slow,
// nor beside other disks, which the loop's other connections may write to.
func TestAppendDoesNotWait(t *testing.T) {
	var gate gated
	p, closeBroker := led(t, disk.WithFaults(disk.NewMem(), gate.rule), nil)
	defer closeBroker()
	part := p.(*partition)
	wantQueued := func(when string) {
		t.Helper()
		gate.Lock()
		var waited atomic.Bool
		late := time.AfterFunc(5*time.Second, func() {
			waited.Store(true)
			gate.Unlock()
		})
		answer := put(t, p, 1)
		if late.Stop() {
			gate.Unlock()
		}
		if a := <-answer; a.Err != nil || waited.Load() {
			t.Errorf("%s: waited for the write: %v, %+v", when, waited.Load(), a)
		}
		part.workers.Wait()
	}

	if !part.log.TryHold() {
		t.Fatal("the log is busy")
	}
	if part.log.TryHold() {
		t.Fatal("the log is held twice")
	}
	waits := put(t, p, 1)
	after := put(t, p, 1)
	part.log.Unhold()
	if a, b := <-waits, <-after; a.Err != nil || b.Err != nil || a.Base != 0 || b.Base != 1 {
		t.Fatalf("%+v, %+v", a, b)
	}

	part.workers.Wait()

	part.dir.slow.Store(0)
	gate.take = 2 * slowWrite
	put(t, p, 1)
	part.workers.Wait()
	gate.take = 0
	if part.dir.quick() {
		t.Error("the disk counts as quick after a slow write")
	}
	part.dir.slow.Store(time.Now().UnixNano() + int64(time.Hour))
	wantQueued("a slow disk")
	part.dir.slow.Store(time.Now().Add(-slowFor).UnixNano())
	if !part.dir.quick() {
		t.Error("the disk counts as slow long after it was")
	}
	part.dir.alone = false
	wantQueued("beside other directories")
}

// Appends of one caller keep their order, whoever writes each of them.
func TestOrderOfAppendsAtOnceAndQueued(t *testing.T) {
	p, closeBroker := led(t, disk.NewMem(), nil)
	defer closeBroker()
	part := p.(*partition)
	var answers []<-chan kafka.Appended
	for i := range 2000 {
		if i%100 == 50 && part.log.TryHold() {
			time.AfterFunc(time.Millisecond, part.log.Unhold)
		}
		answers = append(answers, put(t, p, int16(i%2)))
	}
	for i, ch := range answers {
		if a := <-ch; a.Err != nil || a.Base != int64(i) {
			t.Fatalf("append %d: %+v", i, a)
		}
	}
}

// What a producer sent last is forgotten when it has been silent for as long as the broker's setting says, and not
// before: then its next batch is taken whatever its number.
func TestProducerIDsExpireAsConfigured(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.ProducerIDExpiration = "/data", time.Hour
	b, err := Open(cfg, nowhere{}, Options{FS: disk.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	if err := b.Lead(Lead{Topic: "t", ID: UUID{1}, Count: 1}); err != nil {
		t.Fatal(err)
	}
	p, err := b.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	send := func(sequence int32) error {
		batch := recordtest.Batch(recordtest.Spec{Producer: true, ID: 7, Sequence: sequence})
		h, err := record.Check(batch, 0)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		p.Append(kafka.Append{Batch: batch, Header: h, Acks: 1, Done: func(a kafka.Appended) { done <- a.Err }})
		return <-done
	}
	if err := send(0); err != nil {
		t.Fatal(err)
	}
	log := p.(*partition).log
	for _, c := range []struct {
		silent time.Duration
		want   error
	}{{59 * time.Minute, kafka.ErrOutOfOrder}, {61 * time.Minute, nil}} {
		if _, err := log.Retain(time.Now().Add(c.silent)); err != nil {
			t.Fatal(err)
		}
		if err := send(9); !errors.Is(err, c.want) {
			t.Errorf("after %s: %v, want %v", c.silent, err, c.want)
		}
	}
}
