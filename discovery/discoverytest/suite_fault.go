package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	d "sidestream/discovery"
)

// testOutage: while the store is away nothing is called lost, and afterwards
// everything goes on.
func testOutage(t *testing.T, f *fixture) {
	s := f.session(t, f.store)
	f.commit(t, d.Acquire("l", []byte("1"), s.ID()))
	name := "svc-" + d.NewUUID()
	r := f.register(t, f.store, d.Service{ID: name, Name: name, Address: "127.0.0.1", Port: 1})

	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()    // before the wait
	var mu sync.Mutex // guards seen, failures
	seen, failures := "", 0
	wg.Go(func() {
		d.Follow(ctx, f.store, "l", func(es []d.Entry) {
			mu.Lock()
			defer mu.Unlock()
			seen = ""
			for _, e := range es {
				seen += fmt.Sprintf("%s=%s ", e.Key, e.Value)
			}
		}, d.OnError(func(error) {
			mu.Lock()
			defer mu.Unlock()
			failures++
		}))
	})
	follows := func(want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("Follow sees %q", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen == want
		})
	}
	follows("l=1 ")

	up := f.Down(t)
	unavailable := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, d.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", what, err)
		}
	}
	_, err := f.store.Get(f.ctx, "l")
	unavailable("get", err)
	_, err = f.store.List(f.ctx, "l")
	unavailable("list", err)
	_, err = f.store.NewSession(f.ctx, "x")
	unavailable("new session", err)
	_, _, err = f.store.Watch(f.ctx, "l", 0)
	unavailable("watch", err)
	_, err = f.store.Register(f.ctx, d.Service{ID: "x", Name: "x"})
	unavailable("register", err)
	// The first commit may meet a connection that died: then nobody knows.
	eventually(t, "a commit is certainly not applied", func() bool {
		_, err = f.store.Commit(f.ctx, d.Set("x", []byte("in the outage")))
		if !errors.Is(err, d.ErrUnavailable) && !errors.Is(err, d.ErrUnknownOutcome) {
			t.Fatalf("commit: %v", err)
		}
		return errors.Is(err, d.ErrUnavailable)
	})
	eventually(t, "ownership is unproven", func() bool { return s.Ownership() == d.Unproven })
	time.Sleep(2 * f.SessionTTL)
	if s.Ownership() != d.Unproven || s.Age() < f.SessionTTL {
		t.Fatalf("ownership %s, age %s: the store said nothing", s.Ownership(), s.Age())
	}
	eventually(t, "Follow reports failures", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failures > 0
	})
	follows("l=1 ")

	up()
	eventually(t, "ownership is proven again", func() bool { return s.Ownership() == d.Proven })
	f.commit(t, d.Held("l", s.ID()), d.Set("l", []byte("2")))
	f.absent(t, "x")
	follows("l=2 ")
	eventually(t, "the service passes again", func() bool {
		ins, _, err := f.store.WatchServices(f.ctx, name, 0)
		return err == nil && len(ins) == 1 && ins[0].Passing
	})
	if gap := r.LongestGap(time.Hour); gap < f.SessionTTL {
		t.Errorf("longest gap %s over an outage of twice %s", gap, f.SessionTTL)
	}
	if err := r.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
}

// testWipe: a store that comes back empty has lost the sessions, says so, and
// is followed again though its index begins anew.
func testWipe(t *testing.T, f *fixture) {
	for i := range 50 { // so that the index is well ahead of that of an empty store
		f.set(t, "a", fmt.Sprint(i))
	}
	s := f.session(t, f.store)
	f.commit(t, d.Acquire("l", []byte("1"), s.ID()))
	name := "svc-" + d.NewUUID()
	r := f.register(t, f.store, d.Service{ID: name, Name: name, Address: "127.0.0.1", Port: 1})

	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()    // before the wait
	var mu sync.Mutex // guards seen
	seen := ""
	wg.Go(func() {
		d.Follow(ctx, f.store, "a", func(es []d.Entry) {
			mu.Lock()
			defer mu.Unlock()
			seen = ""
			for _, e := range es {
				seen += string(e.Value)
			}
		})
	})
	follows := func(want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("Follow sees %q", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen == want
		})
	}
	follows("49")

	f.Wipe(t)
	await(t, "the session is lost", s.Lost())
	if s.Ownership() != d.Lost {
		t.Fatalf("ownership %s", s.Ownership())
	}
	f.absent(t, "a", "l")
	follows("")
	// The index from before the wipe must not hide a change.
	f.set(t, "a", "new")
	follows("new")
	eventually(t, "the service is registered again", func() bool {
		ins, _, err := f.store.WatchServices(f.ctx, name, 0)
		return err == nil && len(ins) == 1 && ins[0].Passing
	})
	if err := r.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(f.ctx); err != nil {
		t.Fatal(err)
	}
}
