package facts

import (
	"context"
	"testing"
	"time"

	"sidestream/discovery"
)

func newStore(t *testing.T) *discovery.Memory {
	t.Helper()
	m, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func runMirror(t *testing.T, store discovery.Store, cluster string) *Mirror {
	t.Helper()
	m := NewMirror(store, time.Second, func() string { return cluster }, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the mirror ended with %v", err)
		}
	})
	return m
}

func await(t *testing.T, m *Mirror, what string, want func(*Facts) bool) *Facts {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		f, changed := m.Latest()
		if want(f) {
			return f
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited in vain: %s; last picture %+v", what, f)
		}
	}
}

func topic(name string, partitions int32, phase discovery.Phase) []byte {
	return discovery.Encode(discovery.Topic{Name: name, UUID: "uuid-" + name, Partitions: partitions, Phase: phase, Writer: discovery.NewNonce()})
}

func TestMirrorFollowsWhatWritersSay(t *testing.T) {
	store := newStore(t)
	ctx := context.Background()
	if _, err := store.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "c"}))); err != nil {
		t.Fatal(err)
	}
	m := runMirror(t, store, "c")
	await(t, m, "the cluster", func(f *Facts) bool { return f.Cluster == Same })

	w := NewWriter(store, time.Second, nil)
	if err := w.Commit(ctx); err == nil {
		t.Error("a writer without a name committed")
	}
	w.SetName("1")
	shard := discovery.Encode(discovery.Shard{Partitions: []discovery.PartitionState{{Replicas: []int32{1}, Leader: -1}}})
	if err := w.Commit(ctx, discovery.Create("topics/a", topic("a", 1, discovery.PhaseLive)), discovery.Create("state/uuid-a/0", shard)); err != nil {
		t.Fatal(err)
	}
	f := await(t, m, "topic and state", func(f *Facts) bool { return len(f.Topics) == 1 && len(f.Shards) == 1 })
	if st, ok := f.State(Part{"uuid-a", 0}); !ok || st.Replicas[0] != 1 {
		t.Errorf("state is %+v, %v", st, ok)
	}
	if _, ok := f.State(Part{"uuid-a", 1}); ok {
		t.Error("a partition that is not listed has a state")
	}

	// Another writer of another process, which starts where it left off.
	again := NewWriter(store, time.Second, nil)
	again.SetName("1")
	if err := again.Commit(ctx, discovery.Delete("topics/a"), discovery.DeletePrefix("state/uuid-a/")); err != nil {
		t.Fatal(err)
	}
	await(t, m, "the deletion", func(f *Facts) bool { return len(f.Topics) == 0 && len(f.Shards["uuid-a"]) == 0 })
}

func TestMirrorKeepsThePictureOfAWipedStore(t *testing.T) {
	store := newStore(t)
	ctx := context.Background()
	id := discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "c"}))
	if _, err := store.Commit(ctx, id, discovery.Create("topics/a", topic("a", 1, discovery.PhaseLive))); err != nil {
		t.Fatal(err)
	}
	s, err := store.NewSession(ctx, "test")
	if err != nil {
		t.Fatal(err)
	}
	broker := discovery.Encode(discovery.Broker{ID: 1, Host: "h", Port: 1})
	if _, err := store.Commit(ctx, discovery.Acquire("brokers/1", broker, s.ID())); err != nil {
		t.Fatal(err)
	}
	m := runMirror(t, store, "c")
	await(t, m, "the first picture", func(f *Facts) bool { return len(f.Topics) == 1 && f.Serving(1) })

	store.Wipe()
	f := await(t, m, "the wipe", func(f *Facts) bool { return f.Cluster == Missing })
	if len(f.Topics) != 1 || !f.Serving(1) {
		t.Errorf("the last picture was not kept: %+v", f)
	}

	w := NewWriter(store, time.Second, nil)
	w.SetName("2")
	if err := w.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "other"}))); err != nil {
		t.Fatal(err)
	}
	await(t, m, "the other cluster", func(f *Facts) bool { return f.Cluster == Foreign && f.StoreID == "other" })
	if err := w.Commit(ctx, discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "c"}))); err != nil {
		t.Fatal(err)
	}
	await(t, m, "its own cluster, now without topics", func(f *Facts) bool { return f.Cluster == Same && len(f.Topics) == 0 })
}

func TestMirrorOutlivesAnOutage(t *testing.T) {
	store := newStore(t)
	ctx := context.Background()
	if _, err := store.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "c"}))); err != nil {
		t.Fatal(err)
	}
	store.SetDown(true)
	m := runMirror(t, store.Client(), "c")
	if f, _ := m.Latest(); f.Cluster != Unread {
		t.Errorf("cluster is %v before anything was read", f.Cluster)
	}
	store.SetDown(false)
	await(t, m, "the store's return", func(f *Facts) bool { return f.Cluster == Same })
	w := NewWriter(store, time.Second, m.Learn)
	w.SetName("1")
	if err := w.Commit(ctx, discovery.Create("topics/a", topic("a", 1, discovery.PhaseLive))); err != nil {
		t.Fatal(err)
	}
	if f, _ := m.Latest(); len(f.Topics) != 1 {
		t.Error("the mirror did not learn at once of its own agent's commit")
	}
}
