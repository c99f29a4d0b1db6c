package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sidestream/ops/bench/measure"
)

// contender is a server under one load.
type contender struct {
	server string
	load
}

// The loads that figures are made of.
var (
	single = load{step: "single", clients: 64, events: 1}
	lines  = load{step: "lines", clients: 8, events: 1000}
	ndjson = load{step: "ndjson", clients: 8, events: 1000}
	spool  = load{step: "spool", clients: 8, events: 1000} // lines with ack=spool
)

func (l load) at(half bool) load { l.half = half; return l }
func (l load) of(clients int) load {
	l.clients = clients
	return l
}

// steps are groups of contenders that are measured in turns. A load at half the
// rate comes after its whole.
func steps() [][]contender {
	var all [][]contender
	for _, n := range []int{64, 16, 1} {
		l := single.of(n)
		all = append(all, []contender{{bare, l}, {sidestream, l}, {jetStream, l}, {jetStreamAlways, l}})
	}
	all[0] = append(all[0], contender{sidestream, single.at(true)})
	return append(all,
		[]contender{{sidestream, lines}, {sidestream, lines.at(true)}},
		[]contender{{sidestream, ndjson}, {sidestream, ndjson.at(true)}},
		[]contender{{sidestream, spool}})
}

// outcome is what one measurement gave.
type outcome struct {
	measure.Result
	client   time.Duration // processor time of the load program
	front    int64         // highest anonymous memory of the process that is spoken to
	frontCPU time.Duration // processor time of that process
	batch    float64       // messages of a record batch, of ours; else NaN
}

func (o outcome) clientCPU() float64 { return o.client.Seconds() * 1e6 / float64(o.Records) }
func (o outcome) frontMB() float64   { return float64(o.front) / 1e6 }
func (o outcome) p99() float64 {
	return float64(measure.Share(o.Latencies, 0.99)) / float64(time.Millisecond)
}

// bench is one run of the whole.
type bench struct {
	o       options
	systems map[string]system
	results map[contender][]outcome // by round
}

func newBench(o options) *bench {
	return &bench{o: o, systems: map[string]system{}, results: map[contender][]outcome{}}
}

func run(ctx context.Context, o options) (err error) {
	b := newBench(o)
	begun, average := time.Now(), measure.LoadAverage()
	if err := os.RemoveAll(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop(), os.RemoveAll(o.dir)) }()
	if err := measure.Touch(o.dir, o.touch); err != nil {
		return err
	}
	for _, step := range steps() {
		if err := b.measure(ctx, step); err != nil {
			return err
		}
	}
	text := b.report(begun, average)
	fmt.Print(text)
	if o.out != "" {
		return os.WriteFile(o.out, []byte(text), 0o644)
	}
	return nil
}

// measure measures the contenders in turns: once to warm up, then in rounds.
func (b *bench) measure(ctx context.Context, step []contender) error {
	for round := -1; round < b.o.rounds; round++ {
		for _, c := range step {
			theirs := c.server == jetStream || c.server == jetStreamAlways
			if !b.o.only.MatchString(c.name()+" "+c.server) || theirs && !b.o.theirs || c.half && round < 0 {
				continue
			}
			r, err := b.once(ctx, c, round)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", c.name(), c.server, err)
			}
			if round >= 0 {
				b.results[c] = append(b.results[c], r)
			}
			measure.Progress("%-16s %2d %-21s %9.0f events/s  CPU %.2f µs/event (front %.2f), client %.2f  p50 %v p99 %v  %d MB  %.0f a batch", c.name(), round+1, c.server,
				r.Rate(), r.CPUPerRecord(), r.frontCPUPerRecord(), r.clientCPU(), measure.Share(r.Latencies, 0.5), measure.Share(r.Latencies, 0.99), r.front>>20, r.batch)
		}
	}
	return nil
}

// once measures one contender.
func (b *bench) once(ctx context.Context, c contender, round int) (r outcome, err error) {
	s, err := b.system(ctx, c.server)
	if err != nil {
		return r, err
	}
	rate := 0.0
	if c.half {
		whole := b.results[contender{c.server, c.load.at(false)}]
		if len(whole) == 0 {
			return r, errors.New("its whole was not measured")
		}
		rate = whole[len(whole)-1].Rate() / float64(c.events) / 2
	}
	unix.Sync() // so that no one pays for what another has written
	window := b.o.window
	if round < 0 {
		window = min(window, time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, window+time.Minute)
	defer cancel()
	callers, err := s.dial(ctx, c.load)
	if err != nil {
		return r, err
	}
	defer func() {
		for _, c := range callers {
			c.close()
		}
	}()
	m := measure.Meter{Processes: s.processes()}
	if b.o.profile != "" && round >= 0 {
		m.Profile = filepath.Join(b.o.profile, fmt.Sprintf("%s-%d-", strings.ReplaceAll(c.name(), " ", "-"), round+1))
	}
	pid := m.Processes[len(m.Processes)-1].PID()
	frontBefore, err := measure.CPUOf(pid)
	if err != nil {
		return r, err
	}
	recordsBefore, batchesBefore := counts(ctx, s)
	front := measure.Watch(pid)
	var requests int64
	var times []time.Duration
	r.Result, err = m.Run(func() (err error) {
		before, err := measure.CPUOf(os.Getpid())
		if err != nil {
			return err
		}
		if requests, times, err = drive(ctx, callers, window, rate); err != nil {
			return err
		}
		after, err := measure.CPUOf(os.Getpid())
		r.client = after - before
		return err
	})
	r.front = front()
	if after, err := measure.CPUOf(pid); err == nil {
		r.frontCPU = after - frontBefore
	}
	records, batches := counts(ctx, s)
	r.batch = (records - recordsBefore) / (batches - batchesBefore)
	r.Records, r.Latencies = requests*int64(c.events), times
	r.Bytes = r.Records * eventSize
	return r, err
}

// counts are the messages and the record batches that our sidecar has written; 0
// of other servers.
func counts(ctx context.Context, s system) (records, batches float64) {
	w, ok := s.(*web)
	if !ok || w.topics == nil {
		return 0, 0
	}
	const suffix = `_total{ack="all"}`
	sidecar := *w.all[len(w.all)-1]
	sidecar.HTTP = sidecar.Addr
	c, err := sidecar.Counters(ctx, "sidestream_publish_records"+suffix, "sidestream_publish_batches"+suffix)
	if err != nil {
		return 0, 0
	}
	return c["sidestream_publish_records"+suffix], c["sidestream_publish_batches"+suffix]
}

// system is a running server, started at its first use.
func (b *bench) system(ctx context.Context, name string) (s system, err error) {
	if s := b.systems[name]; s != nil {
		for _, p := range s.processes() {
			if err := p.Ended(); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	measure.Progress("starting %s", name)
	switch name {
	case bare:
		s, err = startBare(ctx, b.o.dir)
	case sidestream:
		s, err = startOurs(ctx, b.o.dir)
	case jetStream:
		s, err = startTheirs(ctx, b.o.dir, "default")
	default:
		s, err = startTheirs(ctx, b.o.dir, "always")
	}
	if err != nil {
		return nil, err
	}
	b.systems[name] = s
	return s, nil
}

func (b *bench) stop() error {
	var errs []error
	for _, s := range b.systems {
		errs = append(errs, s.stop())
	}
	return errors.Join(errs...)
}
