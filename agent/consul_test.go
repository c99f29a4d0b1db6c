package agent

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sidestream/discovery"
	"sidestream/discovery/discoverytest"
)

// The main turns of a cluster's life on a real Consul: topics, a restart and a
// pause of Consul, a host that falls silent, and a wipe.
func TestOnConsul(t *testing.T) {
	consul := discoverytest.Start(t, "")
	c := newTestCluster(t)
	var hosts []*storageHost
	for i := range 2 {
		h := c.host(fmt.Sprint("host", i+1))
		h.real = true
		h.wrap = func(discovery.Store) discovery.Store {
			cfg := consul.Config("main")
			cfg.SessionTTL = 10 * time.Second // Consul's own least: what ends sooner was suspected
			store, err := discovery.NewConsul(cfg, zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			return store
		}
		h.start(c)
		h.ready()
		hosts = append(hosts, h)
	}
	one, two := hosts[0], hosts[1]
	everywhere := func(topic, leaders string) {
		t.Helper()
		for _, h := range hosts {
			h.await(topic+" led by "+leaders, func() bool { return fmt.Sprint(h.leaders(topic)) == leaders })
		}
	}
	one.await("both brokers", func() bool { return len(one.View().Brokers) == 2 })
	one.create("t", 4)
	everywhere("t", "[1 2 1 2]")
	cl := client(t, one)
	write := func(value string) {
		t.Helper()
		for p := range int32(4) {
			produce(t, cl, "t", p, value)
		}
	}
	write("a")
	one.create("gone", 70)
	two.delete("gone")
	if n := len(folders(t, one, "gone")) + len(folders(t, two, "gone")); n != 0 {
		t.Errorf("%d folders of the deleted topic are left", n)
	}

	consul.Pause()
	write("b")
	consul.Resume()
	consul.Restart()
	write("c")
	everywhere("t", "[1 2 1 2]")

	two.stop()
	one.await("half of the leaders gone", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 -1 1 -1]" })
	two.start(c)
	two.ready()
	everywhere("t", "[1 2 1 2]")
	write("d")

	cluster := one.Status().ClusterID
	consul.Wipe()
	for _, h := range hosts {
		h.await("the alarm", func() bool { return h.hasAlarm("cluster-id missing") })
	}
	write("e")
	ctx, cancel := shortly()
	defer cancel()
	for _, h := range hosts {
		if r, err := h.Rebuild(ctx, cluster); err != nil || len(r.Conflicts) != 0 || len(r.Partitions) != 2 {
			t.Fatalf("%s: rebuild: %+v %v", h.name, r, err)
		}
	}
	for _, h := range hosts {
		h.await("no alarm", func() bool { return len(h.Alarms()) == 0 })
	}
	everywhere("t", "[1 2 1 2]")
	write("f")
	if got := consume(t, two, "t", 24); fmt.Sprint(got) != "map[0:[a b c d e f] 1:[a b c d e f] 2:[a b c d e f] 3:[a b c d e f]]" {
		t.Errorf("consumed %v", got)
	}
	one.create("after", 2)
}
