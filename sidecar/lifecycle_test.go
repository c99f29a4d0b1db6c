package sidecar

import (
	"context"
	"strings"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// It starts, serves and says why it cannot do more while all else is away.
func TestStartsAlone(t *testing.T) {
	store := newStore(t)
	store.SetDown(true)
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen = t.TempDir(), "127.0.0.1:0"
	cfg.DrainTimeout = time.Second
	r := &rig{t: t, store: store, cfg: cfg}
	r.start()
	h := into[api.Health](t, r.do("GET", "/readyz", ""), 503)
	if all := strings.Join(h.Causes, " "); !strings.Contains(all, "brokers: ") || !strings.Contains(all, "coordination store: ") {
		t.Errorf("%+v", h)
	}
	if a := r.do("POST", "/topics/one?timeout=1s", "x"); a.status != 503 || a.code() != api.CodeBrokersUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("got %s", a)
	}
	into[Status](t, r.do("GET", "/status", ""), 200)
	store.SetDown(false)
	cause := func() string { c, _ := r.sidecar.presence.cause(time.Hour); return c }
	for deadline := time.Now().Add(30 * time.Second); cause() != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the store is back and not found: ", cause())
		}
	}
}

// During an outage of the store /readyz was 503 although publishing, pulling
// and acknowledging worked: an orchestrator would have taken every sidecar out
// of service for it.
func TestReadyWithoutTheStore(t *testing.T) {
	store, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	r := &rig{t: t, cluster: newCluster(t), store: store, cfg: DefaultConfig()}
	r.cfg.DataDir, r.cfg.Listen, r.cfg.DrainTimeout = t.TempDir(), "127.0.0.1:0", time.Second
	r.cfg.Kafka.Bootstrap = r.cluster.ListenAddrs()
	r.cfg.Consume.UnprovenMax = 5 * time.Second
	r.start()
	into[api.Published](t, r.do("POST", "/topics/one", "v"), 200)
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s&ack=auto", ""), 200)
	await := func(what string, status int, cause string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			a := r.do("GET", "/readyz", "")
			if a.status == status && strings.Contains(string(a.body), cause) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s", what, a)
			}
		}
	}
	await("with the store", 200, `"ok"`)
	store.SetDown(true)
	await("without the store", 200, "what is owned is kept")
	into[api.Published](t, r.do("POST", "/topics/one", "v"), 200)
	if p := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s&ack=auto", ""), 200); len(p.Messages) != 1 {
		t.Errorf("%+v", p)
	}
	await("after unproven_max", 503, "unproven_max")
	store.SetDown(false)
	await("with the store again", 200, `"ok"`)
}

func TestPresence(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ID = "host-1" })
	ctx := context.Background()
	get := func() (discovery.Sidecar, error) {
		e, err := r.store.Get(ctx, discovery.KeySidecar("host-1"))
		if err != nil {
			return discovery.Sidecar{}, err
		}
		return discovery.Decode[discovery.Sidecar](e)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	var first discovery.Sidecar
	await("never registered", func() bool { var err error; first, err = get(); return err == nil })
	if first.Address != r.sidecar.Addr() || first.ID != "host-1" {
		t.Errorf("%+v", first)
	}
	// The session is lost: another takes its place.
	if err := r.store.DestroySession(ctx, first.Session); err != nil {
		t.Fatal(err)
	}
	await("no second session", func() bool { now, err := get(); return err == nil && now.Session != first.Session })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := get(); err == nil {
		t.Error("the key is still there after a clean stop")
	}
	instances, _, err := r.store.WatchServices(ctx, discovery.ServiceSidecar, 0)
	if err != nil || len(instances) != 0 {
		t.Errorf("still registered: %v, %v", instances, err)
	}
}

func TestIdentityIsKept(t *testing.T) {
	r := newRig(t, nil)
	first := into[Status](t, r.do("GET", "/status", ""), 200)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if again := into[Status](t, r.do("GET", "/status", ""), 200); again.ID != first.ID || first.ID == "" {
		t.Errorf("%s became %s", first.ID, again.ID)
	}
}

func TestPortTaken(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.cfg
	cfg.DataDir, cfg.Listen = t.TempDir(), r.sidecar.Addr()
	s, err := New(cfg, r.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(context.Background())
	if err == nil || !strings.HasPrefix(err.Error(), "listen: ") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

func TestDataDirTaken(t *testing.T) {
	r := newRig(t, nil)
	s, err := New(r.cfg, r.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "data_dir: ") {
		t.Errorf("got %v", err)
	}
}

// The id of another data folder that lives cannot be taken.
func TestIDTaken(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ID = "same" })
	for deadline := time.Now().Add(30 * time.Second); r.sidecar.presence.Session() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no session")
		}
	}
	cfg := r.cfg
	cfg.DataDir = t.TempDir()
	s, err := New(cfg, r.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), "same") {
		t.Errorf("got %v", err)
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	polled := make(chan answer, 1)
	go func() { polled <- r.do("POST", "/groups/g/topics/t/pull?wait=60s", "") }()
	time.Sleep(300 * time.Millisecond)
	if h := into[api.Health](t, r.do("POST", "/drain", ""), 200); h.Status != "draining" {
		t.Errorf("%+v", h)
	}
	for _, path := range []string{"/topics/one", "/topics/one/batch", "/groups/g/topics/one/pull"} {
		if a := r.do("POST", path, "x"); a.status != 503 || a.code() != api.CodeDraining {
			t.Errorf("%s: got %s", path, a)
		}
	}
	if h := into[api.Health](t, r.do("GET", "/readyz", ""), 503); !strings.Contains(strings.Join(h.Causes, " "), "draining") {
		t.Errorf("%+v", h)
	}
	select {
	case <-polled: // whatever it says, it does not wait out its minute
	case <-time.After(20 * time.Second):
		t.Error("a long poll outlives the drain")
	}
}
