package commitlog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/broker/disk"
)

// keyedRun is a workload on a compacted log. Every record has another value, and
// an offset never gets a second one.
type keyedRun struct {
	*recorder
	cfg     Config
	l       *Log
	written []kv // by offset
	owed    []keyedPromise
}

// keyedPromise is what is owed at the cut of the same index.
type keyedPromise struct {
	written []kv
	gone    bool // the folder may be gone
}

func newKeyedRun(t *testing.T, seeds int) *keyedRun {
	r := &keyedRun{recorder: newRecorder(t, seeds), cfg: compactConfig()}
	r.cfg.DeleteRetention = 0
	r.start()
	return r
}

func (r *keyedRun) start() {
	var err error
	r.l, err = Open(disk.WithFaults(r.mem, r.note), testDir, r.cfg, compactOptions())
	must(r.t, err)
}

func (r *keyedRun) note(op disk.Op) error {
	err := r.rule(op)
	for len(r.owed) < len(r.cuts) {
		r.owed = append(r.owed, keyedPromise{written: r.written[:len(r.written):len(r.written)], gone: r.recorder.owed.step == "remove"})
	}
	return err
}

func (r *keyedRun) append(records ...kv) {
	b := keyed(records...)
	if len(r.written)%3 == 0 {
		b = zipped(r.t, b)
	}
	r.written = append(r.written, records...) // it may be on the disk from now on
	_, _, err := r.l.Append([][]byte{b}, 1, testStart)
	must(r.t, err)
}

func (r *keyedRun) flushAll() {
	durable, err := r.l.Flush()
	must(r.t, err)
	r.recorder.owed.flushed = durable
}

func (r *keyedRun) compact(step string, at time.Duration) Compacted {
	r.step(step)
	done, err := r.l.Compact(r.t.Context(), testStart.Add(at), CompactOptions{})
	must(r.t, err)
	r.recorder.owed.flushed = r.l.FlushedOffset()
	return done
}

func (r *keyedRun) step(name string) { r.recorder.owed.step = name }

// deleteBefore lets the start be anywhere up to the offset until it is there.
func (r *keyedRun) deleteBefore(offset int64) {
	r.recorder.owed.started = offset
	must(r.t, r.l.DeleteBefore(offset))
	r.recorder.owed.start, r.recorder.owed.flushed = offset, r.l.FlushedOffset()
}

// lastValues are the values of the keys that have one.
func lastValues(list []stored) map[string]kv {
	last := map[string]kv{}
	for _, r := range list {
		last[r.key] = r.kv
		if r.value == "" {
			delete(last, r.key)
		}
	}
	return last
}

func (r *keyedRun) checkAll() {
	r.t.Logf("%d operations, %d power cuts", r.ops, len(r.cuts))
	for i, c := range r.cuts {
		r.check(c, r.owed[i])
	}
}

func (r *keyedRun) check(c cut, owed keyedPromise) {
	t := r.t
	t.Helper()
	fatal := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("cut with seed %d before %q in step %q: %s\n%s", c.seed, c.owed.op, c.owed.step,
			fmt.Sprintf(format, args...), strings.Join(c.image.Tree(), "\n"))
	}
	if owed.gone {
		if _, err := c.image.Stat(testDir); err != nil {
			return
		}
		entries, err := c.image.ReadDir("/data")
		must(t, err)
		for _, e := range entries { // either not begun, or whole under the other name
			if IsDeletedFolder(e.Name()) {
				fatal("both folders are there")
			}
		}
	}
	l, err := Open(c.image, testDir, r.cfg, compactOptions())
	if err != nil {
		fatal("open: %v", err)
	}
	defer l.Close()
	start, end := l.StartOffset(), l.EndOffset()
	if start < c.owed.start || start > c.owed.started || end < c.owed.flushed || end > int64(len(owed.written)) {
		fatal("the log has %d to %d, want it to begin at %d to %d and to end at %d to %d",
			start, end, c.owed.start, c.owed.started, c.owed.flushed, len(owed.written))
	}
	list, err := readStored(l)
	if err != nil {
		fatal("read: %v", err)
	}
	if damage, err := l.Verify(t.Context()); err != nil || len(damage) > 0 {
		fatal("damage %v (%v)", damage, err)
	}
	var all []stored
	for offset := start; offset < end; offset++ {
		all = append(all, stored{offset, owed.written[offset]})
	}
	for _, s := range list {
		if s.kv != owed.written[s.offset] {
			fatal("offset %d has %v, written was %v", s.offset, s.kv, owed.written[s.offset])
		}
	}
	if got, want := lastValues(list), lastValues(all); !maps.Equal(got, want) {
		fatal("the log says %v, written was %v", got, want)
	}
	// It goes on where it was, and comes to the same end.
	if _, err := l.Compact(t.Context(), testStart.Add(1000*time.Hour), CompactOptions{}); err != nil {
		fatal("compact: %v", err)
	}
	after, err := readStored(l)
	if err != nil || !maps.Equal(lastValues(after), lastValues(all)) {
		fatal("compacted after the cut it says %v, written was %v (%v)", lastValues(after), lastValues(all), err)
	}
	if err := l.Close(); err != nil {
		fatal("close: %v", err)
	}
	for _, name := range files(t, c.image) {
		if strings.Contains(name, cleanedSuffix) || strings.Contains(name, swapSuffix) || strings.HasSuffix(name, ".tmp") {
			fatal("%s is left", name)
		}
	}
	if l, err = Open(c.image.Crash(c.seed+1), testDir, r.cfg, compactOptions()); err != nil {
		fatal("open again: %v", err)
	}
	defer l.Close()
	if again, err := readStored(l); err != nil || !slices.Equal(again, after) {
		fatal("after a second cut %v, before %v (%v)", again, after, err)
	}
}

// Compaction, deletion of records, retention and removal of the folder, cut at
// every write, sync, rename and removal: no key loses its last value, no deleted
// one comes back, no offset has another value.
func TestPowerCutDuringCompaction(t *testing.T) {
	r := newKeyedRun(t, 2)
	r.step("append")
	v := func(i int) string { return fmt.Sprintf("value-%03d-%s", i, strings.Repeat("x", 30)) }
	for i := range 40 {
		r.append(kv{fmt.Sprint("k", i%6), v(i)}, kv{fmt.Sprint("once", i%17), v(i)})
		if i%4 == 3 {
			r.flushAll()
		}
	}
	must(t, r.l.Checkpoint())
	r.recorder.owed.flushed = r.l.FlushedOffset()
	if done := r.compact("compact", 0); done.Segments < 3 {
		t.Fatalf("%+v", done)
	}
	r.step("tombstones")
	for i := range 6 {
		r.append(kv{fmt.Sprint("k", i), ""}, kv{"other", v(i)})
		r.append(kv{fmt.Sprint("once", i), v(1000 + i)})
	}
	r.flushAll()
	closeActive(t, r.l)
	r.recorder.owed.flushed = r.l.FlushedOffset()
	r.compact("compact again", time.Hour)
	if done := r.compact("remove tombstones", 2*time.Hour); done.Tombstones == 0 {
		t.Fatalf("%+v", done)
	}
	r.step("append behind")
	for i := range 12 {
		r.append(kv{fmt.Sprint("k", i%3), v(2000 + i)})
	}
	r.flushAll()
	r.step("delete before")
	r.deleteBefore(50)
	r.compact("compact what is left", 3*time.Hour)
	r.step("close and open")
	must(t, r.l.Close())
	r.start()
	for i := range 20 {
		r.append(kv{fmt.Sprint("k", i%3), v(3000 + i)})
	}
	r.step("retention")
	r.cfg.Cleanup, r.cfg.RetentionBytes = CleanupBoth, 1200
	must(t, r.l.SetConfig(r.cfg))
	r.recorder.owed.started = r.l.EndOffset()
	removed, err := r.l.Retain(testStart)
	must(t, err)
	if removed == 0 {
		t.Fatal("retention removed nothing")
	}
	r.recorder.owed.start, r.recorder.owed.started = r.l.StartOffset(), r.l.StartOffset()
	r.recorder.owed.flushed = r.l.FlushedOffset()
	r.compact("compact what retention left", 4*time.Hour)
	r.flushAll()
	r.step("remove")
	must(t, r.l.Remove())
	r.checkAll()
}
