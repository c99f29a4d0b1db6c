package discoverytest_test

import (
	"context"
	"errors"
	"fmt"
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
	if took := time.Since(start); took > 4*time.Second {
		// Its own timer would end the session at twice the TTL.
		t.Logf("paused for %s", took)
	}
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

// Consul survives a kill with its content, as the tests of others rely on.
func TestConsulRestart(t *testing.T) {
	consul := discoverytest.Start(t, t.TempDir())
	addr := consul.Addr()
	store, err := discovery.NewConsul(consul.Config("main"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	written, err := store.Commit(ctx, discovery.Set("a", []byte("kept")))
	if err != nil {
		t.Fatal(err)
	}
	consul.Restart()
	if consul.Addr() != addr {
		t.Fatalf("moved from %s to %s", addr, consul.Addr())
	}
	got, err := store.Get(ctx, "a")
	if err != nil || got.Version != written[0].Version {
		t.Fatalf("after a restart %+v, %v; written %+v", got, err, written[0])
	}
}
