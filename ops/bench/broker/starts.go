package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"sidestream/ops/bench/measure"
)

const startPartitions = 1000

// starting is what one round of starts gave.
type starting struct {
	clean, crash time.Duration // from the process's begin until every partition answers
	idle         int64         // anonymous memory three seconds after the clean start
	scanned      int64         // bytes that our broker read again after the crash
}

// measureStarts measures starts on 1,000 partitions: after a clean stop, and
// after kill -9 with so many bytes written since the last recovery points.
func (b *bench) measureStarts(ctx context.Context) error {
	for _, name := range b.o.starts {
		if !b.has(name) {
			continue
		}
		dir := filepath.Join(b.o.dir, "starts")
		if err := b.startsOf(ctx, name, dir); err != nil {
			return fmt.Errorf("starts of %s: %w", name, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) startsOf(ctx context.Context, name, dir string) (err error) {
	begin := func() (*measure.Process, error) {
		if name == kafka {
			return startKafka(ctx, b.lib, dir)
		}
		return startSidestream(ctx, dir)
	}
	s, err := begin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Kill()) }()
	topic, err := createTopic(ctx, s, startPartitions, false)
	if err != nil {
		return err
	}
	st := &stock{topic: topic, partitions: startPartitions, records: b.o.tail / 1024, size: 1024}
	if err := st.fill(ctx, s); err != nil {
		return err
	}
	timed := func() (time.Duration, error) {
		begun := time.Now()
		if s, err = begin(); err != nil {
			return 0, err
		}
		err := admin(ctx, s, func(ctx context.Context, adm *kadm.Client) error {
			return waitReadable(ctx, adm, topic, startPartitions)
		})
		return time.Since(begun), err
	}
	for round := range b.o.rounds {
		var r starting
		if err := s.Stop(); err != nil {
			return err
		}
		if r.clean, err = timed(); err != nil {
			return err
		}
		time.Sleep(3 * time.Second)
		if r.idle, err = measure.RSSOf(s.PID()); err != nil {
			return err
		}
		if err := st.fill(ctx, s); err != nil {
			return err
		}
		if err := s.Kill(); err != nil {
			return err
		}
		if r.crash, err = timed(); err != nil {
			return err
		}
		if s.HTTP != "" {
			c, err := s.Counters(ctx, "sidestream_log_recovery_scanned_bytes_total")
			if err != nil {
				return err
			}
			r.scanned = int64(c["sidestream_log_recovery_scanned_bytes_total"])
		}
		b.starts[name] = append(b.starts[name], r)
		measure.Progress("start on 1,000 partitions %d %-12s clean %.2f s, after a crash %.2f s (%d MB read again), idle %d MB", round+1, name,
			r.clean.Seconds(), r.crash.Seconds(), r.scanned>>20, r.idle>>20)
	}
	return nil
}
