package broker_test

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sidestream/broker"
	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

// startFull starts a broker whose disk takes no writes while full says so.
func startFull(t *testing.T) (w *world, full *atomic.Bool) {
	full = new(atomic.Bool)
	return startOn(t, disk.WithFaults(disk.OS, func(op disk.Op) error {
		if full.Load() && op.Kind == disk.OpWrite {
			return &os.PathError{Op: "write", Path: op.Name, Err: syscall.ENOSPC}
		}
		return nil
	}), func(c *broker.Config) { c.RetentionCheckInterval = time.Second }), full
}

// raiseEpochs has the topics led at the next epoch, as an agent does after a restart.
func (w *world) raiseEpochs(change func(configs map[string]string)) {
	w.cluster.change(func(v *broker.View) {
		for name, old := range v.Topics {
			next := *old
			next.Partitions = append([]broker.PartitionView(nil), old.Partitions...)
			for i := range next.Partitions {
				next.Partitions[i].Epoch++
			}
			if change != nil {
				next.Configs = map[string]string{}
				change(next.Configs)
			}
			v.Topics[name] = &next
		}
	})
	w.leadAgain()
}

// A start raises the epoch of every partition, which the folders describe. Once a full disk kept that from being
// written, and nothing was led: what is there could be neither read nor deleted.
func TestAPartitionIsLedAtAHigherEpochOnAFullDisk(t *testing.T) {
	w, full := startFull(t)
	w.topic("t", 1, nil)
	w.dial().put("t", recordtest.Batch(recordtest.Spec{}))
	w.raiseEpochs(nil)
	full.Store(true)
	w.close()
	w.open()
	w.raiseEpochs(func(configs map[string]string) { configs["retention.ms"] = "1000" })

	r := w.dial()
	if got := r.get(fetchReq(12, "t", 0, 0)); got.ErrorCode != 0 || len(got.RecordBatches) == 0 {
		t.Errorf("fetch on a full disk: %+v", got)
	}
	if got := r.put("t", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 56 || got.ErrorMessage == nil || !strings.HasPrefix(*got.ErrorMessage, "not appended: ") {
		t.Errorf("produce on a full disk: %+v, want error 56 and a text that says that it was not appended", got)
	}
	if a := w.b.Alarms(); len(a) != 1 || !strings.Contains(a[0], "is full") {
		t.Errorf("alarms %q, want one that says that the directory is full", a)
	}
	if h := w.b.Held(); len(h) != 1 || h[0].LeaderEpoch != 2 || h[0].Configs["retention.ms"] != "1000" {
		t.Errorf("held: %+v", h)
	}
	// In the folder there is still the last that could be written.
	if h, err := broker.HeldIn(disk.OS, w.cfg.DataDir); err != nil || len(h) != 1 || h[0].LeaderEpoch != 1 {
		t.Errorf("described: %+v, %v", h, err)
	}

	full.Store(false)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		h, err := broker.HeldIn(disk.OS, w.cfg.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		if h[0].LeaderEpoch == 2 && h[0].Configs["retention.ms"] == "1000" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is room, and the folder is described as %+v", h)
		}
	}
	if a := w.b.Alarms(); len(a) != 0 {
		t.Errorf("alarms %q although there is room again", a)
	}
}

// A full disk and a failed one had the same answer, so that whoever produced could not tell what is certainly not written
// from what may be. The text tells them apart, since every client takes the code for what it is.
func TestFullIsToldFromFailed(t *testing.T) {
	var rule atomic.Pointer[func(op disk.Op) error]
	broken := errors.New("input/output error")
	for _, c := range []struct {
		name   string
		rule   func(op disk.Op) error
		absent bool
		then   bool // of what is sent after it
	}{
		{"full", on(disk.OpWrite, syscall.ENOSPC), true, true},
		{"over its quota", on(disk.OpWrite, syscall.EDQUOT), true, true},
		{"cut short", on(disk.OpWrite, disk.ShortWrite(20, syscall.ENOSPC)), true, true},
		{"a failed write", on(disk.OpWrite, broken), true, true},
		{"a failed sync", on(disk.OpDatasync, broken), false, true},
		{"cut short, and not taken back", func(op disk.Op) error {
			if err := on(disk.OpWrite, disk.ShortWrite(20, syscall.ENOSPC))(op); err != nil {
				return err
			}
			return on(disk.OpTruncate, broken)(op)
		}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok := func(disk.Op) error { return nil }
			rule.Store(&ok)
			w := startOn(t, disk.WithFaults(disk.OS, func(op disk.Op) error { return (*rule.Load())(op) }))
			w.topic("t", 1, nil)
			r := w.dial()
			rule.Store(&c.rule)
			for _, absent := range []bool{c.absent, c.then} {
				got := r.put("t", recordtest.Batch(recordtest.Spec{}))
				if got.ErrorCode != 56 || got.ErrorMessage == nil || strings.HasPrefix(*got.ErrorMessage, "not appended: ") != absent {
					t.Errorf("error %d, %q, want 56 and certain: %v", got.ErrorCode, *got.ErrorMessage, absent)
				}
			}
			rule.Store(&ok)
		})
	}
}

// on fails one kind of operation on the logs' files.
func on(kind disk.OpKind, err error) func(op disk.Op) error {
	return func(op disk.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Name, ".log") {
			return err
		}
		return nil
	}
}

// An epoch under which records were written is never offered to a rebuild as one that is free, whatever the description
// in the folder says.
func TestRecordsSayTheEpochThatTheirFolderDoesNot(t *testing.T) {
	w, full := startFull(t)
	w.topic("t", 1, nil)
	described, err := os.ReadFile(w.cfg.DataDir + "/t-0/partition.metadata")
	if err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	w.raiseEpochs(nil)
	full.Store(false)
	if got := w.dial().put("t", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	w.close()
	// The folder as a crash before it could be described anew leaves it.
	if err := os.WriteFile(w.cfg.DataDir+"/t-0/partition.metadata", described, 0o644); err != nil {
		t.Fatal(err)
	}
	w.open()
	if h := w.b.Held(); len(h) != 1 || h[0].LeaderEpoch != 1 {
		t.Errorf("held: %+v, want epoch 1, of the record", h)
	}
}
