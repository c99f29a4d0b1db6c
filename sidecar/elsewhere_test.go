package sidecar

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// ownCluster gives the store a cluster with one broker, as an agent does.
func ownCluster(t *testing.T, store discovery.Store, id string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID(id), kfake.SeedTopics(1, "one"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	host, port, _ := net.SplitHostPort(c.ListenAddrs()[0])
	n, _ := strconv.Atoi(port)
	if _, err := store.Commit(t.Context(), discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: id}))); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Register(context.Background(), discovery.Service{ID: "b-" + id, Name: discovery.ServiceBroker, Address: host, Port: n,
		Meta: map[string]string{discovery.MetaClusterID: id}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// runs starts a sidecar on a store, whatever becomes of it.
func runs(t *testing.T, cfg Config, store discovery.Store) (s *Sidecar, ended <-chan error) {
	t.Helper()
	s, err := New(cfg, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end, done := make(chan error, 1), make(chan struct{})
	go func() { defer close(done); end <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s, end
}

func endsWith(t *testing.T, ended <-chan error, want error, words ...string) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Fatalf("it ended with %v", err)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q has no %q", err, w)
			}
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

// The data folder of a sidecar is of one cluster: what it has spooled and owes
// must not go to another's brokers. A sidecar that was started with another
// cluster's name found the brokers of both.
func TestADataDirIsOfOneCluster(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Kafka.Bootstrap = nil })
	ownCluster(t, r.store, "main-id")
	r.await("ready", func() bool { return r.do("GET", "/readyz", "").status == 200 })
	into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	file := func() string { b, _ := os.ReadFile(r.cfg.DataDir + "/identity.json"); return string(b) }
	r.await("it keeps its cluster", func() bool { return strings.Contains(file(), `"cluster_id": "main-id"`) })
	st := into[Status](t, r.do("GET", "/status", ""), 200)
	if st.Store.Cluster != "main" || st.Store.ClusterID != "main-id" {
		t.Errorf("status %+v", st.Store)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	third := r.store.ClientOf("third")
	t.Cleanup(func() { _ = third.Close() })
	_, ended := runs(t, r.cfg, third)
	endsWith(t, ended, errElsewhere, `is consul.cluster "main"`, "--consul-cluster main")
	ownCluster(t, third, "third-id")
	_, ended = runs(t, r.cfg, third)
	endsWith(t, ended, errElsewhere, `is consul.cluster "main"`)

	// The store is another cluster's now.
	if _, err := r.store.Commit(t.Context(), discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: "new-id"}))); err != nil {
		t.Fatal(err)
	}
	_, ended = runs(t, r.cfg, r.store)
	endsWith(t, ended, errElsewhere, `is cluster new-id`)

	// It was wiped: what the brokers say decides.
	if _, err := r.store.Commit(t.Context(), discovery.Delete(discovery.KeyClusterID)); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.await("ready again", func() bool { return r.do("GET", "/readyz", "").status == 200 })
}

// Equal ids in different clusters live side by side; the copy of a folder that
// lives does not, in whatever cluster and under whatever id.
func TestSidecarsOfTwoClusters(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ID, c.Kafka.Bootstrap = "a", nil })
	ownCluster(t, r.store, "main-id")
	ready := func() bool { return r.do("GET", "/readyz", "").status == 200 }
	r.await("ready", ready)
	third := r.store.ClientOf("third")
	t.Cleanup(func() { _ = third.Close() })
	ownCluster(t, third, "third-id")

	cfg := r.cfg
	cfg.DataDir = t.TempDir()
	other, _ := runs(t, cfg, third)
	<-other.Ready()
	r.await("both are there", func() bool {
		for _, store := range []discovery.Store{r.store, third} {
			in, _, err := store.WatchServices(t.Context(), discovery.ServiceSidecar, 0)
			if err != nil || len(in) != 1 || in[0].ID != "sidestream-sidecar-a" {
				return false
			}
			if keys, err := store.List(t.Context(), discovery.PrefixSidecars); err != nil || len(keys) != 1 {
				return false
			}
		}
		return true
	})

	for id, store := range map[string]discovery.Store{"a": third, "b": r.store} {
		cfg.ID, cfg.DataDir = id, t.TempDir()+"/copy"
		if err := os.CopyFS(cfg.DataDir, os.DirFS(r.cfg.DataDir)); err != nil {
			t.Fatal(err)
		}
		file := cfg.DataDir + "/identity.json"
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(b), "main-id", "")), 0o600); err != nil {
			t.Fatal(err)
		}
		_, ended := runs(t, cfg, store)
		endsWith(t, ended, errTwin, `sidecar "a" of consul.cluster "main"`, r.sidecar.Addr())
	}
	if !ready() || !strings.Contains(string(r.do("GET", "/status", "").body), `"main-id"`) {
		t.Error("the true one was disturbed")
	}
}
