package spool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// newFaultyRig is a rig whose disk a rule may let fail.
func newFaultyRig(t *testing.T, change func(*Config), rule func(disk.Op) error, tune ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, fs: disk.WithFaults(disk.NewMem(), rule), b: newBrokers(4), cfg: DefaultConfig()}
	r.cfg.Outcomes, r.cfg.SendWait = 1000, 100*time.Millisecond
	r.cfg.LookAgain = 5 * time.Millisecond
	r.cfg.KeepEvery, r.cfg.ReclaimEvery, r.cfg.SegmentBytes = 2*time.Millisecond, 5*time.Millisecond, 4096
	if change != nil {
		change(&r.cfg)
	}
	r.live = &live{b: r.b}
	if len(tune) > 0 {
		r.tune = tune[0]
	}
	r.open()
	return r
}

// On a full disk nothing is taken, and what is there is sent all the same: that
// gives the room back.
func TestDiskFull(t *testing.T) {
	budget := disk.NewBudget(1 << 20)
	var full atomic.Bool
	marks := func(op disk.Op) bool { // are overwritten in place
		return op.Kind == disk.OpWrite && (strings.HasSuffix(op.Name, "/"+marksName) || strings.HasSuffix(op.Name, "/"+outcomesName))
	}
	r := newFaultyRig(t, nil, func(op disk.Op) error {
		if marks(op) || !full.Load() {
			return nil
		}
		return budget.Rule(op)
	})
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	r.spool(1, "first") // a mark for the partition
	full.Store(true)
	zero := int32(0)
	taken := 0
	var err error
	for ; taken < 1000; taken++ {
		m := publish.Message{Partition: &zero, Value: []byte(strings.Repeat("x", 10_000) + fmt.Sprintf("%04d", taken))}
		if _, err = r.Publish(t.Context(), "t", m, publish.Options{Ack: publish.AckSpool}); err != nil {
			break
		}
	}
	if codeOf(err) != api.CodeSpoolFull || !strings.Contains(err.Error(), "disk") || taken < 50 {
		t.Fatalf("after %d messages: %v", taken, err)
	}
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.settled()
	if n := len(r.b.values("t", 0)); n != taken {
		t.Errorf("%d messages are written, %d were taken", n, taken)
	}
	for end := time.Now().Add(10 * time.Second); r.journal.Size() > 200_000; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the journal still has %d bytes", r.journal.Size())
		}
	}
	budget.Free(1 << 20)
	r.spool(0, "again")
	r.settled()
}

// A sync that fails leaves it unknown whether the messages are there; nothing
// more is taken until the next start, which finds out.
func TestDiskThatDoesNotSync(t *testing.T) {
	var broken atomic.Bool
	r := newFaultyRig(t, nil, func(op disk.Op) error {
		if broken.Load() && op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, ".log") {
			return syscall.EIO
		}
		return nil
	})
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	first := r.spool(0, "first")
	broken.Store(true)
	zero := int32(0)
	_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("unknown"), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
	if codeOf(err) != api.CodeUnknownOutcome {
		t.Errorf("%v", err)
	}
	_, err = r.Publish(t.Context(), "t", publish.Message{Value: []byte("refused"), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
	if codeOf(err) != api.CodeDiskUnavailable || r.Err() == nil {
		t.Errorf("%v, %v", err, r.Err())
	}
	if _, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("live")}, publish.Options{}); codeOf(err) == api.CodeSpoolFull {
		t.Errorf("a live message: %v", err)
	}
	broken.Store(false)
	_ = r.Spool.Close(t.Context()) // it says what failed
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.open()
	defer r.close()
	r.settled()
	values := r.b.values("t", 0)
	if !slices.Contains(values, "first") || slices.Contains(values, "refused") || len(values) > 2+1 {
		t.Errorf("%v", values)
	}
	if ev, err := r.Event(first); err != nil || ev.State != api.SpoolWritten {
		t.Errorf("%+v, %v", ev, err)
	}
}

// While marks cannot be written nothing is sent that they do not cover.
func TestMarksThatCannotBeWritten(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	r := newFaultyRig(t, nil, func(op disk.Op) error {
		if broken.Load() && op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, "/"+marksName) {
			return errors.New("broken")
		}
		return nil
	})
	defer r.close()
	r.spool(0, "v")
	time.Sleep(100 * time.Millisecond)
	if n := len(r.b.values("t", 0)); n != 0 {
		t.Errorf("%d messages are sent", n)
	}
	if st := r.Status(); st.AwayPartitions != 1 || !strings.Contains(st.Away[0].Cause, "marks") {
		t.Errorf("%+v", st)
	}
	broken.Store(false)
	r.settled()
}

func TestFullByBytes(t *testing.T) {
	r := newFaultyRig(t, nil, func(disk.Op) error { return nil }, func(c *Config) { c.MaxBytes = 100_000 })
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	value := strings.Repeat("x", 1000)
	zero := int32(0)
	var err error
	taken := 0
	for ; err == nil && taken < 1000; taken++ {
		_, err = r.Publish(t.Context(), "t", publish.Message{Value: []byte(value), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
	}
	if codeOf(err) != api.CodeSpoolFull || taken < 50 || taken > 100 || asError(err).RetryAfterMillis == 0 {
		t.Errorf("after %d: %v", taken, err)
	}
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.settled()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte(value), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// With reject_oldest the oldest messages make room, and are in the file of
// rejected ones.
func TestFullMakesRoom(t *testing.T) {
	r := newFaultyRig(t, func(c *Config) { c.OnFull = RejectOldest }, func(disk.Op) error { return nil }, func(c *Config) { c.MaxBytes = 100_000 })
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	value := strings.Repeat("x", 1000)
	zero := int32(0)
	taken := 0
	for end := time.Now().Add(20 * time.Second); taken < 200; {
		_, err := r.Publish(t.Context(), "t", publish.Message{Value: fmt.Appendf(nil, "%d %s", taken, value), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
		if err == nil {
			taken++
			continue
		}
		if codeOf(err) != api.CodeSpoolFull || time.Now().After(end) {
			t.Fatalf("after %d: %v", taken, err)
		}
		time.Sleep(time.Millisecond)
	}
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.settled()
	rejected, written := r.rejectLines(), r.b.values("t", 0)
	if len(rejected)+len(written) != 200 || len(rejected) == 0 {
		t.Fatalf("%d rejected and %d written of 200", len(rejected), len(written))
	}
	for i, x := range rejected { // the oldest, in order
		if atoi(*x.Value) != i || x.Error.Code != api.CodeSpoolFull {
			t.Fatalf("rejected %d: %.10s, %v", i, *x.Value, x.Error)
		}
	}
	if atoi(written[0]) != len(rejected) {
		t.Errorf("the first that is written is %.10s", written[0])
	}
}

func TestTooOld(t *testing.T) {
	for _, policy := range []string{Refuse, Reject} {
		r := newFaultyRig(t, func(c *Config) { c.OnAge = policy }, func(disk.Op) error { return nil }, func(c *Config) { c.MaxAge = 50 * time.Millisecond })
		r.b.set(func() { r.b.topics["t"].parts[0].away = true })
		id := r.spool(0, "old")
		deadline := time.Now().Add(10 * time.Second)
		zero := int32(0)
		if policy == Refuse {
			for {
				_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("x"), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
				if codeOf(err) == api.CodeSpoolFull && strings.Contains(err.Error(), "max_age") {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Millisecond)
			}
			r.b.set(func() { r.b.topics["t"].parts[0].away = false })
			r.settled()
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if _, err := r.Publish(t.Context(), "t", publish.Message{Partition: &zero}, publish.Options{Ack: publish.AckSpool}); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		} else {
			r.settled()
			if ev, err := r.Event(id); err != nil || ev.State != api.SpoolRejected || ev.Error.Code != api.CodeSpoolFull {
				t.Errorf("%+v, %v", ev, err)
			}
		}
		r.close()
	}
}

// Marks that are lost cost a look at the whole partition, and nothing else.
func TestLostFiles(t *testing.T) {
	for _, name := range []string{marksName, topicsName, outcomesName} {
		r := newFaultyRig(t, nil, func(disk.Op) error { return nil })
		r.spool(0, "a")
		r.spool(0, "b")
		r.settled()
		r.close()
		f, err := r.fs.OpenFile("spool/"+name, 2, 0) // O_RDWR
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		if _, err := f.WriteAt([]byte(strings.Repeat("?", int(size))), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		r.open()
		r.spool(0, "c")
		r.settled()
		if got := fmt.Sprint(r.b.values("t", 0)); got != "[a b c]" {
			t.Errorf("%s: %s", name, got)
		}
		r.close()
	}
}
