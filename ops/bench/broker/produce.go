package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
)

// produceLoad is a load of producers, each a kgo client with its own connection
// and the library's own settings, apart from what is said here. Those settings
// are: idempotent, acks=all, snappy, 10 ms linger, one request in flight.
type produceLoad struct {
	producers  int
	partitions int
	size       int  // bytes of a record
	plain      bool // no compression, random bytes; else snappy, text
	synced     bool // flush.messages=1: answered when it is on the disk
	keys       bool // a random key each, so that all partitions get something at once
	oneByOne   bool // one record a request, no linger, the next after the answer
}

func (l produceLoad) options(addr, topic string) []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(topic), kgo.MetadataMinAge(100 * time.Millisecond)}
	if l.plain {
		opts = append(opts, kgo.ProducerBatchCompression(kgo.NoCompression()))
	}
	if l.oneByOne {
		opts = append(opts, kgo.ProducerLinger(0))
	}
	return opts
}

// requestTimes is a hook that notes how long each Produce request took, from its
// writing to its answer.
type requestTimes struct{ measure.Samples }

func (t *requestTimes) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	if key == int16(kmsg.Produce) && e.Err() == nil {
		t.Add(e.DurationE2E())
	}
}

// run measures the load for the window.
func (l produceLoad) run(ctx context.Context, m *meter, window time.Duration) error {
	topic, err := createTopic(ctx, m.s, l.partitions, l.synced)
	if err != nil {
		return err
	}
	times := &requestTimes{}
	clients, err := l.connect(ctx, m.s, topic, kgo.WithHooks(times))
	defer func() {
		for _, cl := range clients {
			cl.Close()
		}
	}()
	if err != nil {
		return err
	}
	times.Reset()
	values := measure.Payloads(l.size, !l.plain)
	var acked atomic.Int64
	err = m.measure(ctx, func() error {
		until := time.Now().Add(window)
		g, ctx := errgroup.WithContext(ctx)
		for i, cl := range clients {
			g.Go(func() error {
				if l.oneByOne {
					return produceOneByOne(ctx, cl, values, until, &acked)
				}
				return l.produceAll(ctx, cl, values, uint64(i), until, &acked)
			})
		}
		return g.Wait()
	})
	if err != nil {
		return err
	}
	m.r.Records, m.r.Bytes, m.r.Latencies = acked.Load(), acked.Load()*int64(l.size), times.Sorted()
	return deleteTopic(ctx, m.s, topic)
}

// connect makes the clients, each with its first record acknowledged, so that
// connections and producer ids are there.
func (l produceLoad) connect(ctx context.Context, s *measure.Process, topic string, more ...kgo.Opt) (clients []*kgo.Client, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for range l.producers {
		g.Go(func() error {
			cl, err := kgo.NewClient(append(l.options(s.Addr, topic), more...)...)
			if err != nil {
				return err
			}
			mu.Lock()
			clients = append(clients, cl)
			mu.Unlock()
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			return cl.ProduceSync(ctx, &kgo.Record{Value: []byte("first")}).FirstErr()
		})
	}
	err = g.Wait()
	if err != nil {
		err = fmt.Errorf("first records to %s: %w", s.Name, err)
	}
	return clients, err
}

// produceAll produces as fast as the client takes records, then waits for all.
func (l produceLoad) produceAll(ctx context.Context, cl *kgo.Client, values [][]byte, seed uint64, until time.Time, acked *atomic.Int64) error {
	var failed atomic.Pointer[error]
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
			return
		}
		acked.Add(1)
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for i := 0; failed.Load() == nil && ctx.Err() == nil; i++ {
		if i%64 == 0 && time.Now().After(until) {
			break
		}
		r := &kgo.Record{Value: values[i%len(values)]}
		if l.keys {
			r.Key = binary.BigEndian.AppendUint64(nil, random.Uint64())
		}
		cl.Produce(ctx, r, done)
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func produceOneByOne(ctx context.Context, cl *kgo.Client, values [][]byte, until time.Time, acked *atomic.Int64) error {
	for i := 0; time.Now().Before(until); i++ {
		if err := cl.ProduceSync(ctx, &kgo.Record{Value: values[i%len(values)]}).FirstErr(); err != nil {
			return err
		}
		acked.Add(1)
	}
	return nil
}
