package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/valyala/fasthttp"
	"go.uber.org/zap"

	"sidestream/agent"
	"sidestream/discovery"
	"sidestream/ops/bench/measure"
	"sidestream/sidecar"
)

// daemon is what agent and sidecar have in common.
type daemon interface {
	Run(context.Context) error
	Ready() <-chan struct{}
}

// serve runs a daemon until it is told to stop, and says where it serves.
func serve(profile string, make func(discovery.Store, *zap.Logger) (d daemon, addresses func() []any, err error)) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	go measure.ProfileOnSignal(profile)

	logging := zap.NewProductionConfig()
	logging.Level.SetLevel(zap.WarnLevel)
	log, err := logging.Build()
	if err != nil {
		return err
	}
	store, err := discovery.NewMemory(discovery.MemoryOptions{Logger: log})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	d, addresses, err := make(store, log)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-d.Ready():
			fmt.Println(append([]any{"ready"}, addresses()...)...)
		case <-ctx.Done():
		}
	})
	err = d.Run(ctx)
	cancel()
	return err
}

// agentRole is our broker: an agent as `sidestream agent` runs it, on an
// embedded store so that no Consul takes part. Its arguments are the folder and
// the file for profiles.
func agentRole(args []string) error {
	return serve(args[1], func(store discovery.Store, log *zap.Logger) (daemon, func() []any, error) {
		cfg := agent.DefaultConfig()
		cfg.DataDir, cfg.Listen, cfg.Broker.Listen = args[0], "127.0.0.1:0", "127.0.0.1:0"
		a, err := agent.New(cfg, store, log)
		return a, func() []any { return []any{a.BrokerAddr(), a.HTTPAddr()} }, err
	})
}

// sidecarRole is a sidecar as `sidestream sidecar` runs it, on an embedded store
// and with the broker as its bootstrap. Its arguments are the folder, the file
// for profiles and the broker's address.
func sidecarRole(args []string) error {
	return serve(args[1], func(store discovery.Store, log *zap.Logger) (daemon, func() []any, error) {
		cfg := sidecar.DefaultConfig()
		cfg.DataDir, cfg.Listen, cfg.Kafka.Bootstrap = args[0], "127.0.0.1:0", args[2:3]
		cfg.Spool.MaxBytes = 64 << 30 // how fast it takes is measured, not how soon it is full
		s, err := sidecar.New(cfg, store, log)
		return s, func() []any { return []any{s.Addr()} }, err
	})
}

// bareRole is the HTTP server of the sidecar with a handler that looks at the
// path and answers as long a text as a publish does: what HTTP alone costs. Its
// argument is the file for profiles.
func bareRole(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	go measure.ProfileOnSignal(args[0])
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	answer := []byte(`{"topic":"single","partition":3,"offset":123456,"timestamp":1790000000000}` + "\n")
	s := &fasthttp.Server{Name: "bare", NoDefaultContentType: true, CloseOnShutdown: true, Handler: func(c *fasthttp.RequestCtx) {
		if !bytes.HasPrefix(c.Path(), []byte("/topics/")) || len(c.PostBody()) == 0 {
			c.SetStatusCode(fasthttp.StatusNotFound)
			return
		}
		c.SetContentType("application/json")
		c.Response.SetBodyRaw(answer)
	}}
	fmt.Println("ready", ln.Addr())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	<-ctx.Done()
	return errors.Join(s.Shutdown(), <-served)
}

// jetstreamRole is a NATS server with JetStream on the folder given; with
// "always" as the second argument it syncs each message before it answers.
func jetstreamRole(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: args[0],
		JetStreamMaxStore: 1 << 40, NoSigs: true, NoLog: true, SyncAlways: args[1] == "always",
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("it takes no connections")
	}
	fmt.Println("ready", s.ClientURL())
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
