package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is what one measurement gave.
type result struct {
	records, bytes int64 // that clients were told of or got; bytes of payload
	took           time.Duration
	cpu            time.Duration // of the server's process
	rss            int64         // its highest anonymous memory, in bytes
	latencies      []time.Duration
	syncs, synced  int64 // of our broker: syncs of logs, and the bytes they covered
}

// meter brackets the part of a load that counts: what comes before (topics,
// connections) and after (deletion) does not.
type meter struct {
	s       *server
	profile string // where our broker's CPU profile goes, "" for none
	r       result
}

var syncCounters = []string{"sidestream_log_flush_seconds_count", "sidestream_log_appended_bytes_total"}

// measure runs load and measures the server meanwhile.
func (m *meter) measure(ctx context.Context, load func() error) error {
	var before, after map[string]float64
	var err error
	if m.s.http != "" {
		if before, err = m.s.counters(ctx, syncCounters...); err != nil {
			return err
		}
	}
	if m.profile != "" {
		if err := m.s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	cpu, err := cpuOf(m.s.pid())
	if err != nil {
		return err
	}
	stop := watch(m.s.pid())
	begun := time.Now()
	loadErr := load()
	m.r.took = time.Since(begun)
	m.r.rss = stop()
	used, err := cpuOf(m.s.pid())
	if loadErr != nil || err != nil {
		return fmt.Errorf("%s: %w", m.s.name, firstOf(loadErr, err))
	}
	m.r.cpu = used - cpu
	if m.profile != "" {
		if err := m.keepProfile(); err != nil {
			return err
		}
	}
	if m.s.http != "" {
		if after, err = m.s.counters(ctx, syncCounters...); err != nil {
			return err
		}
		m.r.syncs = int64(after[syncCounters[0]] - before[syncCounters[0]])
		m.r.synced = int64(after[syncCounters[1]] - before[syncCounters[1]])
	}
	return nil
}

func (m *meter) keepProfile() error {
	if err := m.s.cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond) // it ends with the next sample and is written then
	if err := os.MkdirAll(filepath.Dir(m.profile), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(filepath.Dir(m.s.dir), "cpu.pprof"), m.profile)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func copyText(to *strings.Builder, from io.Reader) (int64, error) { return io.Copy(to, from) }

// samples collects latencies from many goroutines.
type samples struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

func (s *samples) add(d ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d...)
}

func (s *samples) sorted() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.all)
	return s.all
}

// share is the sample that so much of all lies at or below; 0 without samples.
func share(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
