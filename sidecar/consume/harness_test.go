package consume

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is how long a test waits for what must come; far more than it takes,
// for slow machines.
const deadline = 30 * time.Second

// lab is a Kafka cluster and a coordination store with any number of hosts.
type lab struct {
	t     *testing.T
	kafka *kfake.Cluster
	store *discovery.Memory
	prod  *kgo.Client
	log   *zap.Logger // of its hosts; nil: with -v the test's
	// wrap, if set, stands between a host and the store.
	wrap func(id string, c *discovery.MemoryClient) discovery.Store
	// brokers, if set, stands between its hosts and the brokers.
	brokers func(Upstream) Upstream
	// unpack, if set, is the limit of a batch, in bytes.
	unpack int64
}

func newLab(t *testing.T, topics map[string]int32, opts ...kfake.Opt) *lab {
	t.Helper()
	opts = append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)
	for name, n := range topics {
		opts = append(opts, kfake.SeedTopics(n, name))
	}
	kafka, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	store, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: 2 * time.Second, CheckTTL: 600 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	l := &lab{t: t, kafka: kafka, store: store}
	l.renewProducer()
	return l
}

// renewProducer makes a producer that knows nothing yet.
func (l *lab) renewProducer() {
	l.t.Helper()
	prod, err := kgo.NewClient(kgo.SeedBrokers(l.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(prod.Close)
	l.prod = prod
}

// produce writes values first … first+n-1 to a partition.
func (l *lab) produce(topic string, partition int32, first, n int) {
	l.t.Helper()
	var rs []*kgo.Record
	for i := first; i < first+n; i++ {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(strconv.Itoa(i))})
	}
	if err := l.prod.ProduceSync(l.t.Context(), rs...).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

// testConfig is quick where the default is patient.
func testConfig() Config {
	c := DefaultConfig()
	c.LeaveAfter = 20 * time.Second
	c.ReleaseWait = 300 * time.Millisecond
	c.Recheck = 200 * time.Millisecond
	c.FetchWait = 100 * time.Millisecond
	return c
}

// host is one sidecar.
type host struct {
	lab        *lab
	id         string
	dir        string
	m          *Manager
	up         *upstream.Upstream
	store      *discovery.MemoryClient
	local      *offsets.Local
	checkpoint *offsets.Checkpointer
	reg        discovery.Registration
	registry   *prometheus.Registry
	interval   *atomic.Int64 // of checkpoints
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	down       bool

	mu   sync.Mutex // guards sess
	sess discovery.Session
}

func (l *lab) host(id string, change ...func(*Config)) *host {
	l.t.Helper()
	return l.hostIn(id, l.t.TempDir(), change...)
}

// hostIn starts a sidecar whose local store is in a folder.
func (l *lab) hostIn(id, dir string, change ...func(*Config)) *host {
	l.t.Helper()
	cfg := testConfig()
	for _, f := range change {
		f(&cfg)
	}
	log := zap.NewNop()
	if testing.Verbose() {
		log = zaptest.NewLogger(l.t, zaptest.Level(zap.InfoLevel)).Named(id)
	}
	if l.log != nil {
		log = l.log
	}
	h := &host{lab: l, id: id, dir: dir, store: l.store.Client(), interval: new(atomic.Int64), registry: prometheus.NewRegistry()}
	h.interval.Store(int64(20 * time.Millisecond))
	must := func(err error) {
		l.t.Helper()
		if err != nil {
			l.t.Fatal(err)
		}
	}
	var err error
	ucfg := upstream.DefaultConfig()
	ucfg.Bootstrap = l.kafka.ListenAddrs()
	ucfg.MetadataAge = 100 * time.Millisecond
	if l.unpack > 0 {
		ucfg.MaxUnpackedBytes, ucfg.UnpackMemory = l.unpack, 2*l.unpack
	}
	h.up, err = upstream.New(ucfg, h.store, log)
	must(err)
	h.local, err = offsets.OpenLocal(filepath.Join(dir, "positions.db"), log)
	must(err)
	store := discovery.Store(h.store)
	if l.wrap != nil {
		store = l.wrap(id, h.store)
	}
	h.checkpoint = offsets.NewCheckpointer(store, offsets.CheckpointOptions{
		Owner: id, Nonce: id, Interval: func() time.Duration { return time.Duration(h.interval.Load()) }, Logger: log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.sess, err = h.store.NewSession(ctx, id)
	must(err)
	service := "sidestream-sidecar-" + id
	h.reg, err = h.store.Register(ctx, discovery.Service{ID: service, Name: discovery.ServiceSidecar, Address: "127.0.0.1", Port: 1})
	must(err)
	_, err = h.store.Commit(ctx, discovery.Acquire(discovery.KeySidecar(id), discovery.Encode(discovery.Sidecar{ID: id, Address: "127.0.0.1:1"}), h.sess.ID()))
	must(err)
	up := Upstream(h.up)
	if l.brokers != nil {
		up = l.brokers(up)
	}
	h.m, err = New(cfg, Deps{
		ID: id, Nonce: id, Service: service, Store: store, Session: h.session,
		Registration: func() discovery.Registration { return h.reg },
		Upstream:     up, Local: h.local, Checkpointer: h.checkpoint, Logger: log, Registerer: h.registry,
	})
	must(err)
	h.wg.Go(func() { _ = h.checkpoint.Run(ctx) })
	h.wg.Go(func() { h.keepSession(ctx) })
	h.m.Start()
	l.t.Cleanup(func() { h.close() })
	return h
}

func (h *host) session() discovery.Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sess
}

// keepSession makes a new session when one is lost, as the sidecar does.
func (h *host) keepSession(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.session().Lost():
		}
		s, err := h.store.NewSession(ctx, h.id)
		if err != nil {
			if pause(ctx, 20*time.Millisecond) != nil {
				return
			}
			continue
		}
		h.mu.Lock()
		h.sess = s
		h.mu.Unlock()
	}
}

// close stops the sidecar as SIGTERM does.
func (h *host) close() {
	if h.down {
		return
	}
	h.down = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = h.m.Close(ctx)
	_ = h.checkpoint.Close(ctx)
	h.cancel()
	h.wg.Wait()
	_ = h.reg.Deregister(ctx)
	_ = h.session().Destroy(ctx)
	_ = h.local.Close()
	h.up.Close()
	_ = h.store.Close()
}

// kill stops the sidecar as kill -9 does: nothing more is written, nothing is
// released.
func (h *host) kill() {
	h.down = true
	h.store.SetCut(true)
	h.m.stop()
	h.cancel()
	h.wg.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = h.checkpoint.Close(ctx)
	_ = h.local.Close()
	h.up.Close()
	_ = h.store.Close()
}

// endSession ends the host's session in the store, as suspicion does.
func (h *host) endSession() {
	h.lab.t.Helper()
	if err := h.lab.store.DestroySession(h.lab.t.Context(), h.session().ID()); err != nil {
		h.lab.t.Fatal(err)
	}
}

// leave makes the host leave a group, as it does by itself when nobody pulls.
func (h *host) leave(group string) {
	h.lab.t.Helper()
	if g := h.m.lookup(group); g != nil {
		g.leaveNow()
		<-g.done
	}
}

func (h *host) pull(req PullRequest) *Delivery {
	h.lab.t.Helper()
	d, err := h.m.Pull(h.lab.t.Context(), req)
	if err != nil {
		h.lab.t.Fatalf("%s: pull: %v", h.id, err)
	}
	return d
}

// pullSome pulls until there are messages.
func (h *host) pullSome(req PullRequest) *Delivery {
	h.lab.t.Helper()
	req.Wait = time.Second
	end := time.Now().Add(deadline)
	for {
		d := h.pull(req)
		if len(d.Messages) > 0 {
			return d
		}
		if time.Now().After(end) {
			h.lab.t.Fatalf("%s: no messages of %s for %s in %s, reason %s; status %+v", h.id, req.Topic, req.Group, deadline, *d.Reason, h.m.Status())
		}
	}
}

func receiptsOf(d *Delivery) []string {
	var rs []string
	for _, m := range d.Messages {
		rs = append(rs, m.Receipt)
	}
	return rs
}

func (h *host) ack(group, topic string, receipts ...string) api.ReceiptResponse {
	h.lab.t.Helper()
	r, err := h.m.Ack(h.lab.t.Context(), group, topic, api.Receipts{Receipts: receipts})
	if err != nil {
		h.lab.t.Fatalf("%s: ack: %v", h.id, err)
	}
	return r
}

func (h *host) ackAll(group, topic string, d *Delivery) {
	h.lab.t.Helper()
	if r := h.ack(group, topic, receiptsOf(d)...); r.Failed > 0 {
		h.lab.t.Fatalf("%s: %d acks failed: %+v", h.id, r.Failed, r.Results)
	}
}

// partitions are those that the host owns now.
func (h *host) partitions(group, topic string) []int32 {
	var ps []int32
	if g := h.m.lookup(group); g != nil {
		if s := g.share(topic); s != nil {
			for _, o := range s.list() {
				if o.view(time.Now()).state == stateOwned {
					ps = append(ps, o.key.Partition)
				}
			}
		}
	}
	return ps
}

// eventually polls until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for !cond() {
		if time.Now().After(end) {
			t.Fatalf("not in %s: %s", deadline, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tally counts deliveries by message id and checks the order of each partition.
type tally struct {
	mu    sync.Mutex // guards all below
	seen  map[string]int
	order map[int32][]int64
}

func newTally() *tally { return &tally{seen: map[string]int{}, order: map[int32][]int64{}} }

func (c *tally) add(ms []api.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range ms {
		c.seen[m.ID]++
		c.order[m.Partition] = append(c.order[m.Partition], m.Offset)
	}
}

func (c *tally) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

func (c *tally) repeated() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for id, n := range c.seen {
		if n > 1 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// offsetsOf are the offsets of messages, as text for comparing.
func offsetsOf(ms []api.Message) string {
	os := make([]int64, len(ms))
	for i, m := range ms {
		os[i] = m.Offset
	}
	return fmt.Sprint(os)
}
