package sidecar

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatal(what, ": ", r.do("GET", "/readyz", ""))
		}
	}
}

// Two sidecars with one identity took each other's session away every few
// seconds, and said no more than that it was gone.
func TestACopiedDataDirIsTold(t *testing.T) {
	one := newRig(t, nil)
	copied := func() bool {
		return strings.Contains(string(one.do("GET", "/readyz", "").body), "is data_dir a copy of")
	}
	ready := func(r *rig) func() bool { return func() bool { return r.do("GET", "/readyz", "").status == 200 } }
	one.await("not ready", ready(one))
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	two := &rig{t: t, cluster: one.cluster, store: one.store, cfg: one.cfg}
	two.cfg.DataDir = t.TempDir() + "/copy"
	if err := os.CopyFS(two.cfg.DataDir, os.DirFS(one.cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	one.start()
	one.await("not ready after a restart", ready(one))
	two.start()
	one.await("it is not told", copied)
	if a := one.do("GET", "/readyz", ""); a.status != 503 || !strings.Contains(string(a.body), two.sidecar.Addr()) {
		t.Errorf("got %s", a)
	}
	if st := into[Status](t, one.do("GET", "/status", ""), 200); !strings.Contains(strings.Join(st.Causes, " "), "is data_dir a copy of") {
		t.Errorf("%q", st.Causes)
	}
	into[api.Published](t, one.do("POST", "/topics/one", "x"), 200)
	two.await("the other one is not ready", ready(two))
	session := two.sidecar.presence.Session()
	// It is that which took the key, and nobody ends it.
	if err := one.sidecar.presence.appear(t.Context()); !errors.Is(err, errCopy) {
		t.Errorf("got %v", err)
	}
	if session == nil || session != two.sidecar.presence.Session() || session.Ownership() == discovery.Lost {
		t.Error("the other one's session was taken away")
	}
	if err := two.stop(); err != nil {
		t.Fatal(err)
	}
	one.await("it does not return", ready(one))
	if copied() {
		t.Error("it is still told")
	}
}

// What comes after a plain loss or a restart is no copy.
func TestALostSessionIsNoCopy(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	store := newStore(t)
	ctx := t.Context()
	earlier := newPresence(store, zap.NewNop(), &discovery.Identity{ID: "a", Nonce: "nonce"}, "127.0.0.1:1")
	if err := earlier.appear(ctx); err != nil { // and it was killed
		t.Fatal(err)
	}
	p := newPresence(store, zap.New(core), &discovery.Identity{ID: "a", Nonce: "nonce"}, "127.0.0.1:2")
	for range 3 {
		if err := p.appear(ctx); err != nil {
			t.Fatal(err)
		}
		if err := store.DestroySession(ctx, p.Session().ID()); err != nil {
			t.Fatal(err)
		}
	}
	// A claim whose outcome was not known has left the key with us.
	if err := p.appear(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.appear(ctx); err != nil {
		t.Fatal(err)
	}
	if logs.Len() != 0 {
		t.Errorf("%v", logs.All())
	}
	// The earlier one lives after all.
	if err := earlier.appear(ctx); !errors.Is(err, errCopy) {
		t.Errorf("got %v", err)
	}
	if c, serves := earlier.cause(time.Hour); serves || !strings.Contains(c, "127.0.0.1:2") {
		t.Errorf("%q, %v", c, serves)
	}
	p.leave(ctx)
	if err := earlier.appear(ctx); err != nil {
		t.Errorf("got %v", err)
	}
	if c, _ := earlier.cause(time.Hour); c != "" {
		t.Errorf("%q", c)
	}
}
