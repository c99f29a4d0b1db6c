package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/discovery"
)

// agentRegisters makes a broker visible as an agent of the store's cluster does.
func agentRegisters(t *testing.T, store discovery.Store, clusterID, addr string) {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s := discovery.Service{ID: addr, Name: discovery.ServiceBroker, Address: host, Port: n, Meta: map[string]string{discovery.MetaClusterID: clusterID}}
	if _, err := store.Register(context.Background(), s); err != nil {
		t.Fatal(err)
	}
}

func makeCluster(t *testing.T, store discovery.Store, id string) {
	t.Helper()
	if _, err := store.Commit(context.Background(), discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: id}))); err != nil {
		t.Fatal(err)
	}
}

// asked counts the requests of any kind but the question for the cluster.
func asked(c *kfake.Cluster) *atomic.Int32 {
	var n atomic.Int32
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if m, ok := req.(*kmsg.MetadataRequest); !ok || m.Version != askVersion || m.Topics == nil || len(m.Topics) > 0 {
			n.Add(1)
		}
		return nil, nil, false
	})
	return &n
}

// soon tries until a topic is there.
func soon(t *testing.T, u *Upstream, topic string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := u.Refresh(context.Background(), topic); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("topic %s: %v, seeds %v", topic, err, u.Seeds())
		}
	}
}

// A sidecar of a second cluster in the same Consul found the first one's brokers
// and published into their topics.
func TestBrokersOfAnotherClusterAreNotFound(t *testing.T) {
	store := newStore(t)
	main := newCluster(t, kfake.ClusterID("main-id"))
	makeCluster(t, store, "main-id")
	agentRegisters(t, store, "main-id", main.ListenAddrs()[0])
	soon(t, newUpstream(t, DefaultConfig(), store), "t")

	third := store.ClientOf("third")
	t.Cleanup(func() { _ = third.Close() })
	requests := asked(main)
	u := newUpstream(t, DefaultConfig(), third)
	for range 3 {
		_, err := u.Refresh(context.Background(), "t")
		if err == nil || !strings.Contains(err.Error(), `no broker of consul.cluster "third" is registered`) {
			t.Fatalf("got %v", err)
		}
		time.Sleep(negativeAge)
	}
	if n := requests.Load(); n != 0 || len(u.Seeds()) != 0 || u.ClusterID() != "" {
		t.Errorf("%d requests, seeds %v, cluster %q", n, u.Seeds(), u.ClusterID())
	}

	// Its own are found when they come.
	own := newCluster(t, kfake.ClusterID("third-id"))
	makeCluster(t, third, "third-id")
	agentRegisters(t, third, "third-id", own.ListenAddrs()[0])
	soon(t, u, "t")
	if u.ClusterID() != "third-id" {
		t.Errorf("cluster %q", u.ClusterID())
	}
}

// What answers at a broker's address is asked which cluster it is of before it
// gets anything: another cluster's broker may have taken the address.
func TestAStrangerAtABrokersAddress(t *testing.T) {
	store := newStore(t)
	makeCluster(t, store, "ours")
	stranger := newCluster(t, kfake.ClusterID("theirs"))
	requests := asked(stranger)
	agentRegisters(t, store, "ours", stranger.ListenAddrs()[0])
	u := newUpstream(t, DefaultConfig(), store)
	for len(u.Seeds()) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	_, err := u.Refresh(context.Background(), "t")
	if err == nil || !strings.Contains(err.Error(), "of cluster theirs, and this sidecar belongs to ours") {
		t.Fatalf("got %v", err)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests went to another cluster's broker", n)
	}
	if _, err := u.verified(u.plain(t))(context.Background(), "tcp", stranger.ListenAddrs()[0]); !errors.Is(err, errStranger) || !IsDial(err) {
		t.Errorf("the dial gave %v", err)
	}
}

func (u *Upstream) plain(t *testing.T) dialFunc {
	t.Helper()
	dial, err := dialler(u.cfg, new(dials))
	if err != nil {
		t.Fatal(err)
	}
	return dial
}

// The folder knows its cluster when the store does not say it any more, and when
// it says another.
func TestThePinnedClusterIsExpected(t *testing.T) {
	store := newStore(t)
	makeCluster(t, store, "new")
	c := newCluster(t, kfake.ClusterID("new"))
	agentRegisters(t, store, "new", c.ListenAddrs()[0])
	u := newUpstream(t, DefaultConfig(), store)
	soon(t, u, "t")

	pinned := newUpstream(t, DefaultConfig(), store)
	pinned.Pin("old")
	for len(pinned.Seeds()) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := pinned.Refresh(context.Background(), "t"); err == nil || !strings.Contains(err.Error(), "belongs to old") {
		t.Errorf("got %v", err)
	}
}

// Apache Kafka has a cluster-id of its own, which no store knows.
func TestOtherKafkasAreNotAsked(t *testing.T) {
	store := newStore(t)
	makeCluster(t, store, "ours")
	kafka := newCluster(t, kfake.ClusterID("kafka"))
	host, port, _ := net.SplitHostPort(kafka.ListenAddrs()[0])
	n, _ := strconv.Atoi(port)
	if _, err := store.Register(context.Background(), discovery.Service{ID: "k", Name: "kafka", Address: host, Port: n}); err != nil {
		t.Fatal(err)
	}
	byName := DefaultConfig()
	byName.Service = "kafka"
	byList := DefaultConfig()
	byList.Bootstrap = kafka.ListenAddrs()
	for _, cfg := range []Config{byName, byList} {
		u := newUpstream(t, cfg, store)
		u.Pin("ours")
		soon(t, u, "t")
		if u.ClusterID() != "" {
			t.Errorf("%+v: cluster %q is expected", cfg, u.ClusterID())
		}
	}
}

func TestAdmitted(t *testing.T) {
	in := func(cluster, id string) discovery.Instance {
		return discovery.Instance{Cluster: cluster, Service: discovery.Service{Meta: map[string]string{discovery.MetaClusterID: id}}}
	}
	all := []discovery.Instance{in("main", "m"), in("", "m"), in("", "other"), in("", "")}
	for known, want := range map[string]string{"m": "[m m ] 1", "": "[m ] 2", "other": "[m other ] 1"} {
		list, strangers := admitted(all, known)
		var ids []string
		for _, i := range list {
			ids = append(ids, i.Meta[discovery.MetaClusterID])
		}
		if got := fmt.Sprint(ids, strangers); got != want {
			t.Errorf("with %q known: %s, want %s", known, got, want)
		}
	}
	for want, instances := range map[string][]discovery.Instance{
		"":  {in("main", "m"), in("main", "n")},
		"m": {in("main", "m"), in("", "n"), in("main", ""), in("main", "m")},
	} {
		if got := saidBy(instances, "main"); got != want {
			t.Errorf("they say %q, want %q", got, want)
		}
	}
}

// Whatever answers, asking ends.
func TestAskingWhoIsNoBroker(t *testing.T) {
	for name, reply := range map[string]string{
		"nothing": "", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "a huge size": "\xff\xff\xff\xff\x00\x00\x00\x01",
		"too short": "\x00\x00\x00\x00\x00\x00\x00\x01", "another's": "\x00\x00\x00\x04\x00\x00\x00\x02", "no body": "\x00\x00\x00\x04\x00\x00\x00\x01",
	} {
		here, there := net.Pipe()
		go func() {
			buf := make([]byte, 1024)
			_, _ = there.Read(buf)
			_, _ = there.Write([]byte(reply))
			_ = there.Close()
		}()
		if id, err := askCluster(here, "x"); err == nil {
			t.Errorf("%s: cluster %q", name, id)
		}
		_ = here.Close()
	}
}
