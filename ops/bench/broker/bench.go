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

// stockPartitions is how many partitions the topic that is read has.
const stockPartitions = 8

// bench is one run of the whole.
type bench struct {
	o       options
	lib     string // Kafka's jars, "" without Kafka
	servers map[string]*measure.Process
	stocks  map[string]*stock
	plans   map[string][]answers
	results map[string]map[string][]result // step, server, round
	starts  map[string][]starting          // server, round
	idle    map[string]int64               // anonymous memory of servers that have done nothing
	calls   calls
}

func run(ctx context.Context, o options) (err error) {
	b := &bench{o: o, servers: map[string]*measure.Process{}, stocks: map[string]*stock{}, plans: map[string][]answers{},
		results: map[string]map[string][]result{}, starts: map[string][]starting{}, idle: map[string]int64{}}
	begun, load := time.Now(), measure.LoadAverage()
	if o.kafka {
		b.lib, err = fetchKafka(ctx, o.cache)
		if errors.Is(err, errNoKafka) {
			measure.Progress("%v", err)
		} else if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stopAll(), os.RemoveAll(o.dir)) }()
	if err := measure.Touch(o.dir, o.touch); err != nil {
		return err
	}
	for _, st := range allSteps() {
		if !o.only.MatchString(st.name) {
			continue
		}
		if err := b.measure(ctx, st); err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
	}
	if o.only.MatchString(strace) {
		if err := b.watchSyscalls(ctx); err != nil {
			return err
		}
	}
	if err := b.stopAll(); err != nil {
		return err
	}
	if o.only.MatchString("start") {
		if err := b.measureStarts(ctx); err != nil {
			return err
		}
	}
	text := b.report(begun, load)
	fmt.Print(text)
	if o.out != "" {
		return os.WriteFile(o.out, []byte(text), 0o644)
	}
	return nil
}

// has tells whether that server can be measured.
func (b *bench) has(name string) bool { return name != kafka || b.lib != "" }

// measure measures a step on all its servers: once to warm up, then in rounds
// whose order turns.
func (b *bench) measure(ctx context.Context, st step) error {
	names := slices.DeleteFunc(append([]string{sidestream}, st.peers...), func(name string) bool { return !b.has(name) })
	b.results[st.name] = map[string][]result{}
	var disk diskPeer
	for round := -1; round < b.o.rounds; round++ {
		window := b.o.window
		if round < 0 {
			window = b.o.warm
		}
		for i := range names {
			name := names[i]
			if n := len(names); st.disk.files == 0 { // else ours first: the disk loop does as it did
				name = names[(i+max(round, 0))%n]
			}
			unix.Sync() // so that no one pays for what another has written
			var r result
			var err error
			if name == bareDiskly {
				r, err = bareDisk(ctx, filepath.Join(b.o.dir, "disk"), disk.files, disk.bytes, window)
			} else {
				r, err = b.once(ctx, st, name, round, window)
			}
			if err != nil {
				return err
			}
			if name == sidestream {
				disk = st.disk
				if disk.bytes == 0 && r.syncs > 0 {
					disk.bytes = int(r.synced / r.syncs)
				}
			}
			if round >= 0 {
				b.results[st.name][name] = append(b.results[st.name][name], r)
				measure.Progress("%-42s %d %-26s %9.0f records/s %7.1f MB/s  CPU %.3f s/GB  %d MB", st.name, round+1, name,
					r.Rate(), r.Megabytes(), r.CPUPerGB(), r.RSS>>20)
			}
		}
	}
	return nil
}

// once measures a step on one server.
func (b *bench) once(ctx context.Context, st step, name string, round int, window time.Duration) (result, error) {
	s, err := b.server(ctx, name)
	if err != nil {
		return result{}, err
	}
	m := &meter{s: s}
	if b.o.profile != "" && name == sidestream && round >= 0 {
		m.profile = filepath.Join(b.o.profile, fmt.Sprintf("%s-%d-", strings.ReplaceAll(st.name, " ", "-"), round+1))
	}
	err = st.run(ctx, b, m, window)
	return m.r, err
}

// server is a running server, started at its first use.
func (b *bench) server(ctx context.Context, name string) (*measure.Process, error) {
	if s := b.servers[name]; s != nil {
		return s, s.Ended()
	}
	measure.Progress("starting %s", name)
	var s *measure.Process
	var err error
	switch name {
	case sidestream:
		s, err = startSidestream(ctx, b.o.dir)
	case kafka:
		s, err = startKafka(ctx, b.lib, b.o.dir)
	case bareProduce:
		dir := filepath.Join(b.o.dir, "produce")
		s, err = measure.StartRole(ctx, name, "produce", dir, dir)
	case bareSend:
		var files []string
		ours := b.servers[sidestream]
		if files, err = segments(ours, b.stocks[sidestream].topic, stockPartitions); err == nil {
			s, err = measure.StartRole(ctx, name, "sendfile", filepath.Join(b.o.dir, "sendfile"), files...)
		}
	}
	if err != nil {
		return nil, err
	}
	b.servers[name] = s
	s.Name = name
	if name == sidestream || name == kafka {
		time.Sleep(3 * time.Second) // what starting costs is over
		if b.idle[name], err = measure.RSSOf(s.PID()); err != nil {
			return nil, err
		}
		if err := b.warmUp(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// warmUp has a server do a little of everything: Java compiles what runs often,
// and its first seconds would be nobody's measure.
func (b *bench) warmUp(ctx context.Context, s *measure.Process) error {
	for _, l := range []produceLoad{
		{producers: 8, partitions: 8, size: 100},
		{producers: 8, partitions: 8, size: 1024, plain: true},
		{producers: 8, partitions: 1, size: 100, oneByOne: true},
		{producers: 8, partitions: 1, size: 100, oneByOne: true, synced: true},
	} {
		if err := l.run(ctx, &meter{s: s}, 3*b.o.warm); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
	}
	return nil
}

// stock is the topic of a server that is read, filled at its first use.
func (b *bench) stock(ctx context.Context, s *measure.Process) (*stock, error) {
	if st := b.stocks[s.Name]; st != nil {
		return st, nil
	}
	measure.Progress("filling %s with %d MB", s.Name, b.o.fill>>20)
	topic, err := createTopic(ctx, s, stockPartitions, false)
	if err != nil {
		return nil, err
	}
	st := &stock{topic: topic, partitions: stockPartitions, records: b.o.fill / 1024, size: 1024}
	if err := st.fill(ctx, s); err != nil {
		return nil, err
	}
	b.stocks[s.Name] = st
	return st, nil
}

// plan is what a server is asked for in the fetch steps.
func (b *bench) plan(ctx context.Context, s *measure.Process) ([]answers, error) {
	if p := b.plans[s.Name]; p != nil {
		return p, nil
	}
	var p []answers
	if s.Name == bareSend {
		ours := b.servers[sidestream]
		files, err := segments(ours, b.stocks[sidestream].topic, stockPartitions)
		if err != nil {
			return nil, err
		}
		p = planSends(files, b.plans[sidestream], b.stocks[sidestream])
	} else {
		st, err := b.stock(ctx, s)
		if err != nil {
			return nil, err
		}
		if p, err = planFetches(s, st); err != nil {
			return nil, err
		}
	}
	b.plans[s.Name] = p
	return p, nil
}

// stopAll stops every server.
func (b *bench) stopAll() error {
	var errs []error
	for name, s := range b.servers {
		errs = append(errs, s.Stop())
		delete(b.servers, name)
	}
	return errors.Join(errs...)
}
