package spool

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
)

// Killed when much was written and no mark said so yet, and started when it would
// all be too old, or when the spool is full: what is written is not rejected.
func TestWhatIsWrittenIsNotRejected(t *testing.T) {
	for _, policy := range []string{"on_age", "on_full"} {
		t.Run(policy, func(t *testing.T) {
			t.Chdir(t.TempDir())
			r := &rig{t: t, fs: disk.OS, b: newBrokers(4), cfg: DefaultConfig()}
			r.cfg.SendWait, r.cfg.LookAgain = 100*time.Millisecond, 5*time.Millisecond
			r.cfg.OnAge, r.cfg.OnFull = Reject, RejectOldest
			r.cfg.KeepEvery = time.Hour // only the marks that are waited for
			r.live = &live{b: r.b}
			r.open()
			t.Cleanup(func() { r.close() })
			r.spool(0, "first")
			r.settled()
			r.b.set(func() { r.b.topics["t"].parts[0].away = true })
			var ids []string
			for i := range 8 { // of several steps
				ids = append(ids, r.spool(0, fmt.Sprint(i)+strings.Repeat("x", 400<<10)))
			}
			r.b.set(func() { r.b.topics["t"].parts[0].away = false })
			r.settled()
			if err := os.CopyFS("killed", os.DirFS("spool")); err != nil { // what kill -9 leaves
				t.Fatal(err)
			}
			r.close()
			s, err := Open(r.cfg, Deps{FS: r.fs, Dir: "killed", Next: r.live, Brokers: r.b, Sender: r.b.sender(), Logger: logger(t)})
			if err != nil {
				t.Fatal(err)
			}
			if policy == "on_age" {
				s.cfg.MaxAge = time.Millisecond
				time.Sleep(5 * time.Millisecond)
			} else {
				s.cfg.MaxBytes = 1
				s.full.Store(true)
			}
			r.Spool = s
			s.Start()
			r.settled()
			for i, id := range ids {
				if ev, err := s.Event(id); err != nil || ev.State != api.SpoolWritten || ev.Offset != int64(i+1) {
					t.Errorf("message %d, which is written, is told of as %s at offset %d, %v", i, ev.State, ev.Offset, err)
				}
			}
			if n := len(r.b.values("t", 0)); n != 9 {
				t.Errorf("the partition has %d messages, want 9", n)
			}
		})
	}
}

// Rejecting several, those that were found are written.
func TestOfRejectedEntriesWhatWasFoundIsWritten(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MissingTopic = time.Hour })
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	ids := []string{r.spool(0, "0"), r.spool(0, "1"), r.spool(0, "2")}
	var l *lane
	for end := time.Now().Add(20 * time.Second); l == nil; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		if lane := r.laneOf(laneKey{"t", "uuid-0", 0}); len(lane.queue) == 3 {
			l = lane
		}
		r.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("it is not loaded")
		}
	}
	r.cancel() // nothing else uses the lane from now on
	r.wg.Wait()
	seq, _ := parseID(r.nonce, ids[1])
	l.found = map[int64]int64{seq: 7}
	if why := r.rejectEntries(l, append([]entry(nil), l.queue...), api.NewError(api.CodeTopicNotFound, "gone")); why != nil {
		t.Fatal(why)
	}
	for i, want := range []api.SpoolState{api.SpoolRejected, api.SpoolWritten, api.SpoolRejected} {
		if ev, err := r.Event(ids[i]); err != nil || ev.State != want {
			t.Errorf("message %d: %s, %v; want %s", i, ev.State, err, want)
		}
	}
	if n := len(r.rejectLines()); n != 2 {
		t.Errorf("%d messages are in the file of rejected ones, want 2", n)
	}
}

// The topic takes less between an attempt that was written and the one after it,
// which is refused: the message is written.
func TestARefusalMayComeAfterTheMessageIsWritten(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() {
		r.b.refuse = func(rec *kgo.Record) error {
			if string(rec.Value) == "large" {
				part := r.b.topics["t"].parts[rec.Partition]
				part.recs = append(part.recs, rec)
				return kerr.MessageTooLarge
			}
			return nil
		}
	})
	id := r.spool(0, "large")
	r.settled()
	if ev, err := r.Event(id); err != nil || ev.State != api.SpoolWritten || ev.Offset != 0 {
		t.Errorf("the message that is written is told of as %+v, %v", ev, err)
	}
	if got := r.b.values("t", 0); len(got) != 1 {
		t.Errorf("the partition has %v", got)
	}
}
