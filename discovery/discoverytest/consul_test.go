package discoverytest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/discovery/discoverytest"
)

// A Consul that pauses hangs every call and answers none. Nothing may hang with
// it, no session may be called lost, and all goes on when it wakes.
func TestConsulPauses(t *testing.T) {
	consul := discoverytest.Start(t, "")
	cfg := consul.Config("main")
	cfg.SessionTTL, cfg.CheckTTL = 5*time.Second, 2*time.Second
	store, err := discovery.NewConsul(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := store.NewSession(ctx, "paused")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(ctx, discovery.Acquire("l", nil, s.ID())); err != nil {
		t.Fatal(err)
	}
	r, err := store.Register(ctx, discovery.Service{ID: "p-1", Name: "p"})
	if err != nil {
		t.Fatal(err)
	}

	consul.Pause()
	start := time.Now()
	short, cancelShort := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancelShort()
	if _, err := store.Commit(short, discovery.Set("x", nil)); !errors.Is(err, discovery.ErrUnknownOutcome) {
		t.Errorf("commit: %v, want ErrUnknownOutcome", err)
	}
	for s.Ownership() == discovery.Proven {
		time.Sleep(10 * time.Millisecond)
	}
	// Its own timer ends the session at twice the TTL: a slow machine may pause
	// it for longer than was meant.
	t.Logf("paused for %s", time.Since(start))
	if s.Ownership() != discovery.Unproven {
		t.Errorf("ownership %s in a pause", s.Ownership())
	}
	consul.Resume()
	for s.Ownership() == discovery.Unproven && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if s.Ownership() != discovery.Proven {
		t.Fatalf("ownership %s after the pause", s.Ownership())
	}
	if _, err := store.Commit(ctx, discovery.Held("l", s.ID()), discovery.Set("x", []byte("after"))); err != nil {
		t.Fatal(err)
	}
	if gap := r.LongestGap(time.Hour); gap < discovery.GapLimit {
		t.Errorf("longest gap %s over a pause", gap)
	}
	if err := errors.Join(r.Deregister(ctx), s.Destroy(ctx)); err != nil {
		t.Fatal(err)
	}
}

func TestConsulACL(t *testing.T) {
	const token = "0b8d1e36-7c0a-4c0d-9d53-7a3c2a4c1d11"
	consul := discoverytest.Start(t, "", discoverytest.WithACL(token))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		token string
		ok    bool
	}{{token, true}, {"", false}, {discovery.NewUUID(), false}} {
		cfg := consul.Config("main")
		cfg.Token = c.token
		store, err := discovery.NewConsul(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, sessionErr := store.NewSession(ctx, "x")
		_, setErr := store.Commit(ctx, discovery.Set("a", fmt.Append(nil, c.token)))
		_, checkErr := store.Commit(ctx, discovery.Unchanged("a", 1))
		_, registerErr := store.Register(ctx, discovery.Service{ID: "a-1", Name: "a"})
		for what, err := range map[string]error{"session": sessionErr, "set": setErr, "register": registerErr} {
			if c.ok && err != nil || !c.ok && err == nil {
				t.Errorf("token %q, %s: %v", c.token, what, err)
			}
		}
		if !c.ok {
			for _, err := range []error{sessionErr, setErr, checkErr, registerErr} {
				// To wait or to read again would not help.
				for _, wrong := range []error{discovery.ErrUnavailable, discovery.ErrUnknownOutcome, discovery.ErrConflict, discovery.ErrSessionLost} {
					if errors.Is(err, wrong) {
						t.Errorf("token %q: %v", c.token, err)
					}
				}
			}
		} else if err := s.Destroy(ctx); err != nil {
			t.Error(err)
		}
		store.Close()
	}
}

// A Consul that was killed and started again has a leader before it has
// replayed its log. Nothing may take what it does not know yet for gone: no
// watcher may see keys missing, no session be called lost.
func TestConsulRestarts(t *testing.T) {
	consul := discoverytest.Start(t, t.TempDir())
	addr := consul.Addr()
	cfg := consul.Config("main")
	cfg.SessionTTL = 10 * time.Second
	store, err := discovery.NewConsul(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := store.NewSession(ctx, "restarts")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(ctx, discovery.Acquire("p/lock", nil, s.ID()), discovery.Set("p/a", nil)); err != nil {
		t.Fatal(err)
	}
	for i := range 500 { // a log that takes a moment to replay
		if _, err := store.Commit(ctx, discovery.Set("busy", fmt.Append(nil, i))); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	following, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop() // before the wait
	for range 4 {
		wg.Go(func() {
			discovery.Follow(following, store, "p/", func(es []discovery.Entry) {
				if len(es) != 2 {
					t.Errorf("a watcher saw %d of 2 keys", len(es))
				}
			})
		})
	}
	for range 3 {
		consul.Restart()
		if consul.Addr() != addr {
			t.Fatalf("moved from %s to %s", addr, consul.Addr())
		}
		if _, err := store.Commit(ctx, discovery.Held("p/lock", s.ID()), discovery.Set("busy", nil)); err != nil {
			// A connection that died with Consul is no proof of anything.
			if !errors.Is(err, discovery.ErrUnknownOutcome) {
				t.Fatal(err)
			}
		}
		if s.Ownership() == discovery.Lost {
			t.Fatal("the session is called lost")
		}
	}
	// The last word on the session is that of a renewal after the restarts.
	for renewed := s.Age(); s.Age() >= renewed && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		renewed = s.Age()
	}
	if s.Ownership() != discovery.Proven {
		t.Fatalf("ownership %s after the restarts", s.Ownership())
	}
	stop()
	wg.Wait()
	if err := s.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
}

// The Consul agent of one host pauses: what runs there is alive and cannot say
// so. Its check does not turn critical meanwhile, for the paused agent runs it,
// but the servers find the node gone. Its session outlives that, and nobody may
// end it by suspicion.
func TestConsulAgentOfAHostPauses(t *testing.T) {
	server := discoverytest.Start(t, "")
	host := server.Join(t, "", "host")
	open := func(c *discoverytest.Consul) discovery.Store {
		cfg := c.Config("main")
		cfg.SessionTTL, cfg.CheckTTL = 10*time.Second, 3*time.Second
		store, err := discovery.NewConsul(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	paused, other := open(host), open(server)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := paused.NewSession(ctx, "paused")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := paused.Commit(ctx, discovery.Acquire("l", nil, s.ID())); err != nil {
		t.Fatal(err)
	}
	if _, err := paused.Register(ctx, discovery.Service{ID: "p-1", Name: "p"}); err != nil {
		t.Fatal(err)
	}
	judge, err := other.Register(ctx, discovery.Service{ID: "judge", Name: "judge"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	judging, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop()
	holder := discovery.Holder{Service: "p-1", Session: s.ID()}
	wg.Go(func() {
		_ = discovery.FollowSuspects(judging, other, "p", judge,
			func() []discovery.Holder { return []discovery.Holder{holder} },
			func(_ context.Context, suspects []discovery.Holder) { t.Errorf("suspected: %v", suspects) })
	})
	time.Sleep(discovery.GapWindow) // until then the judge's own beats had a gap

	host.Pause()
	began, critical := time.Now(), time.Duration(0)
	for time.Since(began) < 10*time.Second {
		in, _, err := other.WatchServices(ctx, "p", 0)
		if err != nil {
			t.Fatal(err)
		}
		if critical == 0 && len(in) == 1 && !in[0].Passing {
			critical = time.Since(began)
		}
		time.Sleep(100 * time.Millisecond)
	}
	host.Resume()
	t.Logf("critical %v after the pause began (0: never)", critical)
	time.Sleep(2 * discovery.SuspectAfter) // whoever would suspect it has done so by now
	for renewed := s.Age(); s.Age() >= renewed && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		renewed = s.Age()
	}
	if s.Ownership() != discovery.Proven {
		t.Errorf("ownership %s after the pause", s.Ownership())
	}
	if e, err := other.Get(ctx, "l"); err != nil || e.Session != s.ID() {
		t.Errorf("the lock is %+v, %v", e, err)
	}
}
