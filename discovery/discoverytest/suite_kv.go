package discoverytest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	d "sidestream/discovery"
)

func testKV(t *testing.T, f *fixture) {
	f.absent(t, "a")
	first := f.set(t, "a", "1")
	if got := f.get(t, "a"); got.Key != "a" || string(got.Value) != "1" || got.Version != first.Version ||
		got.Created != first.Version || got.Version == 0 || got.Session != "" {
		t.Fatalf("got %+v, written %+v", got, first)
	}
	second := f.set(t, "a", "2")
	if second.Version <= first.Version || second.Created != first.Created {
		t.Fatalf("second write %+v after %+v", second, first)
	}
	f.value(t, "a", "2")

	f.commit(t, d.Delete("a"))
	f.absent(t, "a")
	third := f.set(t, "a", "3")
	if third.Created <= second.Version {
		t.Fatalf("created anew as %+v after %+v: a key created again needs a higher fencing number", third, second)
	}
	if got := f.commit(t); got != nil {
		t.Fatalf("a commit of nothing wrote %v", got)
	}
}

func testPrefixes(t *testing.T, f *fixture) {
	if es, err := f.store.List(f.ctx, "none/"); err != nil || len(es) != 0 {
		t.Fatalf("list of nothing: %v, %v", es, err)
	}
	for _, key := range []string{"p/b", "p/a/x", "p/c", "p", "pp", "q/a"} {
		f.set(t, key, "of "+key)
	}
	list := func(prefix string, want ...string) {
		t.Helper()
		es, err := f.store.List(f.ctx, prefix)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, e := range es {
			keys = append(keys, e.Key)
			if string(e.Value) != "of "+e.Key {
				t.Errorf("key %q holds %q", e.Key, e.Value)
			}
		}
		if !slices.Equal(keys, want) {
			t.Errorf("under %q: %q, want %q", prefix, keys, want)
		}
	}
	list("p/", "p/a/x", "p/b", "p/c")
	list("p", "p", "p/a/x", "p/b", "p/c", "pp") // a prefix is only text
	list("", "p", "p/a/x", "p/b", "p/c", "pp", "q/a")
	list("p/b", "p/b")
}

func testCAS(t *testing.T, f *fixture) {
	f.commit(t, d.Create("a", []byte("1")))
	f.refused(t, 0, d.Create("a", []byte("2")))
	f.refused(t, 0, d.CAS("missing", []byte("2"), 7))
	v := f.get(t, "a").Version
	f.commit(t, d.CAS("a", []byte("2"), v))
	f.refused(t, 0, d.CAS("a", []byte("3"), v))
	f.refused(t, 0, d.CAS("a", []byte("3"), f.get(t, "a").Version+1))
	f.value(t, "a", "2")
	f.absent(t, "missing")
}

func testIdenticalWrites(t *testing.T, f *fixture) {
	first := f.set(t, "a", "same")
	if again := f.set(t, "a", "same"); again.Version != first.Version {
		t.Fatalf("an identical write moved the version from %d to %d", first.Version, again.Version)
	}
	// Two compare-and-swaps of one version with one value both succeed: the
	// reason why values carry a nonce.
	for range 2 {
		if again := f.commit(t, d.CAS("a", []byte("same"), first.Version)); again[0].Version != first.Version {
			t.Fatalf("an identical CAS moved the version from %d to %d", first.Version, again[0].Version)
		}
	}
	// Only what differs moves.
	f.commit(t, d.Set("a", []byte("same")), d.Set("b", []byte("new")))
	if a, b := f.get(t, "a"), f.get(t, "b"); a.Version != first.Version || b.Version <= first.Version {
		t.Fatalf("versions a %d, b %d after %d", a.Version, b.Version, first.Version)
	}
}

func testDeletes(t *testing.T, f *fixture) {
	f.commit(t, d.Delete("missing"))
	a := f.set(t, "a", "1")
	f.refused(t, 0, d.DeleteCAS("a", a.Version+1))
	f.refused(t, 0, d.DeleteCAS("a", 0))
	f.commit(t, d.DeleteCAS("a", a.Version))
	f.absent(t, "a")
	f.commit(t, d.DeleteCAS("a", a.Version)) // gone already: as asked for

	for _, key := range []string{"p/1", "p/2/x", "p", "q"} {
		f.set(t, key, "x")
	}
	f.commit(t, d.DeletePrefix("p/"), d.DeletePrefix("missing/"))
	f.absent(t, "p/1", "p/2/x")
	f.value(t, "p", "x")
	f.value(t, "q", "x")
}

func testConflictChangesNothing(t *testing.T, f *fixture) {
	f.set(t, "kept", "old")
	f.set(t, "gone", "old")
	f.refused(t, 3,
		d.Set("kept", []byte("new")), d.Delete("gone"), d.Create("made", nil),
		d.Unchanged("kept", 1), d.DeletePrefix(""))
	f.value(t, "kept", "old")
	f.value(t, "gone", "old")
	f.absent(t, "made")
}

func testOpsSeeThoseBefore(t *testing.T, f *fixture) {
	s := f.session(t, f.store)
	f.set(t, "b", "old")
	f.commit(t,
		d.Create("a", []byte("1")), d.Set("a", []byte("2")),
		d.Delete("b"), d.Absent("b"), d.Create("b", []byte("new")),
		d.Set("p/1", nil), d.DeletePrefix("p/"), d.Absent("p/1"),
		d.Acquire("l", []byte("x"), s.ID()), d.Held("l", s.ID()), d.Release("l", s.ID()),
	)
	f.value(t, "a", "2")
	f.value(t, "b", "new")
	f.absent(t, "p/1")
	if l := f.get(t, "l"); l.Session != "" || string(l.Value) != "x" {
		t.Fatalf("released within the commit: %+v", l)
	}
	f.refused(t, 1, d.Set("a", []byte("3")), d.Absent("a"))
}

func testChecks(t *testing.T, f *fixture) {
	a := f.set(t, "a", "1")
	// Checks alone, and before a write.
	f.commit(t, d.Unchanged("a", a.Version), d.Absent("b"))
	f.refused(t, 0, d.Absent("a"))
	f.refused(t, 1, d.Absent("b"), d.Unchanged("a", a.Version+1))
	f.refused(t, 0, d.Unchanged("b", 1))
	f.refused(t, 0, d.Unchanged("b", 0))
	f.refused(t, 0, d.Unchanged("a", 0))
	f.commit(t, d.Unchanged("a", a.Version), d.Absent("b"), d.Set("a", []byte("2")), d.Create("b", nil))
	f.refused(t, 0, d.Unchanged("a", a.Version), d.Set("a", []byte("3")))
	f.refused(t, 0, d.Absent("b"), d.Set("a", []byte("3")))
	f.value(t, "a", "2")
}

func testWrittenEntries(t *testing.T, f *fixture) {
	s := f.session(t, f.store)
	old := f.set(t, "old", "1")
	f.commit(t, d.Acquire("lock", []byte("l"), s.ID()))
	got := f.commit(t,
		d.Held("lock", s.ID()), d.Set("a", []byte("1")), d.Delete("x"), d.Absent("y"),
		d.CAS("old", []byte("2"), old.Version), d.Unchanged("lock", f.get(t, "lock").Version),
		d.DeletePrefix("z/"), d.Acquire("lock", []byte("l2"), s.ID()), d.DeleteCAS("w", 1),
		d.Create("n", nil), d.Release("lock", s.ID()))
	want := []string{"a=1", "old=2", "lock=l2", "n="}
	var have []string
	for _, e := range got {
		have = append(have, fmt.Sprintf("%s=%s", e.Key, e.Value))
		if e.Version != got[0].Version || e.Version == 0 {
			t.Errorf("entry %+v of the same commit as %+v", e, got[0])
		}
	}
	if !slices.Equal(have, want) {
		t.Fatalf("written %q, want %q", have, want)
	}
	if got[1].Created != old.Created || got[3].Created != got[3].Version || got[2].Session != s.ID() {
		t.Fatalf("written %+v", got)
	}
	if e := f.get(t, "old"); e.Version != got[1].Version {
		t.Fatalf("read %+v, written %+v", e, got[1])
	}
}

func testLimits(t *testing.T, f *fixture) {
	ops := make([]d.Op, d.MaxCommitOps)
	size := d.MaxCommitBytes/d.MaxCommitOps - len("k/00")
	for i := range ops {
		ops[i] = d.Set(fmt.Sprintf("k/%02d", i), bytes.Repeat([]byte{0xff, byte(i)}, size/2))
	}
	if got := f.commit(t, ops...); len(got) != d.MaxCommitOps {
		t.Fatalf("%d entries", len(got))
	}
	tooLarge := func(what string, ops ...d.Op) {
		t.Helper()
		if _, err := f.store.Commit(f.ctx, ops...); !errors.Is(err, d.ErrTooLarge) {
			t.Errorf("%s: %v, want ErrTooLarge", what, err)
		}
	}
	tooLarge("one operation more", append(slices.Clone(ops), d.Delete("x"))...)
	tooLarge("more bytes", append(ops[:d.MaxCommitOps-1:d.MaxCommitOps-1], d.Set("k/99", make([]byte, size+64)))...)
	tooLarge("a large value", d.Set("x", make([]byte, d.MaxValueBytes+1)))
	f.absent(t, "x", "k/99")
	f.commit(t, d.Set("x", make([]byte, d.MaxValueBytes-1)))
	if n := len(f.get(t, "x").Value); n != d.MaxValueBytes-1 {
		t.Fatalf("%d bytes came back", n)
	}
}

func testBadOps(t *testing.T, f *fixture) {
	for _, op := range []d.Op{
		d.Set("", nil), d.Set("/a", nil), d.Set("a//b", nil), d.Set("a/", nil), d.Set("a/../b", nil), d.Delete("."),
		d.Acquire("a", nil, ""), d.Held("a", ""), d.Release("a", ""), {Verb: -1, Key: "a"},
	} {
		_, err := f.store.Commit(f.ctx, op)
		if err == nil {
			t.Errorf("%+v was taken", op)
		}
		for _, other := range []error{d.ErrConflict, d.ErrUnavailable, d.ErrUnknownOutcome, d.ErrSessionLost} {
			if errors.Is(err, other) {
				t.Errorf("%+v: %v", op, err)
			}
		}
	}
	for _, key := range []string{"", "/a", "a//b"} {
		if _, err := f.store.Get(f.ctx, key); err == nil || errors.Is(err, d.ErrNotFound) {
			t.Errorf("get %q: %v", key, err)
		}
	}
}

func testBinaryValues(t *testing.T, f *fixture) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	given := bytes.Clone(all)
	f.commit(t, d.Set("all", given), d.Set("empty", []byte{}), d.Set("nil", nil))
	given[0] = 'x' // the store has its own copy
	if got := f.get(t, "all").Value; !bytes.Equal(got, all) {
		t.Fatalf("got % x", got)
	}
	f.value(t, "empty", "")
	f.value(t, "nil", "")
	for _, key := range []string{"with space", "umlaut-ü", "per%20cent", "q?a=b&c#d", "dots...", "a_b.c-d", strings.Repeat("long", 60)} {
		f.set(t, key, "v")
		f.value(t, key, "v")
		if es, err := f.store.List(f.ctx, key); err != nil || len(es) != 1 || es[0].Key != key {
			t.Errorf("list %q: %v, %v", key, es, err)
		}
	}
}

// testAtomicUnderContention moves units between two keys from several clients;
// none may be lost or made.
func testAtomicUnderContention(t *testing.T, f *fixture) {
	const writers, moves, units = 4, 10, 1000
	enc := func(n uint32, writer, move int) []byte {
		return fmt.Appendf(binary.BigEndian.AppendUint32(nil, n), "by %d/%d", writer, move)
	}
	f.commit(t, d.Create("left", enc(units, -1, 0)), d.Create("right", enc(0, -1, 0)))
	var wg sync.WaitGroup
	for w := range writers {
		store := open(t, f.Harness)
		wg.Go(func() {
			for move := 0; move < moves; {
				left, err1 := store.Get(f.ctx, "left")
				right, err2 := store.Get(f.ctx, "right")
				if err := errors.Join(err1, err2); err != nil {
					t.Error(err)
					return
				}
				l, r := binary.BigEndian.Uint32(left.Value), binary.BigEndian.Uint32(right.Value)
				_, err := store.Commit(f.ctx,
					d.CAS("left", enc(l-1, w, move), left.Version), d.CAS("right", enc(r+1, w, move), right.Version))
				switch {
				case err == nil:
					move++
				case !errors.Is(err, d.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	l := binary.BigEndian.Uint32(f.get(t, "left").Value)
	r := binary.BigEndian.Uint32(f.get(t, "right").Value)
	if l != units-writers*moves || r != writers*moves {
		t.Fatalf("left %d, right %d after %d moves", l, r, writers*moves)
	}
}
