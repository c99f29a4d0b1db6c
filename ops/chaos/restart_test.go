package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sidestream/discovery"
)

// metric reads one metric without labels of a daemon.
func metric(t *testing.T, p *Process, name string) float64 {
	t.Helper()
	all, err := metricsOf(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	v, ok := all[name]
	if !ok {
		t.Fatalf("%s has no metric %s", p.Name, name)
	}
	return v
}

// kill -9 of an agent and a sidecar, and their start long after their checks
// turned critical. The others judged the new lives by the checks that the old
// ones had left, and ended their sessions within the second.
func TestRestartLongAfterAKill(t *testing.T) {
	c := Start(t, 3, 2, Options{})
	a, b := c.Sidecars[0], c.Sidecars[1]
	agent := c.Agents[2]
	c.CreateTopic("orders", 6)
	l := NewLedger()
	fill(t, l, a, "orders", 0, 30)
	consume := func(p *Process) error {
		if _, err := pullAndAck(l, p, "g", "orders", "max=50&wait=100ms"); err != nil {
			return err
		}
		return nil
	}
	join := func() {
		t.Helper()
		eventually(t, 60*time.Second, func() error {
			for _, p := range []*Process{a, b} {
				if err := consume(p); err != nil {
					return err
				}
			}
			return c.shared("g", 6)
		})
	}
	if err := consume(a); err != nil { // the first plans the group
		t.Fatal(err)
	}
	join()

	agent.Kill()
	b.Kill()
	store, err := discovery.NewConsul(c.Consul.Config("main"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	critical := func(service string) error {
		in, _, err := store.WatchServices(t.Context(), service, 0)
		if err != nil {
			return err
		}
		for _, i := range in {
			if !i.Passing {
				return nil
			}
		}
		return fmt.Errorf("every %s passes", service)
	}
	eventually(t, 60*time.Second, func() error {
		if err := critical(discovery.ServiceBroker); err != nil {
			return err
		}
		return critical(discovery.ServiceSidecar)
	})
	time.Sleep(2 * discovery.SuspectAfter) // they are suspected by now, and go on being so
	suspected := metric(t, a, "sidestream_consume_sessions_suspected_total")

	agent.Start()
	b.Start()
	agent.WaitReady(60 * time.Second)
	b.WaitReady(60 * time.Second)
	began := time.Now()
	join()
	t.Logf("the group is shared again %v after the start", time.Since(began))
	time.Sleep(4 * discovery.SuspectAfter) // whoever would suspect them has done so by now
	for _, p := range c.Agents {
		if n := metric(t, p, "sidestream_agent_sessions_lost_total"); n != 0 {
			t.Errorf("%s lost %v sessions\n%s", p.Name, n, p.Tail())
		}
	}
	for _, p := range c.Sidecars {
		if n := metric(t, p, "sidestream_consume_memberships_lost_total"); n != 0 {
			t.Errorf("%s lost %v memberships\n%s", p.Name, n, p.Tail())
		}
	}
	if n := metric(t, a, "sidestream_consume_sessions_suspected_total"); n != suspected {
		t.Errorf("%s suspected %v times after the restart\n%s", a.Name, n-suspected, a.Tail())
	}
	fill(t, l, b, "orders", 30, 30)
	drainGroup(t, l, 60*time.Second, "g", "orders", a, b)
}

// The brokers and a sidecar restart while Consul is away: no broker has a block
// of producer ids in hand, and new producers get theirs all the same.
func TestProducersBeginWithoutConsul(t *testing.T) {
	c := Start(t, 2, 1, Options{})
	s := c.Sidecars[0]
	c.CreateTopic("orders", 4)
	l := NewLedger()
	fill(t, l, s, "orders", 0, 10)

	// Without Consul a sidecar that starts knows brokers only by such a list.
	var brokers []string
	for _, a := range c.Agents {
		var st struct {
			Broker string `json:"broker"`
		}
		if _, err := call("GET", a.HTTP+"/status", nil, &st); err != nil {
			t.Fatal(err)
		}
		brokers = append(brokers, st.Broker)
	}
	list, err := json.Marshal(brokers)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.dir, s.Name+".yaml")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(config, fmt.Sprintf("kafka:\n  bootstrap: %s\n", list)...), 0o644); err != nil {
		t.Fatal(err)
	}

	c.Consul.Kill()
	s.Kill()
	for _, a := range c.Agents {
		a.Kill()
		a.Start()
	}
	for _, a := range c.Agents {
		a.WaitReady(60 * time.Second)
	}
	s.Start()
	try := func(value string) {
		t.Helper()
		eventually(t, 60*time.Second, func() error {
			a, err := publish(s.HTTP, "orders", "", value, "&timeout=5s")
			if err != nil {
				return err
			}
			return l.Published("orders", a.Partition, a.Offset, value)
		})
	}
	for i := range 10 {
		try(fmt.Sprintf("without Consul %d", i))
	}
	c.Consul.Restart()
	c.CreateTopic("orders", 4) // all leaders are known again
	try("with it")
	drainGroup(t, l, 90*time.Second, "g", "orders", s)
}
