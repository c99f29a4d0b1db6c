package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// patience is how long a test waits for what must come; it costs nothing when
// it comes.
const patience = 40 * time.Second

// fakeDisk is what survives of a fakeHost.
type fakeDisk struct {
	mu      sync.Mutex // guards all below
	parts   map[facts.Part]broker.Held
	removed []facts.Part
	clean   bool
	refuse  bool // Lead fails
}

func (d *fakeDisk) held() map[facts.Part]int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := map[facts.Part]int32{}
	for p, h := range d.parts {
		m[p] = h.LeaderEpoch
	}
	return m
}

func (d *fakeDisk) removals() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.removed)
}

// holds says whether anything of the topic is on the disk.
func (d *fakeDisk) holds(topic string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.parts {
		if h.Topic == topic {
			return true
		}
	}
	return false
}

// fakeHost stands for a broker: it keeps what it was told, as a broker would.
type fakeHost struct {
	disk *fakeDisk
	conn net.Listener

	mu       sync.Mutex // guards what follows
	leads    map[facts.Part]broker.Lead
	resigned []facts.Part
	quota    broker.QuotaConfig // as last set
}

func (h *fakeHost) Serve() (err error) {
	h.conn, err = net.Listen("tcp", "127.0.0.1:0")
	return err
}

func (h *fakeHost) Addr() string {
	if h.conn == nil {
		return ""
	}
	return h.conn.Addr().String()
}

func (h *fakeHost) Advertised() (string, int32) {
	a := h.conn.Addr().(*net.TCPAddr)
	return a.IP.String(), int32(a.Port)
}

func (h *fakeHost) SetQuota(c broker.QuotaConfig) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quota = c
	return nil
}

func (h *fakeHost) Held() []broker.Held {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	var list []broker.Held
	for _, p := range h.disk.parts {
		list = append(list, p)
	}
	return list
}

func (h *fakeHost) Lead(l broker.Lead) error {
	part := facts.Part{UUID: l.ID.String(), Partition: l.Partition}
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.disk.refuse {
		return errors.New("no room")
	}
	if held, ok := h.disk.parts[part]; ok && held.LeaderEpoch > l.Epoch {
		return fmt.Errorf("epoch %d is below %d", l.Epoch, held.LeaderEpoch)
	}
	h.disk.parts[part] = broker.Held{Topic: l.Topic, ID: l.ID, Partition: l.Partition, Count: l.Count, Configs: l.Configs, LeaderEpoch: l.Epoch}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leads[part] = l
	return nil
}

func (h *fakeHost) Resign(id broker.UUID, partition int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	part := facts.Part{UUID: id.String(), Partition: partition}
	delete(h.leads, part)
	h.resigned = append(h.resigned, part)
}

func (h *fakeHost) Remove(id broker.UUID, partition int32) error {
	part := facts.Part{UUID: id.String(), Partition: partition}
	h.mu.Lock()
	delete(h.leads, part)
	h.mu.Unlock()
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	delete(h.disk.parts, part)
	h.disk.removed = append(h.disk.removed, part)
	return nil
}

func (h *fakeHost) Alarms() []string { return nil }

func (h *fakeHost) Close(context.Context) error {
	h.disk.mu.Lock()
	h.disk.clean = true
	h.disk.mu.Unlock()
	if h.conn == nil {
		return nil
	}
	return h.conn.Close()
}

func (h *fakeHost) resignations() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.resigned)
}

func (h *fakeHost) leading() map[facts.Part]broker.Lead {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := map[facts.Part]broker.Lead{}
	for p, l := range h.leads {
		m[p] = l
	}
	return m
}

// storage host: a data folder with a broker that is started and stopped.
type storageHost struct {
	t    *testing.T
	name string
	dir  string
	cfg  Config
	disk *fakeDisk
	real bool // the broker itself, not a fake
	wrap func(discovery.Store) discovery.Store

	kernel  func() (time.Time, bool) // what the kernel says of its clock
	cluster string                   // name of another cluster in the same store, "": the first one's

	*Agent
	host   *fakeHost
	client *discovery.MemoryClient
	cancel context.CancelFunc
	done   chan error
	ended  bool
	err    error
}

// testCluster is a memory store with hosts.
type testCluster struct {
	t     *testing.T
	store *discovery.Memory
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	// Sessions outlive every test here: only suspicion ends that of a dead host.
	store, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &testCluster{t: t, store: store}
}

func (c *testCluster) host(name string) *storageHost {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.Broker.Listen = c.t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	cfg.StoreTimeout, cfg.StartWait = 3*time.Second, 300*time.Millisecond
	h := &storageHost{t: c.t, name: name, dir: cfg.DataDir, cfg: cfg, disk: &fakeDisk{parts: map[facts.Part]broker.Held{}}}
	c.t.Cleanup(func() { h.kill() })
	return h
}

// started makes hosts and starts them, one after the other, so that the first
// has id 1.
func (c *testCluster) started(names ...string) []*storageHost {
	c.t.Helper()
	var hosts []*storageHost
	for _, n := range names {
		h := c.host(n)
		h.start(c)
		h.ready()
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		h.await("all brokers in the view", func() bool { return len(h.View().Brokers) == len(hosts) && h.View().Controller > 0 })
	}
	return hosts
}

func (h *storageHost) start(c *testCluster) {
	h.t.Helper()
	h.client = c.store.Client()
	if h.cluster != "" {
		h.client = c.store.ClientOf(h.cluster)
	}
	var store discovery.Store = h.client
	if h.wrap != nil {
		store = h.wrap(store)
	}
	a, err := New(h.cfg, store, zaptest.NewLogger(h.t, zaptest.Level(zap.WarnLevel)).Named(h.name))
	if err != nil {
		h.t.Fatal(err)
	}
	fake := &fakeHost{disk: h.disk, leads: map[facts.Part]broker.Lead{}}
	a.kernel = h.kernel
	open := a.open
	a.open = func(cfg broker.Config, opts broker.Options) (host, error) {
		if h.real {
			return open(cfg, opts)
		}
		if cfg.ID == 0 || cfg.DataDir != h.dir {
			h.t.Errorf("%s: the broker is opened as %d in %q", h.name, cfg.ID, cfg.DataDir)
		}
		return fake, nil
	}
	heldIn := a.heldIn
	a.heldIn = func() ([]broker.Held, error) {
		if h.real {
			return heldIn()
		}
		return fake.Held(), nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.Agent, h.host, h.cancel, h.done, h.ended, h.err = a, fake, cancel, make(chan error, 1), false, nil
	go func() { h.done <- a.Run(ctx) }()
}

func (h *storageHost) ready() {
	h.t.Helper()
	select {
	case <-h.Ready():
	case err := <-h.done:
		h.ended, h.err = true, err
		h.t.Fatalf("%s: Run ended with %v", h.name, err)
	case <-time.After(patience):
		h.t.Fatalf("%s is not ready; alarms %q", h.name, h.Alarms())
	}
}

// wait waits until Run ends by itself.
func (h *storageHost) wait() error {
	h.t.Helper()
	if h.ended {
		return h.err
	}
	select {
	case h.err = <-h.done:
		h.ended = true
		h.client.Close()
		return h.err
	case <-time.After(patience):
		h.t.Fatalf("%s does not end", h.name)
		return nil
	}
}

// stop is SIGTERM.
func (h *storageHost) stop() {
	h.t.Helper()
	h.cancel()
	if err := h.wait(); err != nil {
		h.t.Errorf("%s: a clean stop gave %v", h.name, err)
	}
}

// kill is kill -9 as the store sees it: the host falls silent.
func (h *storageHost) kill() {
	if h.Agent == nil || h.ended {
		return
	}
	h.client.SetCut(true)
	h.cancel()
	_ = h.wait()
}

func (h *storageHost) await(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			f, _ := h.mirror.Latest()
			h.t.Fatalf("%s waited in vain: %s\nview %+v\nfacts %+v\nalarms %q\nleading %+v", h.name, what, h.View(), f, h.Alarms(), h.host.leading())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (h *storageHost) create(name string, partitions int32) *broker.TopicView {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, err := h.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: partitions, Replication: -1})
	if err != nil {
		h.t.Fatalf("%s: create %s: %v", h.name, name, err)
	}
	return &t
}

func (h *storageHost) delete(name string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.DeleteTopic(ctx, name); err != nil {
		h.t.Fatalf("%s: delete %s: %v", h.name, name, err)
	}
}

// leaders of a topic as the host sees them.
func (h *storageHost) leaders(topic string) []int32 {
	t := h.View().Topics[topic]
	if t == nil {
		return nil
	}
	var list []int32
	for _, p := range t.Partitions {
		list = append(list, p.Leader)
	}
	return list
}

func (h *storageHost) hasAlarm(words string) bool {
	return slices.ContainsFunc(h.Alarms(), func(a string) bool { return strings.Contains(a, words) })
}

// keys under a prefix of the store.
func (c *testCluster) keys(prefix string) []discovery.Entry {
	c.t.Helper()
	entries, err := c.store.List(context.Background(), prefix)
	if err != nil {
		c.t.Fatal(err)
	}
	return entries
}

func shortly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}
