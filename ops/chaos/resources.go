package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resources samples the memory and the goroutines of processes through their
// metrics, each life of a process apart.
type Resources struct {
	mu    sync.Mutex // guards lives
	lives map[string][]sample
}

type sample struct {
	at         time.Time
	resident   float64 // bytes
	goroutines float64
}

const (
	sampleEvery = 5 * time.Second
	warmUp      = 30 * time.Second // of a life, that says nothing of what comes
	longEnough  = 24               // samples after it: two minutes
)

// Sample records one process. One that does not answer is left out.
func (r *Resources) Sample(ctx context.Context, p *Process, at time.Time) {
	life := fmt.Sprintf("%s in life %d", p.Name, p.lives.Load())
	m, err := metricsOf(ctx, p)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lives == nil {
		r.lives = map[string][]sample{}
	}
	r.lives[life] = append(r.lives[life], sample{at, m["process_resident_memory_bytes"], m["go_goroutines"]})
}

// metricsOf reads the metrics without labels.
func metricsOf(ctx context.Context, p *Process) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", p.HTTP+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: metrics: %d %w", p.Name, resp.StatusCode, err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && name != "#" {
			out[name] = v
		}
	}
	return out, nil
}

// Growing lists what grows: of every life that lasted, the median of the last
// third against that of the first. What a warm process keeps may be half more;
// the rest is what the race detector and a garbage collector scatter by.
func (r *Resources) Growing() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for life, samples := range r.lives {
		i := 0
		for i < len(samples) && samples[i].at.Sub(samples[0].at) < warmUp {
			i++
		}
		samples = samples[i:]
		if len(samples) < longEnough {
			continue
		}
		third := len(samples) / 3
		first, last := samples[:third], samples[len(samples)-third:]
		a, b := median(first, func(s sample) float64 { return s.resident }), median(last, func(s sample) float64 { return s.resident })
		if b > 1.5*a+32<<20 {
			list = append(list, fmt.Sprintf("%s: resident memory from %.0f to %.0f MiB in %v", life, a/(1<<20), b/(1<<20), samples[len(samples)-1].at.Sub(samples[0].at)))
		}
		a, b = median(first, func(s sample) float64 { return s.goroutines }), median(last, func(s sample) float64 { return s.goroutines })
		if b > 1.5*a+50 {
			list = append(list, fmt.Sprintf("%s: goroutines from %.0f to %.0f", life, a, b))
		}
	}
	slices.Sort(list)
	return list
}

// Report is the range of every life, for people.
func (r *Resources) Report() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for life, samples := range r.lives {
		lo, hi := samples[0].resident, samples[0].resident
		for _, s := range samples {
			lo, hi = min(lo, s.resident), max(hi, s.resident)
		}
		list = append(list, fmt.Sprintf("%s %.0f–%.0f MiB in %d samples", life, lo/(1<<20), hi/(1<<20), len(samples)))
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

func median(samples []sample, of func(sample) float64) float64 {
	var vs []float64
	for _, s := range samples {
		vs = append(vs, of(s))
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}
