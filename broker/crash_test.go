package broker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

// reopen opens a second broker on a copy of the folder as it is now, which is what a killed process leaves.
func (w *world) reopen() *world {
	w.t.Helper()
	dir := w.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(w.cfg.DataDir)); err != nil {
		w.t.Fatal(err)
	}
	n := &world{t: w.t, cfg: w.cfg, fs: w.fs, cluster: newFakeCluster()}
	n.cfg.DataDir = dir
	n.cluster.view = w.cluster.View()
	n.open()
	w.t.Cleanup(n.close)
	n.leadAgain()
	return n
}

func TestKilledBrokerHasEverythingAcknowledged(t *testing.T) {
	w := start(t)
	id := w.topic("t", 2, map[string]string{"segment.bytes": "2000"})
	want := numbered(300, "value")
	cl := w.client()
	for _, v := range want {
		produce(t, cl, "t", v)
	}
	r := w.dial()
	for i := range int32(7) {
		r.put("t", idempotent(i, "x"))
	}
	n := w.reopen()
	got := consume(t, n, "t", len(want)+7)
	for i, v := range want {
		if got[i] != v {
			t.Fatalf("record %d: %q, want %q", i, got[i], v)
		}
	}
	again := n.dial()
	for i := int32(2); i < 7; i++ {
		if got := again.put("t", idempotent(i, "x")); got.ErrorCode != 0 || got.BaseOffset != int64(len(want))+int64(i) {
			t.Errorf("duplicate of %d after the crash: %+v", i, got)
		}
	}
	if got := again.put("t", idempotent(7, "x")); got.ErrorCode != 0 || got.BaseOffset != int64(len(want))+7 {
		t.Errorf("the next one: %+v", got)
	}
	held := n.b.Held()
	if len(held) != 2 {
		t.Fatalf("held: %+v", held)
	}
	for _, h := range held {
		if h.Topic != "t" || h.ID != id || h.Count != 2 || h.Configs["segment.bytes"] != "2000" {
			t.Errorf("held: %+v", h)
		}
		if h.Partition == 0 && (h.Start != 0 || h.End != int64(len(want))+8 || h.Bytes == 0) {
			t.Errorf("held: %+v", h)
		}
	}
}

func TestCleanStopLeavesItsMarkerForOneStart(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	produce(t, w.client(), "t", "a", "b")
	marker := filepath.Join(w.cfg.DataDir, ".kafka_cleanshutdown")
	if _, err := os.Stat(marker); err == nil {
		t.Error("there is a marker while the broker runs")
	}
	w.close()
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("after a clean stop: %v", err)
	}
	w.open()
	if _, err := os.Stat(marker); err == nil {
		t.Error("the marker is still there after the start")
	}
	w.leadAgain()
	if got := consume(t, w, "t", 2); got[1] != "b" {
		t.Errorf("got %q", got)
	}
	if a := w.b.Alarms(); len(a) != 0 {
		t.Errorf("alarms: %q", a)
	}
	if err := w.b.Lead(broker.Lead{Topic: "t", ID: w.b.Held()[0].ID, Count: 1, Epoch: 0}); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

func TestLeadRefusesOlderEpochsAndKeepsTheNewest(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	lead := func(epoch int32) error {
		return w.b.Lead(broker.Lead{Topic: "t", ID: id, Count: 1, Epoch: epoch})
	}
	if err := lead(4); err != nil {
		t.Fatal(err)
	}
	if err := lead(3); !errors.Is(err, broker.ErrOldEpoch) {
		t.Errorf("got %v", err)
	}
	n := w.reopenHeld()
	if h := n.Held(); len(h) != 1 || h[0].LeaderEpoch != 4 {
		t.Errorf("held: %+v", h)
	}
}

// reopenHeld opens the folder as it is without leading anything.
func (w *world) reopenHeld() *broker.Broker {
	w.t.Helper()
	dir := w.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(w.cfg.DataDir)); err != nil {
		w.t.Fatal(err)
	}
	cfg := w.cfg
	cfg.DataDir = dir
	b, err := broker.Open(cfg, newFakeCluster(), broker.Options{FS: w.fs})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close(w.t.Context()) })
	return b
}

// Files go only when their own topic is removed: a topic made anew under the name does not take them.
func TestANewTopicOfTheSameNameMovesTheOldOneAside(t *testing.T) {
	w := start(t)
	old := w.topic("t", 1, nil)
	produce(t, w.client(), "t", "old")
	fresh := w.topic("t", 1, nil) // nobody removed the old one
	produce(t, w.client(), "t", "new")
	if got := consume(t, w, "t", 1); got[0] != "new" {
		t.Errorf("got %q", got)
	}
	ends := map[broker.UUID]int64{}
	for _, h := range w.b.Held() {
		ends[h.ID] = h.End
	}
	if len(ends) != 2 || ends[old] != 1 || ends[fresh] != 1 {
		t.Errorf("held: %v", ends)
	}
	for _, h := range w.reopenHeld().Held() {
		if h.End != 1 {
			t.Errorf("after a restart: %+v", h)
		}
	}
	if err := w.b.Remove(old, 0); err != nil {
		t.Fatal(err)
	}
	if h := w.b.Held(); len(h) != 1 || h[0].ID != fresh {
		t.Errorf("held: %+v", h)
	}
	if err := w.b.Remove(old, 0); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

func TestFoldersThatCannotBeReadAreAlarmsAndLeftAlone(t *testing.T) {
	w := start(t)
	w.topic("good", 1, nil)
	w.topic("bad", 1, nil)
	produce(t, w.client(), "good", "a")
	w.close()
	bad := filepath.Join(w.cfg.DataDir, "bad-0", "partition.metadata")
	if err := os.WriteFile(bad, []byte("version: 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(w.cfg.DataDir, "stranger-0")
	_ = os.Mkdir(stranger, 0o755)
	_ = os.WriteFile(filepath.Join(stranger, "00000000000000000000.log"), []byte("data"), 0o644)
	doomed := filepath.Join(w.cfg.DataDir, "x-0.0190c5f2-8f5e-7d3a-9c41-2b6f0e7a1d58-delete")
	_ = os.Mkdir(doomed, 0o755)
	w.open()
	alarms := strings.Join(w.b.Alarms(), "\n")
	if !strings.Contains(alarms, "bad-0") || !strings.Contains(alarms, "stranger-0") || len(w.b.Alarms()) != 2 {
		t.Errorf("alarms:\n%s", alarms)
	}
	if h := w.b.Held(); len(h) != 1 || h[0].Topic != "good" || h[0].End != 1 {
		t.Errorf("held: %+v", h)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Error("the strange folder was touched")
	}
	if _, err := os.Stat(doomed); err == nil {
		t.Error("a removal that was interrupted was not finished")
	}
	err := w.b.Lead(broker.Lead{Topic: "stranger", ID: broker.UUID{1}, Count: 1})
	if err == nil || !strings.Contains(err.Error(), "partition.metadata") {
		t.Errorf("leading into a log that nobody described: %v", err)
	}
}

func TestDiskFullIsRetriableAndWritingResumes(t *testing.T) {
	var full atomic.Bool
	fs := disk.WithFaults(disk.OS, func(op disk.Op) error {
		if full.Load() && op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, ".log") {
			return &os.PathError{Op: "write", Path: op.Name, Err: syscall.ENOSPC}
		}
		return nil
	})
	w := startOn(t, fs)
	w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{}))
	full.Store(true)
	for range 3 {
		if got := r.put("t", idempotent(0, "x")); got.ErrorCode != 56 || got.BaseOffset != -1 {
			t.Errorf("disk full: %+v, want error 56", got)
		}
	}
	if got := r.get(fetchReq(12, "t", 0, 0)); got.ErrorCode != 0 || len(got.RecordBatches) == 0 {
		t.Errorf("fetch while the disk is full: %+v", got)
	}
	// A full disk was once told in the log alone: /status had no alarm.
	if a := w.b.Alarms(); len(a) != 1 || !strings.Contains(a[0], "is full") {
		t.Errorf("alarms %q, want one that says the directory is full", a)
	}
	full.Store(false)
	if got := r.put("t", idempotent(0, "x")); got.ErrorCode != 0 || got.BaseOffset != 1 {
		t.Errorf("room again: %+v", got)
	}
	if a := w.b.Alarms(); len(a) != 0 {
		t.Errorf("alarms %q although there is room again", a)
	}
}

// A failed fsync is never repeated as if it could still work: its directory takes no more writes, and the others go on.
func TestFailedFlushTakesItsLogDirectoryOffline(t *testing.T) {
	var broken atomic.Bool
	one, two := t.TempDir(), t.TempDir()
	fs := disk.WithFaults(disk.OS, func(op disk.Op) error {
		if broken.Load() && op.Kind == disk.OpDatasync && strings.HasPrefix(op.Name, one) {
			return &os.PathError{Op: "fdatasync", Path: op.Name, Err: syscall.EIO}
		}
		return nil
	})
	w := startOn(t, fs, func(c *broker.Config) { c.LogDirs = []string{one, two} })
	for _, topic := range []string{"a", "b", "c"} { // in turn, since all are empty
		w.topic(topic, 1, nil)
	}
	r := w.dial()
	r.put("a", recordtest.Batch(recordtest.Spec{}))
	broken.Store(true)
	if got := r.put("a", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 56 {
		t.Errorf("acks=all: %+v, want error 56", got)
	}
	broken.Store(false)
	for _, topic := range []string{"a", "c"} {
		if got := r.put(topic, recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 56 {
			t.Errorf("%s after it: %+v, want error 56", topic, got)
		}
	}
	if got := r.put("b", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 0 {
		t.Errorf("another directory: %+v", got)
	}
	req := fetchReq(12, "a", 0, 0)
	got := r.get(req)
	if got.ErrorCode != 0 || got.HighWatermark != 1 {
		t.Errorf("fetch: %+v, want what was durable", got)
	}
	if a := w.b.Alarms(); len(a) != 2 || !strings.Contains(a[0], "a-0") || !strings.Contains(a[1], "log directory "+one+" is offline") {
		t.Errorf("alarms: %q", a)
	}
	w.topic("d", 1, nil)
	w.topic("e", 1, nil)
	dirs := w.b.LogDirs()
	if len(dirs) != 2 || dirs[0].Err == nil || dirs[1].Err != nil || len(dirs[0].Partitions) != 2 || len(dirs[1].Partitions) != 3 {
		t.Errorf("new partitions go to the directory that is well: %+v", dirs)
	}
}

func TestFlushPolicyOfKafka(t *testing.T) {
	var syncs atomic.Int64
	fs := disk.WithFaults(disk.OS, func(op disk.Op) error {
		if op.Kind == disk.OpDatasync && strings.HasSuffix(op.Name, ".log") {
			syncs.Add(1)
		}
		return nil
	})
	w := startOn(t, fs)
	w.topic("t", 1, map[string]string{"flush.messages": "9223372036854775807"})
	r := w.dial()
	before := syncs.Load()
	for i := range int64(20) {
		if got := r.put("t", recordtest.Batch(recordtest.Spec{})); got.BaseOffset != i {
			t.Fatalf("produce: %+v", got)
		}
	}
	if n := syncs.Load() - before; n != 0 {
		t.Errorf("%d syncs", n)
	}
	if got := listOffset(r, 7, -1); got.Offset != 20 {
		t.Errorf("consumers may read up to %d, want 20", got.Offset)
	}
}

// acks=1 is answered before the disk, but a consumer sees the record only once it is durable, and it does become so.
func TestEveryAppendIsCommittedWhateverItsAcks(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for acks := int16(0); acks <= 1; acks++ {
		r.send(produceReq(9, acks, "t", 0, recordtest.Batch(recordtest.Spec{})))
		if acks == 1 {
			r.receive(func() kmsg.Response { p := kmsg.NewPtrProduceResponse(); p.Version = 9; return p }())
		}
		req := fetchReq(12, "t", 0, int64(acks))
		req.MaxWaitMillis = 20_000
		if got := w.dial().get(req); len(got.RecordBatches) == 0 {
			t.Errorf("acks=%d: %+v", acks, got)
		}
	}
}

func TestCloseWhileBusy(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	for i := range 10 {
		r := w.dial()
		go func() {
			for range 1000 {
				if _, err := r.Write(r.frame(produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{})))); err != nil {
					return
				}
			}
		}()
		if i%2 == 0 {
			c := w.dial()
			req := fetchReq(12, "t", 0, 1<<40)
			req.Topics[0].Partitions[0].FetchOffset = 0
			req.MinBytes, req.MaxWaitMillis = 1<<30, 60_000
			_, _ = c.Write(c.frame(req))
		}
	}
	if err := w.b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.b.Lead(broker.Lead{Topic: "t", ID: broker.UUID{1}, Count: 1}); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("lead after close: %v", err)
	}
	end := w.reopenHeld().Held()[0].End
	if end < 0 {
		t.Error(fmt.Sprint("end ", end))
	}
}
