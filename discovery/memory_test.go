package discovery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	d "sidestream/discovery"
)

func session(t *testing.T, s d.Store) d.Session {
	t.Helper()
	sess, err := s.NewSession(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return sess
}

func commit(t *testing.T, s d.Store, ops ...d.Op) []d.Entry {
	t.Helper()
	entries, err := s.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func has(t *testing.T, s d.Store, key string) bool {
	t.Helper()
	_, err := s.Get(t.Context(), key)
	if err != nil && !errors.Is(err, d.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func TestMemorySessionEndsTwoTTLsAfterItsLastRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		c := m.Client()
		s := session(t, c)
		commit(t, m, d.Acquire("l", nil, s.ID()))
		time.Sleep(time.Hour) // renewed all the time
		synctest.Wait()
		if s.Ownership() != d.Proven || s.Age() >= 3*time.Second || !has(t, m, "l") {
			t.Fatalf("ownership %s, age %s after an hour", s.Ownership(), s.Age())
		}
		c.FreezeRenewals(true)
		last := s.Age()
		time.Sleep(d.DefaultSessionTTL - last - 1)
		if s.Ownership() != d.Proven {
			t.Fatalf("%s just before one TTL", s.Ownership())
		}
		time.Sleep(time.Nanosecond)
		if s.Ownership() != d.Unproven {
			t.Fatalf("%s after one TTL", s.Ownership())
		}
		time.Sleep(d.DefaultSessionTTL - 1)
		synctest.Wait()
		if !has(t, m, "l") {
			t.Fatal("ended before two TTLs")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if has(t, m, "l") {
			t.Fatal("did not end after two TTLs")
		}
		if s.Ownership() != d.Unproven {
			t.Fatalf("%s though the store said nothing", s.Ownership())
		}
		c.FreezeRenewals(false)
		<-s.Lost()
		if s.Ownership() != d.Lost {
			t.Fatalf("%s after the store said so", s.Ownership())
		}
	})
}

func TestMemoryCheckTurnsCriticalAfterOneTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		c := m.Client()
		r, err := c.Register(t.Context(), d.Service{ID: "a-1", Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		passing := func() bool {
			synctest.Wait()
			ins, _, err := m.WatchServices(t.Context(), "a", 0)
			if err != nil || len(ins) != 1 {
				t.Fatalf("services %v, %v", ins, err)
			}
			return ins[0].Passing
		}
		time.Sleep(time.Minute)
		if gap := r.LongestGap(d.GapWindow); !passing() || gap != time.Second {
			t.Fatalf("longest gap %s with a beat each second", gap)
		}
		c.SetCut(true)
		time.Sleep(d.DefaultCheckTTL - 1)
		if !passing() {
			t.Fatal("critical before one TTL")
		}
		time.Sleep(time.Nanosecond)
		if passing() {
			t.Fatal("passing after one TTL")
		}
		if gap := r.LongestGap(d.GapWindow); gap != d.DefaultCheckTTL {
			t.Fatalf("longest gap %s", gap)
		}
		c.SetCut(false)
		time.Sleep(time.Second)
		if !passing() {
			t.Fatal("critical after a beat")
		}
	})
}

func TestMemoryOutageExpiresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		kept, crashed := session(t, m), m.Client()
		gone := session(t, crashed)
		commit(t, m, d.Acquire("kept", nil, kept.ID()), d.Acquire("gone", nil, gone.ID()))
		crashed.Close()
		m.SetDown(true)
		time.Sleep(time.Hour)
		if kept.Ownership() != d.Unproven {
			t.Fatalf("%s in an outage", kept.Ownership())
		}
		if _, err := m.Commit(t.Context(), d.Set("x", nil)); !errors.Is(err, d.ErrUnavailable) {
			t.Fatal(err)
		}
		m.SetDown(false)
		if !has(t, m, "gone") {
			t.Fatal("a session ended in the outage")
		}
		time.Sleep(2*d.DefaultSessionTTL + 1)
		synctest.Wait()
		if has(t, m, "gone") || !has(t, m, "kept") || kept.Ownership() != d.Proven {
			t.Fatal("after the outage every timer starts again in full")
		}
	})
}

// One client that is cut off loses its sessions; the others go on.
func TestMemoryCutClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		c := m.Client()
		s := session(t, c)
		commit(t, c, d.Acquire("l", nil, s.ID()))
		_, index, err := c.Watch(t.Context(), "l", 0)
		if err != nil {
			t.Fatal(err)
		}
		watched := make(chan error, 1)
		go func() {
			_, _, err := c.Watch(t.Context(), "l", index)
			watched <- err
		}()
		synctest.Wait()
		c.SetCut(true)
		if err := <-watched; !errors.Is(err, d.ErrUnavailable) {
			t.Fatalf("a watch in flight: %v", err)
		}
		if _, err := c.Get(t.Context(), "l"); !errors.Is(err, d.ErrUnavailable) {
			t.Fatal(err)
		}
		if !has(t, m, "l") {
			t.Fatal("gone at once")
		}
		time.Sleep(2 * d.DefaultSessionTTL)
		synctest.Wait()
		if has(t, m, "l") {
			t.Fatal("a session outlived its holder")
		}
		c.SetCut(false)
		<-s.Lost()
	})
}

func TestMemoryLosesReplies(t *testing.T) {
	m := newMemory(t)
	m.LoseReplies(2)
	for _, value := range []string{"1", "2"} {
		if _, err := m.Commit(t.Context(), d.Set("a", []byte(value))); !errors.Is(err, d.ErrUnknownOutcome) {
			t.Fatal(err)
		}
	}
	if e, err := m.Get(t.Context(), "a"); err != nil || string(e.Value) != "2" {
		t.Fatalf("%q, %v", e.Value, err)
	}
	commit(t, m, d.Set("a", []byte("3")))
}

// A watcher that comes back with an index older than what the store remembers,
// or from another history, is answered at once.
func TestMemoryWatchFromAfar(t *testing.T) {
	m := newMemory(t)
	commit(t, m, d.Set("quiet", nil))
	_, index, err := m.Watch(t.Context(), "quiet", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20000 {
		commit(t, m, d.Set("busy", fmt.Append(nil, i)))
	}
	for _, from := range []uint64{index, 1 << 40} {
		es, next, err := m.Watch(t.Context(), "quiet", from)
		if err != nil || len(es) != 1 || next < index || next == from {
			t.Fatalf("from %d: %v, %d, %v", from, es, next, err)
		}
	}
}

func TestMemorySnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "discovery.json")
	openAt := func() *d.Memory {
		t.Helper()
		m, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	m := openAt()
	s := session(t, m)
	commit(t, m, d.Set("kept", []byte{0, 0xff}), d.Set("deleted", nil), d.Acquire("eph", nil, s.ID()), d.Acquire("released", []byte("r"), s.ID()))
	commit(t, m, d.Delete("deleted"), d.Release("released", s.ID()))
	kept, err := m.Get(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	var last d.Entry
	for i := range 10 { // ephemeral changes, after which nothing is written
		last = commit(t, m, d.Acquire("eph", fmt.Append(nil, i), s.ID()))[0]
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()

	m = openAt()
	again, err := m.List(t.Context(), "")
	if err != nil || len(again) != 2 || again[0].Key != "kept" || again[1].Key != "released" {
		t.Fatalf("after a restart: %v, %v", again, err)
	}
	if again[0].Version != kept.Version || again[0].Created != kept.Created || string(again[0].Value) != "\x00\xff" || again[1].Session != "" {
		t.Fatalf("after a restart %+v, before %+v", again, kept)
	}
	if after, err := os.Stat(path); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Fatalf("reading wrote the snapshot: %v, %v", after, err)
	}
	s = session(t, m)
	if next := commit(t, m, d.Acquire("eph", nil, s.ID()))[0]; next.Created <= last.Version {
		t.Fatalf("fencing number %d after %d: given before the restart", next.Created, last.Version)
	}
	m.Close()

	if err := os.WriteFile(path, []byte(`{"format":1,"keys":[{"key`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path}); err == nil {
		t.Fatal("a damaged snapshot was taken for an empty one")
	}
	if err := os.WriteFile(path, []byte(`{"format":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path}); err == nil {
		t.Fatal("a snapshot of another format was read")
	}
}

func TestMemorySnapshotCommitsTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "discovery.json")
	m, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 10 {
				key := fmt.Sprintf("%d/%d", w, i)
				if _, err := m.Commit(t.Context(), d.Create(key, []byte(key))); err != nil {
					t.Error(err)
					return
				}
				// Durable: a second store reads it from the file now.
				if i == 9 {
					copied, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path})
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := copied.Get(t.Context(), key); err != nil {
						t.Errorf("%q is not in the file: %v", key, err)
					}
					copied.Close()
				}
			}
		})
	}
	wg.Wait()
}

func TestMemorySnapshotThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	m, err := d.NewMemory(d.MemoryOptions{SnapshotPath: filepath.Join(dir, "s.json")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	commit(t, m, d.Set("a", nil))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Commit(t.Context(), d.Set("b", nil)); !errors.Is(err, d.ErrUnknownOutcome) {
		t.Fatalf("commit: %v, want ErrUnknownOutcome", err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	commit(t, m, d.Set("c", nil))
}
