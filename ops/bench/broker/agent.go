package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"sidestream/agent"
	"sidestream/discovery"
	"sidestream/ops/bench/measure"
)

// agentRole is our broker: an agent as `sidestream agent` runs it, on the
// embedded store so that no Consul takes part. SIGUSR1 begins a CPU profile
// and SIGUSR2 ends it.
func agentRole(args []string) error {
	dir := args[0]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	go measure.ProfileOnSignal(args[1])

	logging := zap.NewProductionConfig()
	logging.Level.SetLevel(zap.WarnLevel)
	log, err := logging.Build()
	if err != nil {
		return err
	}
	store, err := discovery.NewMemory(discovery.MemoryOptions{SnapshotPath: filepath.Join(filepath.Dir(dir), "discovery.json"), Logger: log})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	cfg := agent.DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.Broker.Listen = dir, "127.0.0.1:0", "127.0.0.1:0"
	a, err := agent.New(cfg, store, log)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-a.Ready():
			fmt.Println("ready", a.BrokerAddr(), a.HTTPAddr())
		case <-ctx.Done():
		}
	})
	err = a.Run(ctx)
	cancel()
	return err
}

// startSidestream starts our broker on the data in dir/sidestream/data.
func startSidestream(ctx context.Context, dir string) (*measure.Process, error) {
	data := filepath.Join(dir, "sidestream", "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	profile := filepath.Join(dir, "sidestream", "cpu.pprof")
	s, err := measure.StartRole(ctx, "sidestream", "agent", data, data, profile)
	if err != nil {
		return nil, err
	}
	s.Profile = profile
	return s, nil
}
