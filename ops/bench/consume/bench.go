package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sidestream/ops/bench/measure"
)

// The servers, as the table names them.
const (
	sidestream = "sidestream"
	jetStream  = "NATS JetStream"
)

// load is what is asked of a server: its stock is read once.
type load struct {
	size    int // bytes of a message
	pullers int // at once
	batch   int // messages of a pull
}

func (l load) name() string {
	size := fmt.Sprintf("%dB", l.size)
	if l.size%1024 == 0 {
		size = fmt.Sprintf("%dKiB", l.size/1024)
	}
	return fmt.Sprintf("pull %s %dp", size, l.pullers)
}

// batch is how many messages a pull asks for.
const batch = 500

// sizes of messages, and pulls at once: either server may do better with one.
var (
	sizes = []int{100, 1024}
	pulls = []int{1, partitions}
)

// contender is a server under one load.
type contender struct {
	server string
	load
}

// contenders are what is measured in turns for one size.
func contenders(size int) (all []contender) {
	for _, n := range pulls {
		for _, server := range []string{sidestream, jetStream} {
			all = append(all, contender{server, load{size, n, batch}})
		}
	}
	return all
}

// measured is a load that is ready to begin. It returns the times from each
// pull to its messages, sorted.
type measured func(context.Context) ([]time.Duration, error)

// system is a server and what it is asked for.
type system interface {
	processes() []*measure.Process
	fill(ctx context.Context, topic string, size int, messages int64) error
	consume(ctx context.Context, topic string, l load, messages int64) (measured, error)
	forget(ctx context.Context, topic string) error // what consume made
	stop() error
}

// outcome is what one measurement gave.
type outcome struct {
	measure.Result
	client time.Duration // processor time of the load program
}

// clientCPU is in microseconds for each message.
func (o outcome) clientCPU() float64 { return o.client.Seconds() * 1e6 / float64(o.Records) }

// bench is one run of the whole.
type bench struct {
	o       options
	systems map[string]system
	filled  map[string]bool         // topics, by server and size
	results map[contender][]outcome // by round
	quiet   []measure.Result        // of the sidecar while pulls wait, by round
	soon    []arrival               // by round
}

func newBench(o options) *bench {
	return &bench{o: o, systems: map[string]system{}, filled: map[string]bool{}, results: map[contender][]outcome{}}
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
	for _, size := range sizes {
		if err := b.measure(ctx, size); err != nil {
			return err
		}
	}
	if err := b.measureWaiting(ctx); err != nil {
		return err
	}
	text := b.report(begun, average)
	fmt.Print(text)
	if o.out != "" {
		return os.WriteFile(o.out, []byte(text), 0o644)
	}
	return nil
}

// measure measures all contenders of a size: once to warm up, then in rounds
// whose order turns.
func (b *bench) measure(ctx context.Context, size int) error {
	all := slices.DeleteFunc(contenders(size), func(c contender) bool {
		return !b.o.only.MatchString(c.name()) || c.server == jetStream && !b.o.theirs
	})
	for round := -1; round < b.o.rounds; round++ {
		for i := range all {
			c := all[(i+max(round, 0))%len(all)]
			r, err := b.once(ctx, c, round)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", c.name(), c.server, err)
			}
			if round >= 0 {
				b.results[c] = append(b.results[c], r)
			}
			measure.Progress("%-14s %2d %-14s %9.0f messages/s  CPU %.2f µs/message, client %.2f  %d MB", c.name(), round+1, c.server,
				r.Rate(), r.CPUPerRecord(), r.clientCPU(), r.RSS>>20)
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
	messages := b.messages(c.size)
	topic := fmt.Sprintf("stock-%d", c.size)
	if key := c.server + topic; !b.filled[key] {
		measure.Progress("filling %s with %d messages of %d bytes", c.server, messages, c.size)
		if err := s.fill(ctx, topic, c.size, messages); err != nil {
			return r, fmt.Errorf("filling: %w", err)
		}
		b.filled[key] = true
	}
	unix.Sync() // so that no one pays for what another has written
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	begin, err := s.consume(ctx, topic, c.load, messages)
	if err != nil {
		return r, err
	}
	m := measure.Meter{Processes: s.processes()}
	if b.o.profile != "" && round >= 0 {
		m.Profile = b.profileOf(c.name(), round)
	}
	var times []time.Duration
	r.Result, err = m.Run(func() (err error) {
		before, err := measure.CPUOf(os.Getpid())
		if err != nil {
			return err
		}
		if times, err = begin(ctx); err != nil {
			return err
		}
		after, err := measure.CPUOf(os.Getpid())
		r.client = after - before
		return err
	})
	if err != nil {
		return r, err
	}
	r.Records, r.Bytes, r.Latencies = messages, messages*int64(c.size), times
	return r, s.forget(ctx, topic)
}

// profileOf begins the names of the profiles of a round.
func (b *bench) profileOf(step string, round int) string {
	return filepath.Join(b.o.profile, fmt.Sprintf("%s-%d-", strings.ReplaceAll(step, " ", "-"), round+1))
}

// messages are how many of a size a stock has: whole requests of the filling.
func (b *bench) messages(size int) int64 {
	return max(min(b.o.bytes/int64(size), b.o.most)/1000, 1) * 1000
}

// system is a running server, started at its first use.
func (b *bench) system(ctx context.Context, name string) (system, error) {
	if s := b.systems[name]; s != nil {
		for _, p := range s.processes() {
			if err := p.Ended(); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	measure.Progress("starting %s", name)
	var s system
	var err error
	if name == jetStream {
		s, err = startTheirs(ctx, b.o.dir)
	} else {
		s, err = startOurs(ctx, b.o.dir)
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
