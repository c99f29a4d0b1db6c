// Package upstream is the Kafka side that publishing and consuming share: where
// the brokers are, clients that follow them, and a short-lived cache of what
// the brokers say of their topics. It works with any Kafka-compatible cluster;
// nothing in it depends on the brokers being Sidestream's.
package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"sidestream/discovery"
)

// Upstream is safe for concurrent use.
type Upstream struct {
	cfg   Config
	store discovery.Store
	log   *zap.Logger
	base  []kgo.Opt // what every client has: identity, dialling, login
	cl    *kgo.Client
	admin *kadm.Client

	unpacking *Unpacking

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the follower of the brokers and requests for metadata

	flights singleflight.Group
	dials   dials
	known   chan struct{} // closed when clusterID is known

	// mu guards what follows; it is never held across I/O.
	mu      sync.Mutex
	stopped bool
	seeds   []string
	clients []*kgo.Client // those that Client made; closed ones are dropped at the next change
	topics  map[string]cached

	clusterID string          // whose brokers are expected, see cluster.go
	hidden    int             // registered brokers that are not known to be of it
	strangers map[string]bool // addresses of others' brokers that were told of
}

// New prepares clients; it does not wait for any broker. With cfg.Bootstrap
// the store is not used and may be nil.
func New(cfg Config, store discovery.Store, log *zap.Logger) (*Upstream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	if len(cfg.Bootstrap) == 0 && store == nil {
		return nil, fmt.Errorf("kafka.bootstrap: is empty and there is no discovery store to look up service %q", cfg.Service)
	}
	u := &Upstream{
		cfg: cfg, store: store, log: log, topics: map[string]cached{}, unpacking: NewUnpacking(cfg.MaxUnpackedBytes, cfg.UnpackMemory),
		known: make(chan struct{}), strangers: map[string]bool{},
	}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	u.seeds = slices.Clone(cfg.Bootstrap)

	var err error
	if u.base, err = u.baseOptions(); err != nil {
		u.cancel()
		return nil, err
	}
	u.cl, err = u.Client(
		// An admin request asks one broker after the other and gives up
		// early: its caller is a person or an application that waits.
		kgo.RetryTimeout(cfg.RequestTimeout),
		kgo.RequestRetries(4),
		kgo.RetryBackoffFn(adminBackoff),
		kgo.RequestTimeoutOverhead(cfg.DialTimeout),
	)
	if err != nil {
		u.cancel()
		return nil, err
	}
	u.admin = kadm.NewClient(u.cl)
	if len(cfg.Bootstrap) == 0 {
		u.wg.Go(u.followBrokers)
	}
	return u, nil
}

func adminBackoff(try int) time.Duration {
	return min(50*time.Millisecond<<min(try, 4), 500*time.Millisecond)
}

// Close stops following the brokers and waits for it. Clients from Client are
// their callers' to close.
func (u *Upstream) Close() {
	u.mu.Lock()
	u.stopped = true
	u.mu.Unlock()
	u.cancel()
	u.cl.Close()
	u.wg.Wait()
}

// enter counts a request that Close waits for; false once it is closing. The
// caller leaves by wg.Done.
func (u *Upstream) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stopped {
		return false
	}
	u.wg.Add(1)
	return true
}

// Client makes a kgo client whose seeds follow the brokers; the caller closes it.
func (u *Upstream) Client(opts ...kgo.Opt) (*kgo.Client, error) {
	u.mu.Lock()
	seeds := u.seeds
	u.mu.Unlock()
	all := append(slices.Clone(u.base), kgo.SeedBrokers(seedsOrNone(seeds)...))
	cl, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	u.mu.Lock()
	u.clients = append(slices.DeleteFunc(u.clients, closed), cl)
	changed := !slices.Equal(seeds, u.seeds)
	seeds = u.seeds
	u.mu.Unlock()
	if changed { // they moved while the client was made
		u.giveSeeds(cl, seeds)
	}
	return cl, nil
}

func closed(cl *kgo.Client) bool { return cl.Context().Err() != nil }

// Admin is a shared client for admin requests. Do not close it.
func (u *Upstream) Admin() *kadm.Client { return u.admin }
