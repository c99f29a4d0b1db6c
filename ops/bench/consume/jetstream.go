package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
)

// theirs is a NATS server with JetStream.
type theirs struct {
	server *measure.Process
	nc     *nats.Conn // for all but consuming
	js     jetstream.JetStream
	runs   int // consumers made
}

func startTheirs(ctx context.Context, dir string) (*theirs, error) {
	data := filepath.Join(dir, "jetstream", "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	t := &theirs{}
	var err error
	if t.server, err = measure.StartRole(ctx, "jetstream", "jetstream", data, data); err != nil {
		return nil, err
	}
	if t.nc, t.js, err = t.connect(); err != nil {
		return nil, measure.FirstOf(err, t.stop())
	}
	return t, nil
}

func (t *theirs) connect() (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(t.server.Addr)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
	return nc, js, err
}

func (t *theirs) processes() []*measure.Process { return []*measure.Process{t.server} }

func (t *theirs) stop() error {
	if t.nc != nil {
		t.nc.Close()
	}
	return t.server.Stop()
}

// fill makes a stream on disk and publishes into it.
func (t *theirs) fill(ctx context.Context, stream string, size int, messages int64) error {
	_, err := t.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, Storage: jetstream.FileStorage, Replicas: 1})
	if err != nil {
		return err
	}
	values := measure.Payloads(size, true)
	var last []jetstream.PubAckFuture
	settle := func() error {
		for _, f := range last {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		last = last[:0]
		return nil
	}
	for i := range messages {
		f, err := t.js.PublishAsync(stream, values[i%int64(len(values))])
		if err != nil {
			return err
		}
		if last = append(last, f); len(last) == 2000 {
			if err := settle(); err != nil {
				return err
			}
		}
	}
	return settle()
}

// consume reads the stream once through a new durable pull consumer with
// explicit acknowledgement. Each puller has a connection of its own.
func (t *theirs) consume(ctx context.Context, stream string, l load, messages int64) (measured, error) {
	t.runs++
	name := fmt.Sprintf("bench-%d", t.runs)
	_, err := t.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: name, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		// Its default of 1,000 would keep all but two pulls waiting.
		MaxAckPending: 4 * l.pullers * l.batch, AckWait: 30 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	var conns []*nats.Conn
	var consumers []jetstream.Consumer
	for range l.pullers {
		nc, js, err := t.connect()
		if err != nil {
			return nil, err
		}
		conns = append(conns, nc)
		c, err := js.Consumer(ctx, stream, name)
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, c)
	}
	return func(ctx context.Context) ([]time.Duration, error) {
		defer func() {
			for _, nc := range conns {
				nc.Close()
			}
		}()
		var all measure.Samples
		var got atomic.Int64
		g, gctx := errgroup.WithContext(ctx)
		for i, c := range consumers {
			g.Go(func() error {
				own, err := fetchAndAck(gctx, c, l.batch, &got, messages)
				all.Add(own...)
				return measure.FirstOf(err, conns[i].FlushWithContext(gctx))
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		if got.Load() != messages {
			return nil, fmt.Errorf("%d messages came: want %d", got.Load(), messages)
		}
		return all.Sorted(), t.acked(ctx, stream, name)
	}, nil
}

func fetchAndAck(ctx context.Context, c jetstream.Consumer, batch int, got *atomic.Int64, messages int64) (times []time.Duration, err error) {
	for got.Load() < messages && ctx.Err() == nil {
		begun := time.Now()
		b, err := c.Fetch(batch, jetstream.FetchMaxWait(200*time.Millisecond))
		if err != nil {
			return nil, err
		}
		n := int64(0)
		for m := range b.Messages() {
			if len(m.Data()) == 0 {
				return nil, fmt.Errorf("a message came without its text")
			}
			if err := m.Ack(); err != nil {
				return nil, err
			}
			n++
		}
		if err := b.Error(); err != nil {
			return nil, err
		}
		if n > 0 {
			times = append(times, time.Since(begun))
			got.Add(n)
		}
	}
	return times, ctx.Err()
}

// acked waits until the server has taken in every acknowledgement, which it
// does not confirm.
func (t *theirs) acked(ctx context.Context, stream, name string) error {
	for {
		c, err := t.js.Consumer(ctx, stream, name) // with what the server says of it now
		if err != nil {
			return err
		}
		if i := c.CachedInfo(); i.NumAckPending == 0 && i.NumPending == 0 {
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// forget deletes the last consumer.
func (t *theirs) forget(ctx context.Context, stream string) error {
	return t.js.DeleteConsumer(ctx, stream, fmt.Sprintf("bench-%d", t.runs))
}
