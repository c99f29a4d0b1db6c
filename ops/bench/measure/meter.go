package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Result is what one measurement gave.
type Result struct {
	Records, Bytes int64 // that clients were told of or got; bytes of payload
	Took           time.Duration
	CPU            time.Duration // of the servers' processes
	RSS            int64         // their highest anonymous memory, in bytes
	Latencies      []time.Duration
}

// Meter brackets the part of a load that counts: what comes before (topics,
// connections) and after (deletion) does not.
type Meter struct {
	Processes []*Process // the servers under measurement
	Profile   string     // prefix of the files for the CPU profiles of those that make them, "" for none
}

// Run runs the load and measures the servers meanwhile: of the result it fills
// in the time, the processor time and the memory.
func (m *Meter) Run(load func() error) (r Result, err error) {
	if err := m.profiling(syscall.SIGUSR1, 50*time.Millisecond); err != nil {
		return r, err
	}
	before, err := m.cpu()
	if err != nil {
		return r, err
	}
	var stops []func() int64
	for _, p := range m.Processes {
		stops = append(stops, Watch(p.PID()))
	}
	begun := time.Now()
	loadErr := load()
	r.Took = time.Since(begun)
	for _, stop := range stops {
		r.RSS += stop()
	}
	after, err := m.cpu()
	if err := FirstOf(loadErr, err); err != nil {
		return r, fmt.Errorf("%s: %w", m.Processes[0].Name, err)
	}
	r.CPU = after - before
	return r, m.keepProfiles()
}

// cpu is the processor time that all have used.
func (m *Meter) cpu() (sum time.Duration, err error) {
	for _, p := range m.Processes {
		d, err := CPUOf(p.PID())
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// profiling signals the processes that make profiles, and waits a moment.
func (m *Meter) profiling(s syscall.Signal, pause time.Duration) error {
	if m.Profile == "" {
		return nil
	}
	for _, p := range m.Processes {
		if p.Profile == "" {
			continue
		}
		if err := p.cmd.Process.Signal(s); err != nil {
			return err
		}
	}
	time.Sleep(pause)
	return nil
}

func (m *Meter) keepProfiles() error {
	if m.Profile == "" {
		return nil
	}
	// It ends with the next sample and is written then.
	if err := m.profiling(syscall.SIGUSR2, 300*time.Millisecond); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.Profile), 0o755); err != nil {
		return err
	}
	for _, p := range m.Processes {
		if p.Profile == "" {
			continue
		}
		if err := os.Rename(p.Profile, m.Profile+p.Name+".pprof"); err != nil {
			return err
		}
	}
	return nil
}

// FirstOf is the first error that is one.
func FirstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Samples collects latencies from many goroutines.
type Samples struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

// Add adds samples.
func (s *Samples) Add(d ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d...)
}

// Reset forgets all samples.
func (s *Samples) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = nil
}

// Sorted are all samples, the lowest first.
func (s *Samples) Sorted() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.all)
	return s.all
}

// Share is the sample that so much of all lies at or below; 0 without samples.
func Share(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}
