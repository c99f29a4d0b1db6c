package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// openAt opens a spool in a folder of the machine, before the rig's brokers.
func (r *rig) openAt(dir string) *rig {
	r.t.Helper()
	s, err := Open(r.cfg, Deps{FS: disk.OS, Dir: dir, Next: r.live, Brokers: r.b, Sender: r.b.sender(), Logger: logger(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
	s.Start()
	other := &rig{Spool: s, t: r.t, fs: disk.OS, cfg: r.cfg, b: r.b, live: r.live}
	r.t.Cleanup(other.close)
	return other
}

func copyFolder(t *testing.T, from string) (to string) {
	t.Helper()
	to = t.TempDir() + "/spool"
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func (r *rig) checkWritten(partition int, want []string) {
	r.t.Helper()
	got := r.b.values("t", partition)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Errorf("the partition has %q, want %q", got, want)
	}
}

// Of two spools in copies of one folder one took the other's messages for its own
// when it looked for them after a crash: they had the same ids. What it had
// answered 202 to was never written.
func TestACopiedFolderKeepsItsMessages(t *testing.T) {
	world := newRig(t, nil)
	dir := t.TempDir() + "/spool"
	one := world.openAt(dir)
	first := one.spool(0, "first")
	one.settled()
	one.close()
	copied := copyFolder(t, dir)

	one = world.openAt(dir)
	two := world.openAt(copied)
	want := []string{"first", "one", "two"}
	ids := map[string]string{one.spool(0, "one"): "one", two.spool(0, "two"): "two"}
	one.settled()
	two.settled()
	world.b.set(func() { world.b.down = true })
	for i := range 3 {
		for name, r := range map[string]*rig{"one": one, "two": two} {
			value := fmt.Sprintf("%s-%d", name, i)
			ids[r.spool(0, value)] = value
			want = append(want, value)
		}
	}
	if len(ids) != 8 {
		t.Errorf("8 messages have the ids %v", ids)
	}
	// Both tried, and noted that they may have been sent.
	world.until(func() bool { return one.Status().AwayPartitions == 1 && two.Status().AwayPartitions == 1 })
	two.close()
	world.b.set(func() { world.b.down = false })
	one.settled()
	two = world.openAt(copied)
	two.settled()
	world.checkWritten(0, want)
	written := world.b.values("t", 0)
	for id, value := range ids {
		r := one
		if strings.HasPrefix(value, "two") {
			r = two
		}
		if ev, err := r.Event(id); err != nil || ev.State != api.SpoolWritten || written[ev.Offset] != value {
			t.Errorf("%s: %+v, %v", value, ev, err)
		}
	}
	for _, r := range []*rig{one, two} { // it was before they parted
		if ev, err := r.Event(first); err != nil || ev.Offset != 0 {
			t.Errorf("%+v, %v", ev, err)
		}
	}
}

// A folder that was put back to an earlier state gives its numbers a second time.
func TestAFolderThatWasPutBackKeepsItsMessages(t *testing.T) {
	world := newRig(t, nil)
	dir := t.TempDir() + "/spool"
	r := world.openAt(dir)
	r.spool(0, "first")
	r.settled()
	r.close()
	earlier := copyFolder(t, dir)
	r = world.openAt(dir)
	for _, v := range []string{"a", "b", "c"} {
		r.spool(0, v)
	}
	r.settled()
	r.close()

	r = world.openAt(earlier)
	world.b.set(func() { world.b.down = true })
	for _, v := range []string{"x", "y", "z"} {
		r.spool(0, v)
	}
	world.until(func() bool { return r.Status().AwayPartitions == 1 })
	r.close()
	world.b.set(func() { world.b.down = false })
	r = world.openAt(earlier)
	r.settled()
	world.checkWritten(0, []string{"first", "a", "b", "c", "x", "y", "z"})
}

// In a copy of files in use the marks may be of a later time than the journal.
// New messages with the numbers that they say are settled were never sent.
func TestMarksOfALaterTimeThanTheJournal(t *testing.T) {
	world := newRig(t, nil)
	dir := t.TempDir() + "/spool"
	r := world.openAt(dir)
	r.spool(0, "first")
	r.settled()
	r.close()
	mixed := copyFolder(t, dir)
	r = world.openAt(dir)
	for _, v := range []string{"a", "b", "c"} {
		r.spool(0, v)
	}
	r.settled()
	r.close()
	later, err := os.ReadFile(dir + "/" + marksName)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mixed+"/"+marksName, later, 0o600); err != nil {
		t.Fatal(err)
	}
	r = world.openAt(mixed)
	if id := r.spool(0, "x"); id == "" {
		t.Error("no id")
	}
	world.until(func() bool { return slices.Contains(world.b.values("t", 0), "x") })
}

// Pending messages keep their ids through restarts, of which each begins others.
func TestIDsOutliveRestarts(t *testing.T) {
	r := newRig(t, nil)
	r.spool(0, "known")
	r.settled()
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	ids := map[string]bool{}
	for i := range 4 {
		ids[r.spool(0, fmt.Sprint(i))] = true
		r.restart()
		for id := range ids {
			if ev, err := r.Event(id); err != nil || ev.State != api.SpoolPending {
				t.Fatalf("%+v, %v", ev, err)
			}
		}
	}
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.settled()
	begins := map[string]bool{}
	for i, rec := range r.b.topics["t"].parts[0].recs {
		if id := idHeader(rec); i > 0 && !ids[id] {
			t.Errorf("%s was sent as %s", rec.Value, id)
		}
		begins[idHeader(rec)[:nonceLength]] = true
	}
	if len(begins) != 4 { // the second message was taken in the first's life
		t.Errorf("in four lives the ids began with %v", begins)
	}
}

// No message is taken before what its id begins with is on disk; what was taken
// before is sent.
func TestNoncesThatCannotBeWritten(t *testing.T) {
	var full atomic.Bool
	r := newFaultyRig(t, nil, func(op disk.Op) error {
		if full.Load() && strings.HasSuffix(op.Name, nonceName+".tmp") {
			return errors.New("no room")
		}
		return nil
	})
	t.Cleanup(func() { r.close() })
	r.spool(0, "a")
	r.settled()
	r.b.set(func() { r.b.down = true })
	r.spool(0, "b")
	r.close()
	full.Store(true)
	r.open()
	before := r.journal.EndOffset()
	_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("c"), Partition: new(int32)}, publish.Options{Ack: publish.AckSpool})
	if codeOf(err) != api.CodeSpoolFull || r.journal.EndOffset() != before {
		t.Errorf("%v", err)
	}
	r.b.set(func() { r.b.down = false })
	r.settled()
	full.Store(false)
	r.spool(0, "d")
	r.settled()
	if got := fmt.Sprint(r.b.values("t", 0)); got != "[a b d]" {
		t.Error(got)
	}
}

func TestNonces(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("%016x", i) }
	old, err := parseNonces(name(1) + "\n") // of an earlier version
	if err != nil || old.of(0) != name(1) || old.of(1<<40) != name(1) {
		t.Fatalf("%v, %v", old, err)
	}
	n := nonces(nil).begin(name(1), 500, 100, 0) // the list was lost
	if n.of(1) != name(1) {
		t.Error(n)
	}
	n = n.begin(name(2), 500, 100, 0).begin(name(3), 500, 100, 0) // the second gave no id
	n = n.begin(name(4), 600, 100, 0)
	for seq, want := range map[int64]int{1: 1, 499: 1, 500: 3, 599: 3, 600: 4} {
		if n.of(seq) != name(want) {
			t.Errorf("%d: %s", seq, n.of(seq))
		}
	}
	if again, err := parseNonces(string(n.encode())); err != nil || !slices.Equal(again, n) || bytes.Count(n.encode(), []byte("\n")) != 3 {
		t.Errorf("%v, %v", again, err)
	}
	if kept := n.begin(name(5), 700, 100, 650); kept.of(100) != name(1) || len(kept) != 4 {
		t.Errorf("what may be sent has lost its id: %v", kept)
	}
	if kept := n.begin(name(5), 700, 650, 499); kept.of(499) != name(1) || len(kept) != 4 {
		t.Errorf("what is remembered has lost its id: %v", kept)
	}
	kept := n.begin(name(5), 700, 650, 600)
	if kept.of(599) != "" || kept.of(600) != name(4) || len(kept) != 2 {
		t.Errorf("%v", kept)
	}
	if _, ok := parseID(kept, "-1"); ok {
		t.Error("an id without a nonce is none")
	}
	if back := n.begin(name(5), 550, 0, 0); back.of(549) != name(3) || back.of(550) != name(5) || back.of(700) != name(5) {
		t.Errorf("after the journal has lost its end: %v", back)
	}
	for i := range 5000 {
		n = n.begin(name(i), int64(1000+i), int64(1000+i), 0)
	}
	if len(n) != nonceMost {
		t.Errorf("%d are kept", len(n))
	}
	for _, bad := range []string{"", "x", name(1) + " 5", "5 " + name(1) + "\n5 " + name(2), "5 " + name(1) + "\n" + name(2), "-1 " + name(1), "1 abcd"} {
		if n, err := parseNonces(bad); err == nil {
			t.Errorf("%q: %v", bad, n)
		}
	}
}
