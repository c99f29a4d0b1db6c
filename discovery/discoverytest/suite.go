// Package discoverytest holds one conformance suite for every implementation
// of discovery.Store, and runs a real Consul for tests.
package discoverytest

import (
	"context"
	"errors"
	"testing"
	"time"

	"sidestream/discovery"
)

// Harness is an empty store to be tested.
type Harness struct {
	// Open makes one more client of the store, as another process would. The
	// suite closes it; its sessions and services are left to expire then.
	Open func(t *testing.T) discovery.Store
	// OpenOther makes a client of another cluster in the same store, whose name
	// begins with that of Open's.
	OpenOther func(t *testing.T) discovery.Store
	// SessionTTL and CheckTTL are those of the store. Tests wait for them: keep
	// them about a second.
	SessionTTL, CheckTTL time.Duration
	// Down makes the store unreachable until up is called. Nothing else may
	// use the store meanwhile.
	Down func(t *testing.T) (up func())
	// Wipe empties the store as if its data were lost.
	Wipe func(t *testing.T)
}

// patience is how long the suite waits for what must happen. It is not a
// measure: machines may be slow.
const patience = 60 * time.Second

// Run runs the suite. newStore makes an empty store for each test; tests run in
// parallel. newOwn makes one whose Down and Wipe harm no other.
func Run(t *testing.T, newStore, newOwn func(t *testing.T) Harness) {
	shared := []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"KV", testKV},
		{"Prefixes", testPrefixes},
		{"CAS", testCAS},
		{"IdenticalWrites", testIdenticalWrites},
		{"Deletes", testDeletes},
		{"ConflictChangesNothing", testConflictChangesNothing},
		{"OpsSeeThoseBefore", testOpsSeeThoseBefore},
		{"Checks", testChecks},
		{"WrittenEntries", testWrittenEntries},
		{"Limits", testLimits},
		{"BadOps", testBadOps},
		{"Binary", testBinaryValues},
		{"AtomicUnderContention", testAtomicUnderContention},
		{"Locks", testLocks},
		{"LockRace", testLockRace},
		{"ReleaseKeepsValue", testReleaseKeepsValue},
		{"TakeOverAtOnce", testTakeOverAtOnce},
		{"DestroyedSession", testDestroyedSession},
		{"DestroyedDuringCommits", testDestroyedDuringCommits},
		{"SessionRenews", testSessionRenews},
		{"SessionExpires", testSessionExpires},
		{"ClosedStore", testClosedStore},
		{"EndedContext", testEndedContext},
		{"Claim", testClaim},
		{"WatchWakes", testWatchWakes},
		{"WatchIsBlocking", testWatchIsBlocking},
		{"WatchEmpty", testWatchEmpty},
		{"WatchEphemeral", testWatchEphemeral},
		{"WatchCommitOnce", testWatchCommitOnce},
		{"ManyWatchers", testManyWatchers},
		{"Follow", testFollow},
		{"Services", testServices},
		{"ServiceTurnsCritical", testServiceTurnsCritical},
		{"ServiceAgainAfterDeregister", testServiceAgain},
		{"Suspects", testSuspects},
		{"Clusters", testClusters},
	}
	// The group ends when its parallel tests have.
	t.Run("shared", func(t *testing.T) {
		for _, c := range shared {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, newFixture(t, newStore(t)))
			})
		}
	})
	for _, c := range []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"Outage", testOutage},
		{"Wipe", testWipe},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newFixture(t, newOwn(t))) })
	}
}

// fixture is what each test works with.
type fixture struct {
	Harness
	ctx   context.Context
	store discovery.Store // a first client
}

func newFixture(t *testing.T, h Harness) *fixture {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return &fixture{Harness: h, ctx: ctx, store: open(t, h)}
}

// open makes a client that is closed with the test.
func open(t *testing.T, h Harness) discovery.Store {
	t.Helper()
	s := h.Open(t)
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t *testing.T, s discovery.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("closing the store: %v", err)
	}
}

func (f *fixture) commit(t *testing.T, ops ...discovery.Op) []discovery.Entry {
	t.Helper()
	entries, err := f.store.Commit(f.ctx, ops...)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return entries
}

func (f *fixture) set(t *testing.T, key, value string) discovery.Entry {
	t.Helper()
	return f.commit(t, discovery.Set(key, []byte(value)))[0]
}

func (f *fixture) get(t *testing.T, key string) discovery.Entry {
	t.Helper()
	e, err := f.store.Get(f.ctx, key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return e
}

func (f *fixture) value(t *testing.T, key, want string) {
	t.Helper()
	if e := f.get(t, key); string(e.Value) != want {
		t.Fatalf("key %q holds %q, want %q", key, e.Value, want)
	}
}

func (f *fixture) absent(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if e, err := f.store.Get(f.ctx, key); !errors.Is(err, discovery.ErrNotFound) {
			t.Fatalf("get %q: %q, %v, want ErrNotFound", key, e.Value, err)
		}
	}
}

// refused wants a conflict in the op of that index.
func (f *fixture) refused(t *testing.T, op int, ops ...discovery.Op) {
	t.Helper()
	_, err := f.store.Commit(f.ctx, ops...)
	var conflict *discovery.ConflictError
	if !errors.Is(err, discovery.ErrConflict) || !errors.As(err, &conflict) {
		t.Fatalf("commit: %v, want a conflict", err)
	}
	if conflict.Op != op {
		t.Fatalf("conflict in operation %d (%s), want %d", conflict.Op, conflict.What, op)
	}
}

func (f *fixture) session(t *testing.T, store discovery.Store) discovery.Session {
	t.Helper()
	s, err := store.NewSession(f.ctx, t.Name())
	if err != nil {
		t.Fatalf("new session: %v", err)
	}
	return s
}

// eventually tries until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", patience, what)
}

// await waits for a channel.
func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s", patience, what)
	}
}
