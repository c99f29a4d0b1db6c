// Command bench measures what one development server does on this machine:
// publishing in batches, publishing one by one, and consuming. Figures of
// different machines, or of a machine that does other work, do not compare.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"sidestream/ops/devserver"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

type options struct {
	binary   string
	messages int
	size     int
	batch    int
	clients  int
	singles  time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "bin", "bin/sidestream", "the sidestream binary")
	flag.IntVar(&o.messages, "messages", 200_000, "messages to publish in batches and to consume")
	flag.IntVar(&o.size, "size", 200, "bytes of a message")
	flag.IntVar(&o.batch, "batch", 1000, "messages of a batch, and of a pull")
	flag.IntVar(&o.clients, "clients", 8, "requests at once")
	flag.DurationVar(&o.singles, "singles", 5*time.Second, "how long to publish one by one")
	flag.Parse()
	if o.messages < 1 || o.size < 1 || o.batch < 1 || o.clients < 1 {
		fmt.Fprintln(os.Stderr, "bench: messages, size, batch and clients must be 1 or more")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "sidestream-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := devserver.Start(ctx, devserver.Options{Binary: o.binary, Dir: dir})
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stopCtx))
	}()
	client, err := sdk.New(server.Info.Sidecars[0])
	if err != nil {
		return err
	}
	defer client.Close()
	for _, topic := range []string{"batches", "singles"} {
		if _, err := client.CreateTopic(ctx, topic, api.TopicSpec{Partitions: 4}); err != nil {
			return err
		}
	}
	cpu := cpuOf(server.PID())
	for _, step := range []struct {
		name string
		run  func(context.Context, *sdk.Client, options) (measured, error)
	}{
		{"publish in batches", publishBatches},
		{"consume and acknowledge", consumeAll},
		{"publish one by one", publishSingles},
	} {
		start := time.Now()
		m, err := step.run(ctx, client, o)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		took := time.Since(start)
		now := cpuOf(server.PID())
		fmt.Printf("%-24s %9d messages in %6.2f s  %9.0f/s  %7.1f MB/s  server CPU %.2f s%s\n", step.name, m.messages,
			took.Seconds(), float64(m.messages)/took.Seconds(), float64(m.messages*o.size)/1e6/took.Seconds(), (now - cpu).Seconds(), m.latencies())
		cpu = now
	}
	return nil
}
