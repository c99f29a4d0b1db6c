// Package broker keeps partitions as append-only logs on disk and serves them over the Kafka protocol. It knows nothing
// of how the cluster agrees: the agent tells it what to lead (Lead, Resign, Remove) and answers its questions (Cluster).
package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/kafka"
)

// Options are what a broker is given besides its configuration.
type Options struct {
	Logger     *zap.Logger           // nil: no log
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	FS         disk.FS               // nil: the real one
	// Now is the time by which records, tombstones and producers grow old; the zero time while it is not known, and then
	// nothing is deleted by time. Safe for concurrent use and quick. nil: the system's clock, which is believed.
	Now func() time.Time
}

// Lead tells the broker to serve a partition.
type Lead struct {
	Topic     string
	ID        UUID
	Partition int32
	Count     int32 // partitions of the topic, kept in the folder so that the cluster's metadata can be rebuilt from it
	Epoch     int32 // leader epoch, stamped into every batch appended under it
	Replicas  []int32
	ISR       []int32
	Configs   map[string]string
}

// Held is a partition that the data folder holds, whether it is served or not.
type Held struct {
	Topic       string
	ID          UUID
	Partition   int32
	Count       int32
	Configs     map[string]string
	LeaderEpoch int32
	Start, End  int64 // log start and end offset; both 0 when the log could not be opened
	Bytes       int64
}

// ErrClosed: the broker has been closed.
var ErrClosed = errors.New("broker: closed")

// cleanFile is there between a clean stop and the next start; name and contents are Kafka's (CleanShutdownFileHandler).
const (
	cleanFile     = ".kafka_cleanshutdown"
	cleanContents = `{"version":0,"brokerEpoch":-1}` + "\n"
)

// Broker is one storage node. Its methods may be called from several goroutines.
type Broker struct {
	cfg        Config
	cluster    Cluster
	log        *zap.Logger
	fs         disk.FS
	metrics    *metrics
	logMetrics *commitlog.Metrics
	ids        *producerIDs
	unpacking  unpacking
	server     *kafka.Server
	logDirs    []*logDir // the data folder first; not changed after Open
	placing    placement
	now        func() time.Time
	foreign    []string // alarms about folders that were found at the start and left alone

	stop context.CancelFunc // ends the housekeeping
	wg   sync.WaitGroup     // the housekeeping

	mu     sync.RWMutex // guards everything below
	closed bool
	served bool // Serve was called
	held   map[holdingKey]*holding
	dirs   map[string]*holding // folder → who has it
	led    map[string]map[int32]*partition
}

// Open opens the data folder and loads what partitions it holds; nothing is served yet. A partition that cannot be
// opened does not keep the others from being: it becomes an alarm.
func Open(cfg Config, cluster Cluster, opts Options) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.DataDir == "" {
		return nil, errors.New("data_dir: got nothing: name the folder that partitions are kept in")
	}
	b := &Broker{cfg: cfg, cluster: cluster, log: opts.Logger, fs: opts.FS, now: opts.Now, logDirs: makeLogDirs(cfg),
		held: map[holdingKey]*holding{}, dirs: map[string]*holding{}, led: map[string]map[int32]*partition{}}
	if b.log == nil {
		b.log = zap.NewNop()
	}
	if b.fs == nil {
		b.fs = disk.OS
	}
	if b.now == nil {
		b.now = time.Now
	}
	b.metrics = newMetrics(opts.Registerer)
	b.logMetrics = commitlog.NewMetrics(opts.Registerer)
	b.unpacking = newUnpacking(cfg.MaxUnpackedBytes)
	b.ids = newProducerIDs(cluster.NextProducerIDs)
	b.server = kafka.New(b.serverConfig(), b, b.log, opts.Registerer)
	if err := b.load(); err != nil {
		b.leaveLogDirs()
		return nil, err
	}
	if opts.Registerer != nil {
		opts.Registerer.MustRegister(&stock{b: b})
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	for _, work := range []func(context.Context){b.keepHouse, b.compactLogs, b.scrubLogs, b.keepPlaces} {
		b.wg.Go(func() { work(ctx) })
	}
	return b, nil
}

// SetQuota puts another quota in force at once.
func (b *Broker) SetQuota(c QuotaConfig) error {
	produce, fetch, err := c.quotas()
	if err != nil {
		return err
	}
	b.server.SetQuotas(produce, fetch)
	return nil
}

func (b *Broker) serverConfig() kafka.Config {
	c := b.cfg
	produce, fetch, _ := c.Quota.quotas() // Validate has seen to it
	return kafka.Config{
		Produce: produce, Fetch: fetch,
		Listen: c.Listen, Loops: c.Loops,
		MaxRequestBytes: c.MaxRequestBytes, MaxRequestMemory: c.MaxRequestMemory,
		MaxConnections: c.MaxConnections, MaxConnectionsPerIP: c.perIP(),
		MaxInFlightRequests: c.MaxInFlightRequests, MaxInFlightBytes: c.MaxInFlightBytes,
		MaxUnpackedBytes: c.MaxUnpackedBytes,
		MaxFetchBytes:    c.MaxFetchBytes, MaxFetchWait: c.MaxFetchWait,
		IdleTimeout: c.IdleTimeout, ReceiveTimeout: c.ReceiveTimeout, RequestTimeout: c.RequestTimeout,
		AutoCreateTopics: c.AutoCreateTopics, AutoCreatePartitions: c.AutoCreatePartitions,
	}
}

// Serve binds the listener and serves in the background until Close. It is called once, and has returned before Close
// is called.
func (b *Broker) Serve() error {
	b.mu.Lock()
	closed, served := b.closed, b.served
	b.served = true
	b.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case served:
		return errors.New("broker: Serve was called before")
	}
	if err := b.server.Serve(); err != nil {
		return err
	}
	if host, _, err := net.SplitHostPort(b.server.Addr()); err == nil && !net.ParseIP(host).IsLoopback() {
		b.log.Warn("the broker listens beyond this host without TLS or SASL: anyone who reaches it can read and write", zap.String("listen", b.server.Addr()))
	}
	return nil
}

// Addr is the address that Serve bound, host:port; empty before it.
func (b *Broker) Addr() string { return b.server.Addr() }

// Advertised is the host and port that clients should be told: Config.Advertise, else what Serve bound.
func (b *Broker) Advertised() (host string, port int32) {
	addr := b.cfg.Advertise
	if addr == "" {
		addr = b.Addr()
	}
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil { // Validate has seen to it
		return "", 0
	}
	return host, int32(n)
}

func joinHostPort(host string, port int32) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// View is the cluster's view, with this broker in it: a client that reached us must find us there, even when the
// cluster does not know us yet.
func (b *Broker) View() *cluster.View {
	v := b.cluster.View()
	if _, there := v.Node(b.cfg.ID); there {
		return v
	}
	with := *v
	host, port := b.Advertised()
	with.Brokers = append(slices.Clone(v.Brokers), Node{ID: b.cfg.ID, Host: host, Port: port})
	return &with
}

// Self is this broker's id.
func (b *Broker) Self() int32 { return b.cfg.ID }

// Partition returns a partition that is led here.
func (b *Broker) Partition(topic string, index int32) (kafka.Partition, error) {
	b.mu.RLock()
	p := b.led[topic][index]
	b.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	v := b.cluster.View()
	if tv := v.Topics[topic]; !v.Partial && (tv == nil || index < 0 || int(index) >= len(tv.Partitions)) {
		return nil, kafka.ErrUnknownPartition
	}
	return nil, kafka.ErrNotLeader
}

// ProducerID returns a producer id if one is at hand.
func (b *Broker) ProducerID() (int64, bool) { return b.ids.take() }

// FetchProducerID returns a producer id and asks the cluster for more when needed.
func (b *Broker) FetchProducerID(ctx context.Context) (int64, error) { return b.ids.get(ctx) }

// Alarms lists what an operator must look at: offline logs, damage, folders that could not be opened. Sorted.
func (b *Broker) Alarms() []string {
	out := slices.Clone(b.foreign)
	if why := b.server.Trouble(); why != "" {
		out = append(out, "nobody can connect: "+why)
	}
	for _, d := range b.logDirs {
		if err := d.offline(); err != nil {
			out = append(out, fmt.Sprintf("log directory %s is offline: %v", d.path, err))
		}
		if d.full.Load() {
			out = append(out, fmt.Sprintf("log directory %s is full: producers are refused, with an error that they may repeat, until there is room", d.path))
		}
	}
	for _, h := range b.holdings() {
		out = append(out, h.alarms()...)
	}
	slices.Sort(out)
	return out
}

func (b *Broker) holdings() []*holding {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make([]*holding, 0, len(b.held))
	for _, h := range b.held {
		out = append(out, h)
	}
	return out
}

// Close stops serving, flushes everything and leaves the clean-shutdown marker. When ctx is over first, connections are
// cut and the logs are closed all the same. The marker is left out when a log could not be closed cleanly, so that the
// next start checks what is there.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.server.Close(ctx)
	b.stop()
	b.wg.Wait()
	return b.closeLogs()
}

// closeLogs closes every log and leaves the marker in each directory whose logs could all be closed.
func (b *Broker) closeLogs() error {
	defer b.leaveLogDirs()
	failed := map[*logDir]error{}
	for _, h := range b.holdings() {
		_, dir := h.describe()
		if err := h.close(); err != nil {
			d := b.dirOf(dir)
			failed[d] = errors.Join(failed[d], err)
		}
	}
	var all error
	for _, d := range b.logDirs {
		switch err := failed[d]; {
		case err != nil:
			all = errors.Join(all, fmt.Errorf("closing the broker: %w", err))
		case d.isUnread():
		case d.inPlace() != nil: // what is at its path now is not ours to mark
		default:
			if err := disk.WriteFileAtomic(b.fs, d.path, d.path+"/"+cleanFile, []byte(cleanContents)); err != nil {
				all = errors.Join(all, fmt.Errorf("leaving the clean-shutdown marker: %w", err))
			}
		}
	}
	return all
}

// isDeleting tells whether a folder is one that Remove renamed before a crash kept it from being deleted.
func isDeleting(name string) bool {
	return strings.HasSuffix(name, "-delete") && strings.Contains(name, ".")
}
