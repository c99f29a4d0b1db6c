package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap/zaptest"

	"sidestream/broker"
	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

// folders lists the partitions' folders of a directory.
func folders(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestNewPartitionsGoToTheEmptiestLogDirAndAreFoundAgain(t *testing.T) {
	one, two := t.TempDir(), filepath.Join(t.TempDir(), "is/made")
	w := start(t)
	w.topic("old", 1, nil) // from the time when there was one directory
	r := w.dial()
	r.put("old", recordtest.Batch(recordtest.Spec{}))
	_ = r.Close()
	w.close()
	w.cfg.LogDirs = []string{one, two}
	w.open()
	w.leadAgain()
	w.topic("even", 6, nil)
	if a, b := len(folders(t, one)), len(folders(t, two)); a != 3 || b != 3 {
		t.Errorf("%d and %d of 6 empty partitions", a, b)
	}
	r = w.dial()
	for p := range int32(6) {
		if _, err := os.Stat(fmt.Sprintf("%s/even-%d", one, p)); err == nil {
			ask[*kmsg.ProduceResponse](r, produceReq(9, -1, "even", p, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 900_000)}})))
			ask[*kmsg.ProduceResponse](r, produceReq(9, -1, "even", p, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 900_000)}})))
		}
	}
	time.Sleep(1100 * time.Millisecond) // directories are measured once a second at most
	w.topic("next", 2, nil)
	if got := strings.Join(folders(t, two), " "); !strings.Contains(got, "next-0") || !strings.Contains(got, "next-1") {
		t.Errorf("the emptiest directory holds %s", got)
	}
	_ = r.Close()
	w.close()
	for _, dir := range []string{w.cfg.DataDir, one, two} {
		if _, err := os.Stat(dir + "/.kafka_cleanshutdown"); err != nil {
			t.Errorf("no marker of a clean stop: %v", err)
		}
	}
	w.open()
	w.leadAgain()
	if held := w.b.Held(); len(held) != 9 || len(w.b.Alarms()) != 0 {
		t.Errorf("%d partitions are found again, alarms %q", len(held), w.b.Alarms())
	}
	if got := w.dial().put("old", recordtest.Batch(recordtest.Spec{})); got.BaseOffset != 1 {
		t.Errorf("the data folder's own partition: %+v", got)
	}
	if err := w.cluster.DeleteTopic(t.Context(), "even"); err != nil {
		t.Fatal(err)
	}
	if a, b := folders(t, one), folders(t, two); len(a) != 0 || len(b) != 2 {
		t.Errorf("after the deletion: %q, %q", a, b)
	}
}

// A disk that is not mounted looks like an empty directory. Nothing is begun anew over what lies there.
func TestALogDirThatIsAwayIsNotTakenForAnEmptyOne(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	w := start(t, func(c *broker.Config) { c.LogDirs = []string{one, two} })
	id := w.topic("t", 4, nil)
	w.close()
	away := one + ".away"
	if err := os.Rename(one, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(one, 0o755); err != nil {
		t.Fatal(err)
	}
	w.open()
	if a := strings.Join(w.b.Alarms(), "\n"); !strings.Contains(a, "is the disk mounted?") {
		t.Errorf("alarms: %s", a)
	}
	served := 0
	for p := range int32(4) {
		err := w.b.Lead(broker.Lead{Topic: "t", ID: id, Partition: p, Count: 4, Epoch: 2})
		if err == nil {
			served++
		} else if !strings.Contains(err.Error(), one) {
			t.Error(err)
		}
	}
	if served != 2 || len(folders(t, one)) != 0 {
		t.Errorf("%d of 4 partitions are led, 2 are there", served)
	}
	w.topic("new", 2, nil)
	if n := len(folders(t, two)); n != 4 {
		t.Errorf("%d folders in the directory that is there, want 4", n)
	}
	w.close()
	_ = os.Remove(one)
	if err := os.Rename(away, one); err != nil {
		t.Fatal(err)
	}
	w.open()
	if err := w.b.Lead(broker.Lead{Topic: "t", ID: id, Partition: 0, Count: 4, Epoch: 3}); err != nil || len(w.b.Held()) != 6 || len(w.b.Alarms()) != 0 {
		t.Errorf("mounted again: %v, %+v, %q", err, w.b.Held(), w.b.Alarms())
	}
	w.close()
	w.cfg.LogDirs = []string{two}
	w.open()
	if a := strings.Join(w.b.Alarms(), "\n"); !strings.Contains(a, one) || !strings.Contains(a, "log_dirs") {
		t.Errorf("a directory that is not configured any more: alarms %s", a)
	}
}

func TestALogDirOfAnotherBrokerIsRefused(t *testing.T) {
	shared := t.TempDir()
	w := start(t, func(c *broker.Config) { c.LogDirs = []string{shared} })
	other := w.cfg
	other.DataDir = t.TempDir()
	if b, err := broker.Open(other, newFakeCluster(), broker.Options{Logger: zaptest.NewLogger(t)}); err == nil || !strings.Contains(err.Error(), "locked by another broker") {
		t.Errorf("while it runs: %v, %v", b, err)
	}
	w.close()
	other.ID = 7
	if b, err := broker.Open(other, newFakeCluster(), broker.Options{Logger: zaptest.NewLogger(t)}); err == nil || !strings.Contains(err.Error(), "belongs to broker 1") {
		t.Errorf("after it: %v, %v", b, err)
	}
}

func TestHousekeepingCompactsAndFindsDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the housekeeping, which runs once a second at most")
	}
	w := startOn(t, disk.OS, func(c *broker.Config) { c.RetentionCheckInterval, c.ScrubInterval = time.Second, time.Second })
	w.topic("t", 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.01"})
	w.topic("bad", 1, map[string]string{"segment.bytes": "2048"})
	r := w.dial()
	for i := range 100 {
		r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 200)}, Keys: []string{fmt.Sprint(i % 3)}}))
		r.put("bad", recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("y", 200)}}))
	}
	before := w.b.Held()
	name := w.cfg.DataDir + "/bad-0/00000000000000000000.log"
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	raw[1000] ^= 1
	if err := os.WriteFile(name, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	size := func(held []broker.Held) int64 {
		for _, h := range held {
			if h.Topic == "t" {
				return h.Bytes
			}
		}
		return -1
	}
	deadline := time.Now().Add(30 * time.Second)
	for size(w.b.Held())*3 > size(before) || !strings.Contains(strings.Join(w.b.Alarms(), ""), "bad-0 is damaged") {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of %d, alarms %q", size(w.b.Held()), size(before), w.b.Alarms())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got := r.get(fetchReq(12, "t", 0, 0)); got.ErrorCode != 0 || len(got.RecordBatches) == 0 || got.HighWatermark != 100 {
		t.Errorf("reading what was compacted: %+v", got)
	}
	offset := int64(0)
	for codes := map[int16]bool{}; offset < 100; offset++ {
		got := r.get(fetchReq(12, "bad", 0, offset))
		if codes[got.ErrorCode] = true; codes[0] && codes[2] {
			return // served around with the protocol's own error
		}
	}
	t.Error("the damaged batch is not answered with CORRUPT_MESSAGE beside good ones")
}
