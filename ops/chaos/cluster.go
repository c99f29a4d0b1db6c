package chaos

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/discovery/discoverytest"
	"sidestream/sdk/api"
)

// Options of a cluster under test.
type Options struct {
	CheckpointInterval time.Duration // of the sidecars; 0: the product's default
	HostAgents         bool          // every sidecar has a Consul agent of its own, as hosts have
	Spare              int           // sidecars that are made and not started, beside the others
	Keep               string        // folder for data and logs that outlives the test; "": none does
	Wires              bool          // what goes between the sidecars and the brokers goes over wires that can fail
	SmallDisks         bool          // the first agent and the first sidecar have disks that can be full, if this machine allows it
	Sidecar            string        // more of the sidecars' configuration
}

// Cluster is a Consul, agents and sidecars, each a process of its own. The
// test's end stops them and demands a clean exit of those still running.
type Cluster struct {
	Consul   *discoverytest.Consul
	Agents   []*Process
	Sidecars []*Process
	Spares   []*Process
	Wires    []*Wire           // in front of the agents' brokers
	Disks    map[*Process]Disk // those that can be full

	t   testing.TB
	bin string
	dir string
}

// hosts gives every cluster an own loopback address, so that tests of other
// packages that run at the same time cannot take its ports between a kill and
// a restart.
var hosts atomic.Int32

// Start brings a cluster up and waits until all of it is ready.
func Start(t testing.TB, agents, sidecars int, o Options) *Cluster {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, bin: bin, dir: o.Keep}
	if c.dir == "" {
		c.dir = t.TempDir()
	}
	c.Consul = discoverytest.Start(t, filepath.Join(c.dir, "consul"))
	host := fmt.Sprintf("127.0.77.%d", 1+hosts.Add(1)%250)
	for i := range agents {
		c.Agents = append(c.Agents, c.agent(host, i, o))
	}
	for i := range sidecars + o.Spare {
		p := c.sidecar(host, i, o)
		if i < sidecars {
			c.Sidecars = append(c.Sidecars, p)
		} else {
			c.Spares = append(c.Spares, p)
		}
	}
	if o.SmallDisks {
		c.Disks = map[*Process]Disk{}
		for _, p := range []*Process{c.Agents[0], c.Sidecars[0]} {
			if d, err := mountSmall(t, filepath.Join(c.dir, p.Name)); err != nil {
				t.Logf("no disk will be full: %v", err)
			} else {
				c.Disks[p] = d
			}
		}
	}
	t.Cleanup(c.stop)
	for _, p := range c.Agents {
		p.Start()
	}
	for _, p := range c.Agents {
		p.WaitReady(90 * time.Second)
	}
	for _, p := range c.Sidecars {
		p.Start()
	}
	for _, p := range c.Sidecars {
		p.WaitReady(90 * time.Second)
	}
	return c
}

func (c *Cluster) agent(host string, i int, o Options) *Process {
	http := net.JoinHostPort(host, strconv.Itoa(freePort(c.t, host)))
	kafka := net.JoinHostPort(host, strconv.Itoa(freePort(c.t, host)))
	name := fmt.Sprintf("agent-%d", i+1)
	advertise := ""
	if o.Wires {
		w := NewWire(c.t, net.JoinHostPort(host, strconv.Itoa(freePort(c.t, host))), kafka)
		c.Wires = append(c.Wires, w)
		advertise = w.Addr
	}
	return c.process(name, http, "agent", fmt.Sprintf(`
data_dir: %s
id: %d
rack: rack-%d
listen: %s
broker:
  listen: %s
  advertise: "%s"
`, filepath.Join(c.dir, name), i+1, i+1, http, kafka, advertise), c.Consul)
}

func (c *Cluster) sidecar(host string, i int, o Options) *Process {
	http := net.JoinHostPort(host, strconv.Itoa(freePort(c.t, host)))
	name := fmt.Sprintf("sidecar-%d", i+1)
	more := ""
	if o.CheckpointInterval > 0 {
		more = fmt.Sprintf("checkpoint_interval: %s\n", o.CheckpointInterval)
	}
	consul := c.Consul
	if o.HostAgents {
		consul = c.Consul.Join(c.t, filepath.Join(c.dir, "consul-"+name), "host-of-"+name)
	}
	return c.process(name, http, "sidecar", fmt.Sprintf(`
id: %s
data_dir: %s
listen: %s
%s%s`, name, filepath.Join(c.dir, name), http, more, o.Sidecar), consul)
}

func (c *Cluster) process(name, http, command, config string, consul *discoverytest.Consul) *Process {
	config += fmt.Sprintf("consul:\n  address: %s\n", consul.Addr())
	file := filepath.Join(c.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return &Process{
		Name: name, HTTP: "http://" + http, Consul: consul,
		t: c.t, path: c.bin, args: []string{command, "--config", file},
		env: []string{"GORACE=halt_on_error=1 exitcode=66"},
		log: filepath.Join(c.dir, name+".log"),
	}
}

// stop ends sidecars before agents, as an operator would, and shows the logs
// of all when the test has failed.
func (c *Cluster) stop() {
	for _, p := range c.all() {
		if p.cmd == nil {
			continue
		}
		if p.Exited() {
			if code := p.cmd.ProcessState.ExitCode(); code > 0 {
				c.t.Errorf("%s ended with status %d\n%s", p.Name, code, p.Tail())
			}
			continue
		}
		p.Stop()
	}
	if c.t.Failed() {
		for _, p := range c.all() {
			c.t.Log(p.Tail())
		}
	}
}

// all is every process, in the order in which an operator would stop them.
func (c *Cluster) all() []*Process { return slices.Concat(c.Spares, c.Sidecars, c.Agents) }

// CreateTopic makes a topic through a sidecar and waits until all its
// partitions have a leader.
func (c *Cluster) CreateTopic(name string, partitions int) {
	c.t.Helper()
	base := c.Sidecars[0].HTTP + "/topics/" + name
	spec, _ := json.Marshal(api.TopicSpec{Partitions: int32(partitions)})
	eventually(c.t, 60*time.Second, func() error {
		var topic api.Topic
		if _, err := call("GET", base, nil, &topic); err != nil {
			if _, err := call("PUT", base, spec, nil); err != nil {
				return err
			}
			return errNotYet
		}
		if len(topic.Partitions) != partitions {
			return fmt.Errorf("%s has %d partitions", name, len(topic.Partitions))
		}
		for _, p := range topic.Partitions {
			if p.Leader < 0 || p.End < 0 {
				return fmt.Errorf("%s/%d has no leader", name, p.Partition)
			}
		}
		return nil
	})
}

func (c *Cluster) postLines(p *Process, topic, body, keyField string) api.BatchPublished {
	c.t.Helper()
	var res api.BatchPublished
	if _, err := call("POST", p.HTTP+"/topics/"+topic+"/batch?lines=1&key_field="+keyField, []byte(body), &res); err != nil {
		c.t.Fatal(err)
	}
	if res.Failed > 0 {
		c.t.Fatalf("%d of a batch failed: %+v", res.Failed, res.Results)
	}
	return res
}

// shared is nil once every sidecar owns a part of a group's partitions and
// all are owned.
func (c *Cluster) shared(group string, partitions int) error {
	var g api.Group
	if _, err := call("GET", c.Sidecars[0].HTTP+"/groups/"+group, nil, &g); err != nil {
		return err
	}
	owners := map[string]int{}
	for _, o := range g.Owners {
		if o.Owner != "" {
			owners[o.Owner]++
		}
	}
	sum := 0
	for _, n := range owners {
		sum += n
	}
	if len(owners) != len(c.Sidecars) || sum != partitions {
		return fmt.Errorf("owners of %s: %v", group, owners)
	}
	return nil
}

// agentStatus is what these tests read of an agent's /status.
type agentStatus struct {
	ClusterID string   `json:"cluster_id"`
	Alarms    []string `json:"alarms"`
}

func (c *Cluster) status(p *Process) agentStatus {
	c.t.Helper()
	var s agentStatus
	if _, err := call("GET", p.HTTP+"/status", nil, &s); err != nil {
		c.t.Fatalf("%s: %v", p.Name, err)
	}
	return s
}

// logFiles lists the agents' segment files by path.
func (c *Cluster) logFiles() []string {
	c.t.Helper()
	var out []string
	for _, a := range c.Agents {
		err := filepath.WalkDir(filepath.Join(c.dir, a.Name), func(path string, d os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".log") {
				out = append(out, path)
			}
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	sort.Strings(out)
	return out
}

// checkLog reads every partition through peek and holds it against what was
// promised: each promised value at its offset, offsets dense from the start.
func (c *Cluster) checkLog(l *Ledger, p *Process, topic string, partitions int) {
	c.t.Helper()
	got := map[string]string{}
	for part := range partitions {
		next := int64(0)
		for {
			var peeked api.Peeked
			url := fmt.Sprintf("%s/topics/%s/partitions/%d/messages?offset=%d&max=500", p.HTTP, topic, part, next)
			eventually(c.t, 60*time.Second, func() error {
				_, err := call("GET", url, nil, &peeked)
				return err
			})
			for _, m := range peeked.Messages {
				if m.Offset != next {
					c.t.Fatalf("%s/%d: offset %d where %d was due", topic, part, m.Offset, next)
				}
				next++
				if m.Value == nil {
					c.t.Fatalf("%s has no value", m.ID)
				}
				got[m.ID] = *m.Value
			}
			if next >= peeked.End {
				break
			}
			if len(peeked.Messages) == 0 {
				c.t.Fatalf("%s/%d: no messages from %d although the end is %d", topic, part, next, peeked.End)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost []string
	for id, want := range l.published {
		if strings.HasPrefix(id, topic+"/") && got[id] != want {
			lost = append(lost, fmt.Sprintf("%s: promised %.40q, found %.40q", id, want, got[id]))
		}
	}
	if len(lost) > 0 {
		sort.Strings(lost)
		c.t.Errorf("%d promised events are not where they were promised: %s", len(lost), few(lost))
	}
	values := map[string]string{}
	for id, v := range got {
		if other, ok := values[v]; ok {
			c.t.Errorf("%q is in the log twice: %s and %s", v, other, id)
		}
		values[v] = id
	}
}
