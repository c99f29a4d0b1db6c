package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sidestream/discovery"
)

// hostOf is a host of another cluster in the same store.
func (c *testCluster) hostOf(cluster, name string) *storageHost {
	h := c.host(name)
	h.cluster = cluster
	return h
}

// An agent of a second cluster in the same Consul, on an empty folder, saw the
// first one's brokers, took its own store for a wiped one, and told the operator
// to rebuild it with the first one's cluster-id.
func TestASecondClusterBegins(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 2)
	two := c.hostOf("third", "two")
	two.start(c)
	two.ready()
	if two.ID() != 1 || two.folderCluster() == one.folderCluster() || len(two.Alarms()) != 0 {
		t.Errorf("the second cluster has broker %d, cluster-id %s as %s, alarms %q", two.ID(), two.folderCluster(), one.folderCluster(), two.Alarms())
	}
	two.await("a controller of its own", func() bool { return two.View().Controller == 1 && len(two.View().Brokers) == 1 })
	two.create("t", 3)
	if got := fmt.Sprint(one.leaders("t"), two.leaders("t")); got != "[1 1] [1 1 1]" {
		t.Errorf("leaders of t: %s", got)
	}
	// They go and come without each other's notice.
	two.kill()
	two.start(c)
	two.ready()
	two.await("led again", func() bool { return fmt.Sprint(two.leaders("t")) == "[1 1 1]" })
	if len(one.View().Brokers) != 1 || one.liveSession() == nil || len(one.Alarms()) != 0 {
		t.Errorf("the first cluster: %+v, alarms %q", one.View(), one.Alarms())
	}
	ctx, cancel := shortly()
	defer cancel()
	if r, err := one.Rebuild(ctx, one.folderCluster()); err != nil || len(r.Topics) != 0 {
		t.Errorf("a rebuild of the first, with the other beside it: %+v, %v", r, err)
	}
}

// The copy of a broker's folder, started with another cluster's name, took the
// live broker's registration over: clients were sent to the copy.
func TestACopyInAnotherClusterIsRefused(t *testing.T) {
	for name, prepare := range map[string]func(c *testCluster){
		"an empty store": func(*testCluster) {},
		"a store with a cluster of its own": func(c *testCluster) {
			h := c.hostOf("third", "third")
			h.start(c)
			h.ready()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			one := c.started("one")[0]
			one.create("t", 1)
			prepare(c)
			for _, alive := range []bool{true, false} {
				if !alive {
					one.stop()
				}
				same := c.hostOf("third", "copy")
				copyIdentity(t, one, same, func(s string) string { return s })
				same.start(c)
				err := same.wait()
				if !errors.Is(err, errElsewhere) || !strings.Contains(err.Error(), `consul.cluster "main"`) || !strings.Contains(err.Error(), "--consul-cluster main") {
					t.Fatalf("the copy ended with %v", err)
				}
			}
			one.start(c)
			one.ready()
			one.await("led", func() bool { return fmt.Sprint(one.leaders("t")) == "[1]" })
		})
	}
}

// A folder whose nonce is alive is refused wherever that is, also when the copy
// says that it is of no cluster yet.
func TestANonceThatLivesIsRefused(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	for cluster, change := range map[string]func(string) string{
		"third": func(s string) string { return strings.Replace(s, one.folderCluster(), "", 1) },
		"":      func(s string) string { return strings.Replace(s, `"id": "1"`, `"id": "2"`, 1) },
	} {
		same := c.hostOf(cluster, "copy")
		copyIdentity(t, one, same, change)
		same.start(c)
		if err := same.wait(); !errors.Is(err, errCopy) || !strings.Contains(err.Error(), `broker 1 of consul.cluster "main" is alive`) {
			t.Errorf("a copy in %q ended with %v", cluster, err)
		}
	}
	if one.liveSession() == nil || len(one.Alarms()) != 0 {
		t.Error("the true broker was disturbed")
	}
}

// A rebuild must not bring one cluster's id into another's store, nor write a
// store in which another's brokers live.
func TestARebuildOfAnotherCluster(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	two := c.hostOf("third", "two")
	two.start(c)
	two.ready()
	ctx, cancel := shortly()
	defer cancel()
	refused := func(h *storageHost, id, words string) {
		t.Helper()
		if _, err := h.Rebuild(ctx, id); !errors.Is(err, ErrRebuild) || !strings.Contains(err.Error(), words) {
			t.Errorf("rebuilding %s gave %v", id, err)
		}
	}
	first, second := one.folderCluster(), two.folderCluster()
	refused(two, first, "belongs to cluster "+second)
	// As if the folder were the other's: its store is empty.
	two.mu.Lock()
	two.clusterID = first
	two.mu.Unlock()
	third := c.store.ClientOf("third")
	defer third.Close()
	if _, err := third.Commit(ctx, discovery.Delete(discovery.KeyClusterID)); err != nil {
		t.Fatal(err)
	}
	refused(two, first, `is consul.cluster "main"`)

	// A broker of another cluster lives in this very store.
	if _, err := c.store.Commit(ctx, discovery.Delete(discovery.KeyClusterID)); err != nil {
		t.Fatal(err)
	}
	other := discovery.NewUUID()
	r, err := c.store.Register(ctx, discovery.Service{ID: "x", Name: discovery.ServiceBroker, Address: "127.0.0.1", Port: 1,
		Meta: map[string]string{"id": "9", discovery.MetaClusterID: other}})
	if err != nil {
		t.Fatal(err)
	}
	refused(one, first, "broker 9 of cluster "+other+" is alive in this store")
	if err := r.Deregister(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := one.Rebuild(ctx, first); err != nil || !got.ClusterIDWritten {
		t.Errorf("a rebuild of its own store: %+v, %v", got, err)
	}

	// How to take a store from a cluster is not told while that lives.
	if _, err := c.store.Commit(ctx, discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: other}))); err != nil {
		t.Fatal(err)
	}
	refused(one, first, "delete the key cluster-id")
	if _, err := c.store.Register(ctx, discovery.Service{ID: "x", Name: discovery.ServiceBroker, Address: "127.0.0.1", Port: 1,
		Meta: map[string]string{"id": "9", discovery.MetaClusterID: other}}); err != nil {
		t.Fatal(err)
	}
	refused(one, first, "whose brokers are alive")
}

// What to run is told only where it is certain that the store was wiped.
func TestWiped(t *testing.T) {
	broker := func(cluster, id string) discovery.Instance {
		return discovery.Instance{Cluster: cluster, Service: discovery.Service{ID: "s-1", Meta: map[string]string{"id": "1", discovery.MetaClusterID: id}}}
	}
	main := discovery.Neighbours{IDs: map[string]string{"main": "m"}}
	for name, c := range map[string]struct {
		instances  []discovery.Instance
		neighbours discovery.Neighbours
		want       []string // nil: nothing is said
	}{
		"nobody":                                 {nil, discovery.Neighbours{}, nil},
		"a neighbour":                            {nil, main, nil},
		"one of ours":                            {[]discovery.Instance{broker("third", "t")}, main, []string{"the store was wiped", "rebuild --cluster-id t ", "s-1@third"}},
		"an older version's, a neighbour's":      {[]discovery.Instance{broker("", "m")}, main, nil},
		"an older version's, nobody knows whose": {[]discovery.Instance{broker("", "m")}, discovery.Neighbours{}, []string{"without the name of its cluster", "service s-1 "}},
		"not an agent's":                         {[]discovery.Instance{broker("", "")}, discovery.Neighbours{}, nil},
		"ours behind an older version's of main": {[]discovery.Instance{broker("", "m"), broker("third", "t")}, main, []string{"rebuild --cluster-id t "}},
	} {
		got := wiped("third", c.instances, c.neighbours)
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: %q", name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q has no %q", name, got, w)
			}
		}
		if len(c.want) > 0 && c.want[0] != "the store was wiped" && !strings.Contains(got, "cluster-id t") && strings.Contains(got, "rebuild") {
			t.Errorf("%s: a rebuild is advised where it may destroy: %q", name, got)
		}
	}
}

// An agent of an older version does not say the name of its cluster. One that
// begins beside it waits unless the keys tell that it is another's.
func TestBesideAnOlderVersion(t *testing.T) {
	c := newTestCluster(t)
	ctx, cancel := shortly()
	defer cancel()
	main := discovery.NewUUID()
	// No store registers like that any more.
	old := &unnamed{meta: map[string]string{"id": "1", discovery.MetaClusterID: main}}
	two := c.hostOf("third", "two")
	two.wrap = func(s discovery.Store) discovery.Store { old.MemoryClient = s.(*discovery.MemoryClient); return old }
	two.start(c)
	two.await("it waits", func() bool { return two.hasAlarm("without the name of its cluster") })
	if two.hasAlarm("metadata rebuild") {
		t.Errorf("alarms %q", two.Alarms())
	}
	if _, err := c.store.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: main}))); err != nil {
		t.Fatal(err)
	}
	two.ready()
	if two.folderCluster() == main {
		t.Error("it took the other's cluster-id")
	}
}

// unnamed adds a broker of an older version to those that are registered.
type unnamed struct {
	*discovery.MemoryClient
	meta map[string]string
}

func (u *unnamed) WatchServices(ctx context.Context, name string, index uint64) ([]discovery.Instance, uint64, error) {
	in, next, err := u.MemoryClient.WatchServices(ctx, name, index)
	if name == discovery.ServiceBroker && err == nil {
		in = append(in, discovery.Instance{Service: discovery.Service{ID: "old-1", Name: name, Address: "127.0.0.1", Port: 1, Meta: u.meta}, Passing: true, Beating: true})
	}
	return in, next, err
}
