package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	d "sidestream/discovery"
)

func testLocks(t *testing.T, f *fixture) {
	a, b := f.session(t, f.store), f.session(t, open(t, f.Harness))
	if a.ID() == b.ID() || a.Ownership() != d.Proven {
		t.Fatalf("sessions %q and %q, ownership %s", a.ID(), b.ID(), a.Ownership())
	}
	held := f.commit(t, d.Acquire("l", []byte("a1"), a.ID()))[0]
	if got := f.get(t, "l"); got.Session != a.ID() || got.Version != held.Version || held.Session != a.ID() {
		t.Fatalf("got %+v, written %+v", got, held)
	}
	f.refused(t, 0, d.Acquire("l", []byte("b"), b.ID()))
	f.refused(t, 0, d.Held("l", b.ID()))
	f.refused(t, 0, d.Held("l", b.ID()), d.Set("x", nil))
	f.refused(t, 0, d.Held("missing", a.ID()))
	f.refused(t, 0, d.Release("l", b.ID()))
	f.refused(t, 0, d.Release("missing", a.ID()))
	f.commit(t, d.Held("l", a.ID()))
	f.commit(t, d.Held("l", a.ID()), d.Set("x", []byte("by a")))

	// Again by the holder: a write that keeps the lock and its fencing number.
	again := f.commit(t, d.Acquire("l", []byte("a2"), a.ID()))[0]
	if again.Created != held.Created || again.Version <= held.Version || again.Session != a.ID() {
		t.Fatalf("acquired again as %+v after %+v", again, held)
	}
	// Locks are advisory: a plain write goes through and keeps the lock.
	f.commit(t, d.CAS("l", []byte("plain"), again.Version))
	if got := f.get(t, "l"); got.Session != a.ID() || string(got.Value) != "plain" {
		t.Fatalf("after a plain write: %+v", got)
	}
	// A handover: check and delete in one commit, then the other creates.
	f.commit(t, d.Held("l", a.ID()), d.Delete("l"))
	taken := f.commit(t, d.Acquire("l", []byte("b"), b.ID()))[0]
	if taken.Created <= again.Version {
		t.Fatalf("taken as %+v after %+v", taken, again)
	}
	f.refused(t, 0, d.Held("l", a.ID()), d.Set("x", []byte("late")))
	f.value(t, "x", "by a")

	// A key that exists without a holder can be locked.
	f.set(t, "plain", "v")
	f.commit(t, d.Acquire("plain", []byte("v"), a.ID()))
	if got := f.get(t, "plain"); got.Session != a.ID() {
		t.Fatalf("locked with the value that it had: %+v", got)
	}
	if _, err := f.store.Commit(f.ctx, d.Acquire("other", nil, d.NewUUID())); !errors.Is(err, d.ErrSessionLost) {
		t.Fatalf("acquired with no session: %v, want ErrSessionLost", err)
	}
	f.refused(t, 0, d.Held("l", d.NewUUID()))
}

func testLockRace(t *testing.T, f *fixture) {
	const racers = 6
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range racers {
		store := open(t, f.Harness)
		s := f.session(t, store)
		wg.Go(func() {
			_, err := store.Commit(f.ctx, d.Acquire("l", fmt.Append(nil, i), s.ID()), d.Create("winner", fmt.Append(nil, i)))
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, d.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d of %d won", won.Load(), racers)
	}
	if l, w := f.get(t, "l"), f.get(t, "winner"); string(l.Value) != string(w.Value) {
		t.Fatalf("locked by %s, won by %s", l.Value, w.Value)
	}
}

func testReleaseKeepsValue(t *testing.T, f *fixture) {
	a, b := f.session(t, f.store), f.session(t, f.store)
	f.commit(t, d.Acquire("l", []byte("kept"), a.ID()))
	f.refused(t, 1, d.Set("x", nil), d.Release("l", b.ID()))
	f.absent(t, "x")
	f.commit(t, d.Set("x", nil), d.Release("l", a.ID()))
	if got := f.get(t, "l"); got.Session != "" || string(got.Value) != "kept" {
		t.Fatalf("released: %+v", got)
	}
	f.refused(t, 0, d.Release("l", a.ID()))
	f.commit(t, d.Acquire("l", []byte("b"), b.ID()))
	// What was released in time outlives the session.
	f.commit(t, d.Release("l", b.ID()))
	if err := b.Destroy(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.value(t, "l", "b")
}

// testTakeOverAtOnce: the end of a session leaves no time in which its keys
// cannot be taken, however quick the taker is.
func testTakeOverAtOnce(t *testing.T, f *fixture) {
	taker := f.session(t, f.store)
	for i := range 5 {
		s := f.session(t, f.store)
		f.commit(t, d.Acquire("l", fmt.Append(nil, i), s.ID()))
		if err := s.Destroy(f.ctx); err != nil {
			t.Fatal(err)
		}
		f.commit(t, d.Acquire("l", []byte("taken"), taker.ID()))
		f.commit(t, d.Held("l", taker.ID()), d.Delete("l"))
	}
}

func testDestroyedSession(t *testing.T, f *fixture) {
	other := open(t, f.Harness)
	a, b := f.session(t, f.store), f.session(t, f.store)
	f.set(t, "plain", "stays")
	f.commit(t, d.Acquire("eph/1", nil, a.ID()), d.Acquire("eph/2", nil, a.ID()), d.Acquire("eph/3", nil, b.ID()))

	// Another ends it, as suspicion does; the holder learns it by itself.
	if err := other.DestroySession(f.ctx, a.ID()); err != nil {
		t.Fatal(err)
	}
	f.absent(t, "eph/1", "eph/2")
	f.get(t, "eph/3")
	f.value(t, "plain", "stays")
	await(t, "the holder hears that its session is lost", a.Lost())
	if a.Ownership() != d.Lost {
		t.Fatalf("ownership %s, want lost", a.Ownership())
	}
	if _, err := f.store.Commit(f.ctx, d.Acquire("eph/1", nil, a.ID()), d.Set("x", nil)); !errors.Is(err, d.ErrSessionLost) {
		t.Fatalf("acquired with a lost session: %v", err)
	}
	f.absent(t, "x")
	f.refused(t, 0, d.Held("eph/1", a.ID()), d.Set("x", nil))
	for range 2 { // gone is as asked for
		if err := other.DestroySession(f.ctx, a.ID()); err != nil {
			t.Fatal(err)
		}
		if err := a.Destroy(f.ctx); err != nil {
			t.Fatal(err)
		}
	}

	select {
	case <-b.Lost():
		t.Fatal("the other session was lost too")
	default:
	}
	for range 2 {
		if err := b.Destroy(f.ctx); err != nil {
			t.Fatal(err)
		}
	}
	f.absent(t, "eph/3")
	await(t, "Lost after Destroy", b.Lost())
	if b.Ownership() != d.Lost {
		t.Fatalf("ownership %s after Destroy, want lost", b.Ownership())
	}
	if err := other.DestroySession(f.ctx, d.NewUUID()); err != nil {
		t.Fatalf("destroying one that never was: %v", err)
	}
}

// testDestroyedDuringCommits: once the session is gone no commit that checks
// for it may land, however the two race.
func testDestroyedDuringCommits(t *testing.T, f *fixture) {
	other := open(t, f.Harness)
	s := f.session(t, f.store)
	f.commit(t, d.Acquire("l", nil, s.ID()), d.Set("n", []byte("start")))
	done := make(chan struct{})
	committed := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			_, err := f.store.Commit(f.ctx, d.Held("l", s.ID()), d.Set("n", fmt.Append(nil, i)))
			if errors.Is(err, d.ErrConflict) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i == 3 {
				close(committed)
			}
		}
	}()
	await(t, "some commits", committed)
	if err := other.DestroySession(f.ctx, s.ID()); err != nil {
		t.Fatal(err)
	}
	at := f.get(t, "n").Version
	await(t, "the commits are refused", done)
	if got := f.get(t, "n"); got.Version != at {
		t.Fatalf("version %d after the session was destroyed at %d", got.Version, at)
	}
}

func testSessionRenews(t *testing.T, f *fixture) {
	s := f.session(t, f.store)
	f.commit(t, d.Acquire("l", nil, s.ID()))
	for end := time.Now().Add(3 * f.SessionTTL); time.Now().Before(end); time.Sleep(f.SessionTTL / 10) {
		if s.Ownership() == d.Lost {
			t.Fatal("lost a session that is renewed")
		}
	}
	f.commit(t, d.Held("l", s.ID()))
	eventually(t, "a young renewal", func() bool { return s.Age() < f.SessionTTL && s.Ownership() == d.Proven })
}

func testSessionExpires(t *testing.T, f *fixture) {
	crashing := f.Open(t)
	s := f.session(t, crashing)
	f.commit(t, d.Acquire("l", nil, s.ID()), d.Set("plain", nil))
	start := time.Now()
	closeStore(t, crashing) // stops the renewals and destroys nothing
	f.get(t, "l")
	eventually(t, "its own clock says unproven", func() bool { return s.Ownership() == d.Unproven })
	eventually(t, "the key of the crashed one is deleted", func() bool {
		_, err := f.store.Get(f.ctx, "l")
		return errors.Is(err, d.ErrNotFound)
	})
	if took := time.Since(start); took < f.SessionTTL {
		t.Fatalf("expired %s after the renewals stopped, before one TTL (%s)", took, f.SessionTTL)
	}
	if s.Ownership() != d.Unproven {
		t.Fatalf("ownership %s without word from the store, want unproven", s.Ownership())
	}
	f.value(t, "plain", "")
	f.refused(t, 0, d.Held("l", s.ID()), d.Set("late", nil))
}

func testClosedStore(t *testing.T, f *fixture) {
	s := f.Open(t)
	watching := make(chan error, 1)
	_, index, err := s.Watch(f.ctx, "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _, err := s.WatchServices(f.ctx, "none", 0)
		if err == nil {
			_, _, err = s.Watch(f.ctx, "a", index)
		}
		watching <- err
	}()
	closeStore(t, s)
	if _, err := s.NewSession(f.ctx, "late"); err == nil {
		t.Error("a closed store made a session")
	}
	if _, err := s.Register(f.ctx, d.Service{ID: d.NewUUID(), Name: d.NewUUID()}); err == nil {
		t.Error("a closed store registered a service")
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	select {
	case <-watching:
	case <-time.After(patience):
		t.Error("a watch outlived its store")
	}
}

func testEndedContext(t *testing.T, f *fixture) {
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	if _, err := f.store.Commit(ended, d.Set("a", nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	f.absent(t, "a")
	if _, err := f.store.Get(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	if _, err := f.store.List(ended, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
	if _, err := f.store.NewSession(ended, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("session: %v", err)
	}
	_, index, err := f.store.Watch(f.ctx, "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(f.ctx, 50*time.Millisecond)
	defer cancel()
	// Consul wakes the watch of a prefix without keys at whatever others write.
	for err == nil {
		_, index, err = f.store.Watch(soon, "a", index)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("watch: %v", err)
	}
}

func testClaim(t *testing.T, f *fixture) {
	value := func(s d.Session, nonce string) []byte {
		return d.Encode(d.Sidecar{ID: "1", Nonce: nonce, Session: s.ID()})
	}
	key := d.KeySidecar("1")
	first := f.session(t, f.store)
	if err := d.ClaimID(f.ctx, f.store, first, key, value(first, "mine"), "mine"); err != nil {
		t.Fatal(err)
	}
	// The copy of a folder on another host.
	foreign := f.session(t, open(t, f.Harness))
	if err := d.ClaimID(f.ctx, f.store, foreign, key, value(foreign, "other"), "other"); !errors.Is(err, d.ErrIDTaken) {
		t.Fatalf("claimed with another nonce: %v, want ErrIDTaken", err)
	}
	// The next life of the same folder takes over though the first still lives.
	next := open(t, f.Harness)
	second := f.session(t, next)
	if err := d.ClaimID(f.ctx, next, second, key, value(second, "mine"), "mine"); err != nil {
		t.Fatal(err)
	}
	if got := f.get(t, key); got.Session != second.ID() {
		t.Fatalf("held by %s, want %s", got.Session, second.ID())
	}
	await(t, "the first life hears that it is over", first.Lost())
	// Again by the same session, as after a lost reply.
	if err := d.ClaimID(f.ctx, next, second, key, value(second, "mine"), "mine"); err != nil {
		t.Fatal(err)
	}
	if err := d.ClaimID(f.ctx, f.store, first, key, value(first, "mine"), "mine"); !errors.Is(err, d.ErrSessionLost) {
		t.Fatalf("claimed with a lost session: %v", err)
	}
}
