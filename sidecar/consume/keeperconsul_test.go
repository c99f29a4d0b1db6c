package consume

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/discovery/discoverytest"
	"sidestream/sdk/api"
)

// What the keeper and the ceiling write is understood by the real store: checks,
// compare-and-swaps and deletions of whole prefixes in one commit.
func TestKeeperInConsul(t *testing.T) {
	t.Parallel()
	store, err := discovery.NewConsul(discoverytest.Start(t, "").Config("main"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := newLab(t, map[string]int32{"views": 2})
	l.produce("views", 0, 0, 1)
	a := l.host("a", noSweeps)
	a.idleGroup("g", "views", api.GroupConfig{})
	a.idleGroup("other", "views", api.GroupConfig{})
	// The keys that these groups left, in Consul.
	es, err := l.store.List(t.Context(), discovery.PrefixGroups)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if _, err := store.Commit(t.Context(), discovery.Set(e.Key, e.Value)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testConfig()
	m := &Manager{cfg: cfg, store: store, log: zap.NewNop(), metrics: newMetrics(nil), checkpointer: a.checkpoint}
	k := newKeeper(m, time.Minute)
	read := func() groupKeys {
		es, err := store.List(t.Context(), discovery.PrefixGroups+"g/")
		if err != nil {
			t.Fatal(err)
		}
		return readGroupKeys("g", es)
	}
	now := time.Now()
	for range 30 {
		now = now.Add(time.Minute)
		if removed, err := k.look(t.Context(), read(), now); removed || err != nil {
			t.Fatal(removed, err)
		}
	}
	g := read()
	idle, err := discovery.Decode[discovery.Idle](*g.idle)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody who joined took the count away.
	if _, err := store.Commit(t.Context(), discovery.Delete(g.idle.Key)); err != nil {
		t.Fatal(err)
	}
	if err := k.remove(t.Context(), g, idle); err == nil || notConflict(err) != nil {
		t.Fatalf("removed under a member: %v", err)
	}
	if got := read(); got.config == nil || got.partitions() != 2 || len(got.seeks) != 0 {
		t.Fatalf("half removed: %+v", got)
	}
	if _, err := k.look(t.Context(), read(), now); err != nil {
		t.Fatal(err)
	}
	if err := k.remove(t.Context(), read(), idle); err != nil {
		t.Fatal(err)
	}
	g = read()
	if g.config != nil || g.partitions() != 0 || len(g.kinds) != 0 || len(g.seeks) != 1 || g.seeks["views"].To != seekToBegin {
		t.Fatalf("after the removal %+v", g)
	}
	if idle, err = discovery.Decode[discovery.Idle](*g.idle); err != nil || !idle.Removed {
		t.Fatalf("%+v %v", idle, err)
	}
	if err := k.remove(t.Context(), g, idle); err != nil {
		t.Fatal(err)
	}
	if es, err = store.List(t.Context(), discovery.PrefixGroups); err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if !strings.HasPrefix(e.Key, "groups/other/") {
			t.Errorf("left: %s", e.Key)
		}
	}
	for _, want := range []int{7, 7, 3} {
		if err := m.setCensus(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if n, _, err := m.readCensus(t.Context()); err != nil || n != want {
			t.Fatalf("%d %v", n, err)
		}
	}
}
