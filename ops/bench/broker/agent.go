package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"sidestream/agent"
	"sidestream/discovery"
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
	go serveUntilStopped(cancel)
	go profileOnSignal(args[1])

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

// profileOnSignal writes CPU profiles, one after another, to path.
func profileOnSignal(path string) {
	begin, end := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	signal.Notify(end, syscall.SIGUSR2)
	for range begin {
		f, err := os.Create(path)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		<-end
		pprof.StopCPUProfile()
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}

// startSidestream starts our broker on the data in dir/sidestream/data.
func startSidestream(ctx context.Context, dir string) (*server, error) {
	data := filepath.Join(dir, "sidestream", "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	return startRole(ctx, "sidestream", "agent", data, data, filepath.Join(dir, "sidestream", "cpu.pprof"))
}

// counters reads counters of our broker from its metrics.
func (s *server) counters(ctx context.Context, names ...string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var text strings.Builder
	if _, err := copyText(&text, resp.Body); err != nil {
		return nil, err
	}
	return parseCounters(text.String(), names)
}

func parseCounters(text string, names []string) (map[string]float64, error) {
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, n := range names {
			if n != name {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", name, err)
			}
			out[name] = v
		}
	}
	for _, n := range names {
		if _, ok := out[n]; !ok {
			return nil, fmt.Errorf("no metric %s", n)
		}
	}
	return out, nil
}
