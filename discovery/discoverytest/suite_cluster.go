package discoverytest

import (
	"context"
	"errors"
	"testing"

	d "sidestream/discovery"
)

// testClusters: two clusters in one store are apart. Services are in one
// registry under one name: an agent of a second cluster took the first one's for
// its own, and one with the same id overwrote it.
func testClusters(t *testing.T, f *fixture) {
	other := f.OpenOther(t)
	t.Cleanup(func() { closeStore(t, other) })
	if f.store.Cluster() == other.Cluster() {
		t.Fatalf("both are of cluster %q", other.Cluster())
	}

	// Keys.
	f.set(t, d.KeyClusterID, `{"id":"one"}`)
	f.set(t, "topics/a", "1")
	if list, err := other.List(f.ctx, ""); err != nil || len(list) != 0 {
		t.Fatalf("the other cluster has keys %v, %v", list, err)
	}
	if _, err := other.Commit(f.ctx, d.Create(d.KeyClusterID, []byte(`{"id":"two"}`)), d.Set("topics/b", nil)); err != nil {
		t.Fatal(err)
	}
	f.absent(t, "topics/b")
	f.value(t, d.KeyClusterID, `{"id":"one"}`)
	if _, err := other.Commit(f.ctx, d.DeletePrefix("")); err != nil {
		t.Fatal(err)
	}
	f.value(t, "topics/a", "1")
	s := f.session(t, other)
	if _, err := other.Commit(f.ctx, d.Acquire(d.KeyController, []byte("two"), s.ID())); err != nil {
		t.Fatal(err)
	}
	own := f.session(t, f.store)
	f.commit(t, d.Acquire(d.KeyController, []byte("one"), own.ID())) // a lock of its own
	if err := s.Destroy(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.value(t, d.KeyController, "one")
	if _, err := other.Get(f.ctx, d.KeyController); !errors.Is(err, d.ErrNotFound) {
		t.Fatalf("the other's lock: %v", err)
	}
	if _, err := other.Commit(f.ctx, d.Create(d.KeyClusterID, []byte(`{"id":"two"}`))); err != nil {
		t.Fatal(err)
	}

	// Services: the same id in both.
	name := "svc-" + d.NewUUID()
	service := func(port int, meta string) d.Service {
		return d.Service{ID: name + "-1", Name: name, Address: "127.0.0.1", Port: port, Meta: map[string]string{d.MetaNonce: meta}}
	}
	r1 := f.register(t, f.store, service(1, "n1"))
	r2 := f.register(t, other, service(2, "n2"))
	port := func(store d.Store) int {
		ins, _, err := store.WatchServices(f.ctx, name, 0)
		if err != nil || len(ins) != 1 || ins[0].ID != name+"-1" || ins[0].Cluster != store.Cluster() || len(ins[0].Meta) != 1 {
			return 0
		}
		return ins[0].Port
	}
	eventually(t, "each sees its own alone", func() bool { return port(f.store) == 1 && port(other) == 2 })
	eventually(t, "its neighbour is told apart", func() bool {
		n, err := f.store.Neighbours(f.ctx, name)
		if err != nil || len(n.Instances) != 1 {
			return false
		}
		in := n.Instances[0]
		return n.IDs[other.Cluster()] == "two" && n.IDs[f.store.Cluster()] == "" && n.Named("two") == other.Cluster() && n.Named("one") == "" &&
			in.Cluster == other.Cluster() && in.ID == name+"-1" && in.Port == 2 && in.Passing
	})
	twin := func(id, nonce string) bool {
		in, live, err := d.LiveTwin(f.ctx, f.store, name, id, nonce)
		if err != nil {
			t.Fatal(err)
		}
		return live && in.Meta[d.MetaNonce] == nonce
	}
	if twin(name+"-1", "n1") || !twin(name+"-1", "n2") || !twin(name+"-2", "n1") || twin(name+"-1", "n3") {
		t.Error("wrong about who lives with a folder's nonce")
	}

	// The end of one is not the other's.
	if err := r2.Deregister(f.ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other is gone", func() bool { n, err := f.store.Neighbours(f.ctx, name); return err == nil && len(n.Instances) == 0 })
	if port(f.store) != 1 {
		t.Error("and took ours along")
	}
	if err := r1.Deregister(context.WithoutCancel(f.ctx)); err != nil {
		t.Fatal(err)
	}
}
