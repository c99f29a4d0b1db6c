package discoverytest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	d "sidestream/discovery"
)

// services follows a service as "id:passing …".
func (f *fixture) services(t *testing.T, name string) func() string {
	t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	var mu sync.Mutex // guards seen
	seen := "nothing yet"
	go func() {
		defer close(done)
		d.FollowServices(ctx, f.store, name, func(ins []d.Instance) {
			mu.Lock()
			defer mu.Unlock()
			seen = ""
			for _, in := range ins {
				seen += fmt.Sprintf("%s:%t ", in.ID, in.Passing)
			}
		}, d.OnError(func(err error) { t.Error(err) }))
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

func sees(t *testing.T, services func() string, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the services are %q", want), func() bool { return services() == want })
}

func (f *fixture) register(t *testing.T, store d.Store, s d.Service) d.Registration {
	t.Helper()
	r, err := store.Register(f.ctx, s)
	if err != nil {
		t.Fatalf("register: %v", err)
	}
	return r
}

func testServices(t *testing.T, f *fixture) {
	name := "svc-" + d.NewUUID()
	one := d.Service{ID: name + "-1", Name: name, Address: "127.0.0.9", Port: 9092, Meta: map[string]string{"rack": "r1"}}
	two := d.Service{ID: name + "-2", Name: name, Address: "broker.example", Port: 1}
	seen := f.services(t, name)
	sees(t, seen, "")
	r1 := f.register(t, f.store, one)
	sees(t, seen, one.ID+":true ")
	r2 := f.register(t, open(t, f.Harness), two)
	sees(t, seen, one.ID+":true "+two.ID+":true ")

	ins, index, err := f.store.WatchServices(f.ctx, name, 0)
	if err != nil || len(ins) != 2 || index == 0 {
		t.Fatalf("services: %v, %d, %v", ins, index, err)
	}
	for i, want := range []d.Service{one, two} {
		got := ins[i]
		if got.ID != want.ID || got.Name != name || got.Address != want.Address || got.Port != want.Port ||
			!maps.Equal(got.Meta, want.Meta) || got.Node == "" || !got.Passing {
			t.Errorf("instance %+v, want %+v", got, want)
		}
	}
	if other, _, err := f.store.WatchServices(f.ctx, name+"x", 0); err != nil || len(other) != 0 {
		t.Fatalf("another service: %v, %v", other, err)
	}

	for range 2 { // gone is as asked for
		if err := r1.Deregister(f.ctx); err != nil {
			t.Fatal(err)
		}
	}
	sees(t, seen, two.ID+":true ")
	// It passes for as long as it is beaten.
	for end := time.Now().Add(3 * f.CheckTTL); time.Now().Before(end); time.Sleep(f.CheckTTL / 5) {
		if r2.LongestGap(2*f.CheckTTL) < f.CheckTTL*3/4 && seen() != two.ID+":true " {
			t.Fatalf("services %q though the beats are regular", seen())
		}
	}
	eventually(t, "regular beats", func() bool { return r2.LongestGap(f.CheckTTL) < f.CheckTTL })
	if err := r2.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	sees(t, seen, "")

	for _, bad := range []d.Service{{Name: "x"}, {ID: "x"}, {ID: "x", Name: "x", Port: 70000}} {
		if _, err := f.store.Register(f.ctx, bad); err == nil {
			t.Errorf("registered %+v", bad)
		}
	}
}

func testServiceTurnsCritical(t *testing.T, f *fixture) {
	name := "svc-" + d.NewUUID()
	seen := f.services(t, name)
	crashing := f.Open(t)
	r := f.register(t, crashing, d.Service{ID: name + "-1", Name: name, Address: "127.0.0.1", Port: 1})
	sees(t, seen, name+"-1:true ")
	start := time.Now()
	closeStore(t, crashing)
	sees(t, seen, name+"-1:false ")
	if took := time.Since(start); took < f.CheckTTL/2 {
		t.Errorf("critical %s after the last beat, TTL %s", took, f.CheckTTL)
	}
	if gap := r.LongestGap(f.CheckTTL); gap < f.CheckTTL/2 {
		t.Errorf("longest gap %s without beats", gap)
	}
	// Its next life registers under the same id.
	next := f.register(t, f.store, d.Service{ID: name + "-1", Name: name, Address: "127.0.0.1", Port: 2})
	sees(t, seen, name+"-1:true ")
	if err := next.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	sees(t, seen, "")
}

func testServiceAgain(t *testing.T, f *fixture) {
	name := "svc-" + d.NewUUID()
	s := d.Service{ID: name + "-1", Name: name, Address: "127.0.0.1", Port: 1}
	seen := f.services(t, name)
	first := f.register(t, f.store, s)
	// Somebody else replaces and removes it: it comes back by its next beat.
	replaced := s
	replaced.Port = 2
	second := f.register(t, open(t, f.Harness), replaced)
	port := func() int {
		ins, _, err := f.store.WatchServices(f.ctx, name, 0)
		if err != nil || len(ins) != 1 || !ins[0].Passing {
			return 0
		}
		return ins[0].Port
	}
	eventually(t, "the service is replaced", func() bool { return port() == 2 })
	if err := second.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service is registered again", func() bool { return port() == 1 })
	if err := first.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	sees(t, seen, "")
}

// testSuspects: the survivor of two destroys the session of the other long
// before it expires by itself would be noticed.
func testSuspects(t *testing.T, f *fixture) {
	name := "svc-" + d.NewUUID()
	own := f.register(t, f.store, d.Service{ID: name + "-1", Name: name, Address: "127.0.0.1", Port: 1})
	crashing := f.Open(t)
	f.register(t, crashing, d.Service{ID: name + "-2", Name: name, Address: "127.0.0.1", Port: 2})
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait
	suspected := make(chan struct{})
	holders := func() []d.Holder {
		return []d.Holder{{Service: name + "-1", Session: "1"}, {Service: name + "-2", Session: "2"}}
	}
	wg.Go(func() {
		d.FollowSuspects(ctx, f.store, name, own, holders, func(_ context.Context, who []d.Holder) {
			if len(who) != 1 || who[0] != (d.Holder{Service: name + "-2", Session: "2"}) {
				t.Errorf("suspects %q", who)
			}
			cancel()
			close(suspected)
		})
	})
	closeStore(t, crashing)
	await(t, "the crashed one is suspected", suspected)
	if err := own.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
}
