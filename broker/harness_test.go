package broker_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap/zaptest"

	"sidestream/broker"
	"sidestream/broker/disk"
)

const selfID = 1

// fakeCluster is a cluster of one broker in memory.
type fakeCluster struct {
	mu       sync.Mutex // guards everything below
	b        *broker.Broker
	view     *broker.View
	nextPID  int64
	idAsks   int
	offsets  map[string]map[broker.PartitionID]broker.CommittedOffset
	assigned [][]int32 // to the last partitions that were added
	away     error     // of every question about offsets
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{nextPID: 1000, view: &broker.View{ClusterID: "test-cluster", Controller: selfID, Topics: map[string]*broker.TopicView{}}}
}

func (c *fakeCluster) View() *broker.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// change replaces the view by a changed copy.
func (c *fakeCluster) change(f func(v *broker.View)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := *c.view
	v.Topics = maps.Clone(v.Topics)
	f(&v)
	c.view = &v
}

func (c *fakeCluster) CreateTopic(_ context.Context, spec broker.TopicSpec) (broker.TopicView, error) {
	if spec.Partitions == -1 {
		spec.Partitions = 4
	}
	if spec.Replication > 1 {
		return broker.TopicView{}, fmt.Errorf("replication factor %d with 1 broker: %w", spec.Replication, broker.ErrInvalidReplication)
	}
	t := broker.TopicView{Name: spec.Name, Configs: spec.Configs}
	_, _ = rand.Read(t.ID[:])
	for range spec.Partitions {
		t.Partitions = append(t.Partitions, broker.PartitionView{Leader: selfID, Replicas: []int32{selfID}, ISR: []int32{selfID}})
	}
	if spec.ValidateOnly {
		return broker.TopicView{}, nil
	}
	return t, c.lead(t)
}

func (c *fakeCluster) lead(t broker.TopicView) error {
	for i, p := range t.Partitions {
		err := c.b.Lead(broker.Lead{Topic: t.Name, ID: t.ID, Partition: int32(i), Count: int32(len(t.Partitions)), Epoch: p.Epoch,
			Replicas: p.Replicas, ISR: p.ISR, Configs: t.Configs})
		if err != nil {
			return err
		}
	}
	c.change(func(v *broker.View) { v.Topics[t.Name] = &t })
	return nil
}

func (c *fakeCluster) DeleteTopic(_ context.Context, name string) error {
	t := c.View().Topics[name]
	if t == nil {
		return broker.ErrUnknownTopic
	}
	c.change(func(v *broker.View) { delete(v.Topics, name) })
	var errs []error
	for i := range t.Partitions {
		errs = append(errs, c.b.Remove(t.ID, int32(i)))
	}
	return errors.Join(errs...)
}

func (c *fakeCluster) CreatePartitions(_ context.Context, name string, count int32, assignment ...[]int32) error {
	c.mu.Lock()
	c.assigned = assignment
	c.mu.Unlock()
	t := *c.View().Topics[name]
	t.Partitions = append([]broker.PartitionView(nil), t.Partitions...)
	for int32(len(t.Partitions)) < count {
		t.Partitions = append(t.Partitions, broker.PartitionView{Leader: selfID, Replicas: []int32{selfID}, ISR: []int32{selfID}})
	}
	return c.lead(t)
}

func (c *fakeCluster) AlterTopic(_ context.Context, name string, change func(map[string]string) (map[string]string, error)) error {
	old := c.View().Topics[name]
	if old == nil {
		return broker.ErrUnknownTopic
	}
	configs := maps.Clone(old.Configs)
	if configs == nil {
		configs = map[string]string{}
	}
	t := *old
	var err error
	if t.Configs, err = change(configs); err != nil {
		return err
	}
	return c.lead(t)
}

func (c *fakeCluster) CommitOffsets(_ context.Context, group string, offsets map[broker.PartitionID]broker.CommittedOffset) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil {
		return c.away
	}
	if c.offsets == nil {
		c.offsets = map[string]map[broker.PartitionID]broker.CommittedOffset{}
	}
	if c.offsets[group] == nil {
		c.offsets[group] = map[broker.PartitionID]broker.CommittedOffset{}
	}
	maps.Copy(c.offsets[group], offsets)
	return nil
}

func (c *fakeCluster) CommittedOffsets(_ context.Context, group string) (map[broker.PartitionID]broker.CommittedOffset, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.offsets[group]), c.away
}

func (c *fakeCluster) CommittedGroups(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.offsets)), c.away
}

func (c *fakeCluster) DropOffsets(_ context.Context, group string, which []broker.PartitionID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offsets[group] == nil {
		return broker.ErrUnknownGroup
	}
	for _, id := range which {
		delete(c.offsets[group], id)
	}
	if which == nil {
		delete(c.offsets, group)
	}
	return c.away
}

func (c *fakeCluster) NextProducerIDs(context.Context) (first, count int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextPID += 10
	c.idAsks++
	return c.nextPID - 10, 10, nil
}

// world is a broker under test.
type world struct {
	t       *testing.T
	cfg     broker.Config
	fs      disk.FS
	reg     prometheus.Registerer
	cluster *fakeCluster
	b       *broker.Broker
}

func start(t *testing.T, change ...func(*broker.Config)) *world { return startOn(t, nil, change...) }

// startOn starts a broker on a file system, nil for the real one.
func startOn(t *testing.T, fs disk.FS, change ...func(*broker.Config)) *world {
	t.Helper()
	cfg := broker.DefaultConfig()
	cfg.ID, cfg.Listen, cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	for _, f := range change {
		f(&cfg)
	}
	w := &world{t: t, cfg: cfg, fs: fs, cluster: newFakeCluster()}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) open() {
	w.t.Helper()
	b, err := broker.Open(w.cfg, w.cluster, broker.Options{Logger: zaptest.NewLogger(w.t), FS: w.fs, Registerer: w.reg})
	if err != nil {
		w.t.Fatal(err)
	}
	w.b = b
	w.cluster.mu.Lock()
	w.cluster.b = b
	w.cluster.mu.Unlock()
	if err := b.Serve(); err != nil {
		w.t.Fatal(err)
	}
	host, port := b.Advertised()
	w.cluster.change(func(v *broker.View) { v.Brokers = []broker.Node{{ID: selfID, Host: host, Port: port}} })
}

func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.b.Close(ctx); err != nil {
		w.t.Logf("close: %v", err)
	}
}

// leadAgain has a reopened broker lead what it held, as an agent does.
func (w *world) leadAgain() {
	w.t.Helper()
	for _, t := range w.cluster.View().Topics {
		if err := w.cluster.lead(*t); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) topic(name string, partitions int32, configs map[string]string) broker.UUID {
	w.t.Helper()
	t, err := w.cluster.CreateTopic(w.t.Context(), broker.TopicSpec{Name: name, Partitions: partitions, Replication: 1, Configs: configs})
	if err != nil {
		w.t.Fatal(err)
	}
	return t.ID
}

func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.b.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cl.Close)
	return cl
}

func (w *world) admin() *kadm.Client { return kadm.NewClient(w.client()) }

// raw is a connection on which a test says every byte itself.
type raw struct {
	t *testing.T
	net.Conn
	next int32
}

func (w *world) dial() *raw {
	w.t.Helper()
	c, err := net.Dial("tcp", w.b.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return &raw{t: w.t, Conn: c}
}

// frame encodes a request and takes the next correlation id, counted from 1.
func (r *raw) frame(req kmsg.Request) []byte {
	r.next++
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req, r.next)
}

func (r *raw) send(req kmsg.Request) {
	r.t.Helper()
	if _, err := r.Write(r.frame(req)); err != nil {
		r.t.Fatal(err)
	}
}

// body reads an answer: its correlation id and what follows.
func (r *raw) body() (int32, []byte) {
	r.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		r.t.Fatalf("reading an answer's length: %v", err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		r.t.Fatalf("reading an answer: %v", err)
	}
	return int32(binary.BigEndian.Uint32(b)), b[4:]
}

// receive reads an answer into resp and returns its correlation id.
func (r *raw) receive(resp kmsg.Response) int32 {
	r.t.Helper()
	id, b := r.body()
	if resp.IsFlexible() && resp.Key() != 18 {
		b = b[1:]
	}
	if err := resp.ReadFrom(b); err != nil {
		r.t.Fatalf("decoding key %d: %v", resp.Key(), err)
	}
	return id
}

// ask sends a request and reads its answer.
func ask[R kmsg.Response](r *raw, req kmsg.Request) R {
	r.t.Helper()
	r.send(req)
	resp := req.ResponseKind()
	if id := r.receive(resp); id != r.next {
		r.t.Fatalf("answer %d to request %d", id, r.next)
	}
	return resp.(R)
}

func (r *raw) expectClosed() {
	r.t.Helper()
	n, err := r.Read(make([]byte, 1))
	if err == nil {
		r.t.Fatalf("got %d byte(s), want the connection closed", n)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		r.t.Fatal("the connection stays open")
	}
}

func produceReq(version, acks int16, topic string, partition int32, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 10_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, batch
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// put produces a batch with acks=all and returns the partition's answer.
func (r *raw) put(topic string, batch []byte) kmsg.ProduceResponseTopicPartition {
	r.t.Helper()
	return ask[*kmsg.ProduceResponse](r, produceReq(9, -1, topic, 0, batch)).Topics[0].Partitions[0]
}

func fetchReq(version int16, topic string, partition int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.MaxWaitMillis = version, 50<<20, 1, 100
	req.SessionEpoch = -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, offset, 50<<20, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func (r *raw) get(req *kmsg.FetchRequest) kmsg.FetchResponseTopicPartition {
	r.t.Helper()
	return ask[*kmsg.FetchResponse](r, req).Topics[0].Partitions[0]
}
