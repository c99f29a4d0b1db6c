package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sidestream/agent"
	"sidestream/discovery"
	"sidestream/discovery/discoverytest"
	"sidestream/sidecar"
)

// clusterHost is an agent and a sidecar of one cluster on a real Consul.
type clusterHost struct {
	t       *testing.T
	cluster string
	store   discovery.Store
	agent   *agent.Agent
	sidecar *sidecar.Sidecar
	dir     string
}

func newClusterHost(t *testing.T, consul *discoverytest.Consul, cluster string) *clusterHost {
	t.Helper()
	store, err := discovery.NewConsul(consul.Config(cluster), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &clusterHost{t: t, cluster: cluster, store: store, dir: t.TempDir()}
}

// run runs a server until the test ends or stop is called; ended tells how it
// ended by itself.
func (h *clusterHost) run(s server) (stop func(), ended <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	end, done := make(chan error, 1), make(chan struct{})
	go func() { defer close(done); end <- s.Run(ctx) }()
	stop = func() { cancel(); <-done }
	h.t.Cleanup(stop)
	return stop, end
}

func (h *clusterHost) newAgent(dir string) *agent.Agent {
	h.t.Helper()
	cfg := agent.DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.Broker.Listen = dir, "127.0.0.1:0", "127.0.0.1:0"
	a, err := agent.New(cfg, h.store, zap.NewNop())
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

func (h *clusterHost) startAgent() (stop func()) {
	h.t.Helper()
	h.agent = h.newAgent(filepath.Join(h.dir, "agent"))
	stop, ended := h.run(h.agent)
	select {
	case <-h.agent.Ready():
	case err := <-ended:
		h.t.Fatalf("the agent of %s ended with %v", h.cluster, err)
	case <-time.After(time.Minute):
		h.t.Fatalf("the agent of %s is not ready: %q", h.cluster, h.agent.Alarms())
	}
	return stop
}

func (h *clusterHost) startSidecar() {
	h.t.Helper()
	cfg := sidecar.DefaultConfig()
	cfg.ID, cfg.DataDir, cfg.Listen = "s", filepath.Join(h.dir, "sidecar"), "127.0.0.1:0"
	cfg.Kafka.MetadataAge = 100 * time.Millisecond
	s, err := sidecar.New(cfg, h.store, zap.NewNop())
	if err != nil {
		h.t.Fatal(err)
	}
	_, ended := h.run(s)
	select {
	case <-s.Ready():
	case err := <-ended:
		h.t.Fatalf("the sidecar of %s ended with %v", h.cluster, err)
	}
	h.sidecar = s
}

func (h *clusterHost) do(method, path, body string) string {
	h.t.Helper()
	req, err := http.NewRequest(method, "http://"+h.sidecar.Addr()+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(b))
}

func (h *clusterHost) await(what, method, path, body, want string) {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got := h.do(method, path, body)
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: %s %s: %s", what, method, path, got)
		}
	}
}

// Two clusters in one Consul: with main running, an agent of a third one on an
// empty folder told its operator to rebuild its store with main's cluster-id; a
// sidecar of the third published into main's topics; and a copy of main's agent
// folder, started under the third's name, overwrote the live broker's
// registration.
func TestTwoClustersInOneConsul(t *testing.T) {
	consul := discoverytest.Start(t, "")
	main, third := newClusterHost(t, consul, "main"), newClusterHost(t, consul, "third")
	stopMain := main.startAgent()
	main.startSidecar()
	main.await("main begins", "PUT", "/topics/t", `{"partitions":1}`, "20")
	main.await("main's topic", "POST", "/topics/t", "of main", `"offset":0`)

	// Nobody of the third cluster is there: its sidecar finds nobody.
	third.startSidecar()
	for range 3 {
		if got := third.do("POST", "/topics/t?timeout=1s", "of third"); !strings.HasPrefix(got, "503 ") || !strings.Contains(got, `consul.cluster \"third\"`) {
			t.Fatalf("a sidecar without brokers answers %s", got)
		}
	}

	stopThird := third.startAgent()
	if third.agent.ID() != 1 || main.agent.ID() != 1 || len(third.agent.Alarms()) != 0 {
		t.Errorf("brokers %d and %d, alarms %q", main.agent.ID(), third.agent.ID(), third.agent.Alarms())
	}
	third.await("the third begins", "PUT", "/topics/t", `{"partitions":1}`, "20")
	third.await("the third's topic", "POST", "/topics/t", "of third", `"offset":0`)
	main.await("main goes on", "POST", "/topics/t", "of main", `"offset":1`)
	for _, h := range []*clusterHost{main, third} {
		h.await("a group", "POST", "/groups/g/topics/t/pull?wait=5s&max=10", "", "of "+h.cluster)
		if got := h.do("GET", "/status", ""); !strings.Contains(got, `"sidecars":1`) && !strings.Contains(got, `"sidecars": 1`) {
			t.Errorf("%s: %s", h.cluster, got)
		}
		in, _, err := h.store.WatchServices(t.Context(), discovery.ServiceBroker, 0)
		if err != nil || len(in) != 1 || fmt.Sprintf("%s:%d", in[0].Address, in[0].Port) != h.agent.BrokerAddr() {
			t.Errorf("%s has the brokers %+v, %v", h.cluster, in, err)
		}
	}

	// A rebuild in the wrong place.
	id := func(a *agent.Agent) string { return a.Status().ClusterID }
	if _, err := third.agent.Rebuild(t.Context(), id(main.agent)); !errors.Is(err, agent.ErrRebuild) {
		t.Errorf("a rebuild with main's cluster-id gave %v", err)
	}

	// A copy of main's folder under the third's name, in whose store there is
	// nothing, as for a new cluster, and while main is up and down.
	stopThird()
	if _, err := third.store.Commit(t.Context(), discovery.DeletePrefix("")); err != nil {
		t.Fatal(err)
	}
	for _, up := range []bool{true, false} {
		if !up {
			stopMain()
		}
		dir := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(main.dir, "agent"))); err != nil {
			t.Fatal(err)
		}
		_, ended := third.run(third.newAgent(dir))
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), `which is consul.cluster "main"`) {
				t.Errorf("the copy ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the copy of main's folder serves under another name")
		}
	}
	main.startAgent()
	main.await("main is back", "POST", "/topics/t", "of main", `"offset":2`)
	in, _, err := main.store.WatchServices(t.Context(), discovery.ServiceBroker, 0)
	if err != nil || len(in) != 1 || fmt.Sprintf("%s:%d", in[0].Address, in[0].Port) != main.agent.BrokerAddr() {
		t.Errorf("main has the brokers %+v, %v", in, err)
	}
}
