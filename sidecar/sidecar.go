// Package sidecar is the process on every application host: it takes events
// and gives messages over HTTP on localhost, and does with the brokers and the
// coordination store what each application would otherwise do by itself.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/discovery/clock"
	"sidestream/sidecar/api"
	"sidestream/sidecar/idempotency"
	"sidestream/sidecar/limit"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/spool"
	"sidestream/sidecar/upstream"
)

// Sidecar is one sidecar. Make it with New, run it once with Run.
type Sidecar struct {
	cfg   Config                 // as it was started with
	live  atomic.Pointer[Config] // as it was last reloaded: the keys that may change are read here
	store discovery.Store
	log   *zap.Logger
	ready chan struct{}
	drain chan struct{} // closed by POST /drain

	id           *discovery.Identity
	clock        *clock.Clock // the data folder's own time
	registry     *prometheus.Registry
	presence     *presence
	up           *upstream.Upstream
	publisher    *publish.Publisher
	spool        *spool.Spool      // before the publisher
	keys         *idempotency.Keys // before the spool
	limited      *limit.Publisher  // before the keys
	outages      *outageWatch      // the outermost around publisher
	local        *offsets.Local
	checkpointer *offsets.Checkpointer
	consumer     consumer
	http         *api.Server
	reloads      *reloads
	brokers      brokerCheck
	disk         diskCheck
	folder       folderCheck
	begun        time.Time
	left         bool // the groups are left; only Run's goroutine looks

	// mu guards addr.
	mu   sync.Mutex
	addr string
}

// New checks the configuration; nothing is opened before Run. The store stays
// the caller's to close, after Run.
func New(cfg Config, store discovery.Store, log *zap.Logger) (*Sidecar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if store == nil {
		return nil, errors.New("a sidecar needs a coordination store")
	}
	if log == nil {
		log = zap.NewNop()
	}
	s := &Sidecar{cfg: cfg, store: store, log: log, ready: make(chan struct{}), drain: make(chan struct{})}
	s.live.Store(&cfg)
	return s, nil
}

// Ready is closed once the API answers. Brokers and the store may still be
// away: GET /readyz tells.
func (s *Sidecar) Ready() <-chan struct{} { return s.ready }

// Addr is the host:port that the API is bound to, "" before Ready.
func (s *Sidecar) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Run serves until ctx ends, then stops cleanly: new work is refused, leases
// that are out get a bounded time for their acks, what is owned is handed over,
// messages on their way are written. It returns nil after a clean stop.
func (s *Sidecar) Run(ctx context.Context) (err error) {
	s.begun = time.Now()
	tcp, err := listenTCP(s.cfg.Listen)
	if err != nil {
		return err
	}
	listeners := []net.Listener{tcp}
	defer func() {
		for _, l := range listeners { // those that the server took are closed by it
			_ = l.Close()
		}
	}()
	if s.cfg.ListenUnix != "" {
		sock, err := s.cfg.listenUnix()
		if err != nil {
			return err
		}
		listeners = append(listeners, sock)
	}
	if s.cfg.AllowRemote && !isLoopback(hostOf(tcp.Addr().String())) {
		s.log.Warn("other hosts can reach the API, which asks nobody who they are", zap.String("listen", tcp.Addr().String()))
	}
	if err := s.open(tcp.Addr().String()); err != nil {
		s.close()
		return err
	}
	return s.serve(ctx, listeners)
}

// open makes all parts. What it made before an error is closed by close.
func (s *Sidecar) open(bound string) (err error) {
	if s.id, err = discovery.OpenIdentity(s.cfg.DataDir); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	if err := s.chooseID(); err != nil {
		return err
	}
	s.registry = prometheus.NewRegistry()
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	s.clock = s.openClock()
	if s.reloads, err = newReloads(s.registry); err != nil {
		return fmt.Errorf("metrics of reloads: %w", err)
	}
	address := s.cfg.Advertise
	if address == "" {
		address = bound
	}
	s.presence = newPresence(s.store, s.log.Named("presence"), s.id, address)

	if s.up, err = upstream.New(s.cfg.Kafka, s.store, s.log.Named("upstream")); err != nil {
		return err
	}
	if s.cfg.Kafka.Ours() {
		s.up.Pin(s.id.ClusterID)
		s.presence.home.up = s.up
	}
	s.publisher, err = publish.New(s.cfg.Publish, s.up, publish.Deps{
		Logger: s.log.Named("publish"), Registerer: s.registry, AutoCreate: s.cfg.AutoCreateTopics,
	})
	if err != nil {
		return err
	}
	if s.spool, err = s.openSpool(); err != nil {
		return err
	}
	if s.keys, err = s.openKeys(); err != nil {
		return err
	}
	s.limited, err = limit.New(s.cfg.Limits, s.keys, limit.Options{Timeout: s.cfg.Publish.Timeout, Registerer: s.registry})
	if err != nil {
		return err
	}
	if s.outages, err = newOutageWatch(s.limited, s.registry, s.log.Named("outage")); err != nil {
		return fmt.Errorf("metrics of outages: %w", err)
	}
	if s.local, err = offsets.OpenLocal(filepath.Join(s.cfg.DataDir, "positions.db"), s.log.Named("offsets")); err != nil {
		return err
	}
	if err := s.local.Register(s.registry); err != nil {
		return fmt.Errorf("metrics of the local positions: %w", err)
	}
	if aside := s.local.SetAside(); aside != "" {
		s.log.Error("the file of positions could not be read; it was set aside, and the coordination store's positions are taken", zap.String("file", aside))
	}
	s.checkpointer = offsets.NewCheckpointer(s.store, offsets.CheckpointOptions{
		Owner: s.id.ID, Nonce: s.presence.process, Logger: s.log.Named("checkpoint"), Registerer: s.registry,
		Interval: func() time.Duration {
			if every := s.live.Load().CheckpointInterval; every > 0 {
				return every
			}
			return offsets.CheckpointInterval(s.presence.liveSidecars())
		},
	})
	if s.consumer, err = newConsumer(s); err != nil {
		return err
	}
	s.http, err = api.New(api.Options{
		Publisher: s.outages, Consumer: s.consumer, Topics: s.up, Spool: s.spool, KeyField: s.publisher.KeyField,
		Ready: s.causes, Status: s.status, Drain: func() { close(s.drain) },
		Users: s.cfg.users(s.log), Listen: s.cfg.Listen, AllowedHosts: s.cfg.AllowedHosts,
		MaxRequestSize: s.cfg.MaxRequestBytes, MaxMessageSize: s.cfg.Publish.MaxMessageBytes, MaxBodyMemory: s.cfg.MaxRequestMemory, MaxConnections: s.cfg.MaxConnections, MaxBatch: s.cfg.Publish.BatchRecords, MaxTimeout: s.cfg.Publish.MaxTimeout,
		Version: Version, Logger: s.log.Named("http"), Gatherer: s.registry, Registry: s.registry,
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.addr = bound
	s.mu.Unlock()
	return nil
}

// chooseID takes the configured id, or the folder's, or makes one that a
// person recognises.
func (s *Sidecar) chooseID() error {
	id := s.cfg.ID
	if id == "" {
		id = s.id.ID
	}
	if id == "" {
		host, err := os.Hostname()
		if err != nil || discovery.CheckName("sidecar", host) != nil {
			host = "sidecar"
		}
		id = fmt.Sprintf("%.64s-%.8s", host, strings.ReplaceAll(discovery.NewUUID(), "-", ""))
	}
	if id == s.id.ID {
		return nil
	}
	if err := s.id.SetID(id); err != nil {
		return fmt.Errorf("data_dir: keeping the sidecar's id: %w", err)
	}
	return nil
}

// serve runs what was opened until ctx ends, or something that cannot be mended.
func (s *Sidecar) serve(ctx context.Context, listeners []net.Listener) error {
	run, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	fatal := make(chan error, 2) // of each that may
	wg.Go(func() {
		if err := s.presence.run(run); err != nil {
			fatal <- err
		}
	})
	wg.Go(func() {
		if err := s.watchFolder(run); err != nil {
			fatal <- err
		}
	})
	wg.Go(func() {
		if err := s.checkpointer.Run(run); err != nil && run.Err() == nil {
			s.log.Error("checkpoints", zap.Error(err))
		}
	})
	wg.Go(func() { s.outages.run(run, s.up, s.consumer.Away) })
	wg.Go(func() { _ = s.clock.Run(run) }) // its only return is nil
	s.consumer.Start()
	s.spool.Start()
	for _, l := range listeners {
		s.http.Serve(l)
	}
	s.log.Info("sidecar serves", zap.String("id", s.id.ID), zap.String("listen", s.Addr()), zap.String("unix", s.cfg.ListenUnix))
	close(s.ready)

	var err error
	drain, drained := s.drain, false
	for stop := false; !stop; {
		select {
		case <-ctx.Done():
			stop = true
		case err = <-fatal:
			stop = true
		case err = <-s.http.Failed():
			stop = true
		case <-drain:
			drain = nil // a closed channel would be ready for ever
			drained = true
			s.log.Info("draining: new work is refused")
			s.closeConsumer()
		}
	}
	s.log.Info("sidecar stops")
	s.http.BeginDrain()
	if !drained {
		s.closeConsumer()
	}
	s.timed("requests under way", s.http.Shutdown)
	s.timed("spooled messages on their way", s.spool.Close)
	s.timed("messages on their way", func(ctx context.Context) error {
		if lost := s.publisher.Close(ctx); lost > 0 {
			return fmt.Errorf("%d messages were given up; they may be written or not", lost)
		}
		return nil
	})
	s.timed("Idempotency-Keys", func(context.Context) error { return s.keys.Close() })
	s.timed("checkpoints", s.checkpointer.Close)
	cancel()
	wg.Wait() // no session is made any more
	s.timed("leaving", func(ctx context.Context) error { s.presence.leave(ctx); return nil })
	s.close()
	return err
}

func (s *Sidecar) closeConsumer() {
	s.left = true
	s.timed("groups", s.consumer.Close)
}

// timed is one step of the stop under its bounded time.
func (s *Sidecar) timed(what string, step func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.live.Load().DrainTimeout)
	defer cancel()
	if err := step(ctx); err != nil {
		s.log.Warn("stopping: "+what, zap.Error(err))
	}
}

// close closes what was opened and holds nothing that has to be written.
func (s *Sidecar) close() {
	if s.consumer != nil && !s.left {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.consumer.Close(ended) // it never began
	}
	if s.spool != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.spool.Close(ended); err != nil { // does nothing after a clean stop
			s.log.Error("closing the spool", zap.Error(err))
		}
	}
	if s.publisher != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		s.publisher.Close(ended) // does nothing after a clean stop
	}
	if s.keys != nil {
		if err := s.keys.Close(); err != nil {
			s.log.Error("closing the journal of Idempotency-Keys", zap.Error(err))
		}
	}
	if s.local != nil {
		if err := s.local.Close(); err != nil {
			s.log.Error("closing the file of positions", zap.Error(err))
		}
	}
	if s.up != nil {
		s.up.Close()
	}
	if s.id != nil {
		if err := s.id.Close(); err != nil {
			s.log.Warn("unlocking the data folder", zap.Error(err))
		}
	}
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
