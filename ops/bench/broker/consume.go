package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
)

// stock is a topic full of records for consumers to read.
type stock struct {
	topic      string
	partitions int
	records    int64 // in all
	size       int
}

// fill produces the stock: partitions in turn, batches as large as the client
// makes them.
func (st *stock) fill(ctx context.Context, s *measure.Process) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.DefaultProduceTopic(st.topic),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer cl.Close()
	values := measure.Payloads(st.size, false)
	var failed atomic.Pointer[error]
	run := max(st.records/int64(st.partitions)/8, 1) // of records for one partition
	for i := range st.records {
		cl.Produce(ctx, &kgo.Record{Value: values[i%int64(len(values))], Partition: int32(i / run % int64(st.partitions))}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("filling %s: %w", s.Name, *err)
	}
	return nil
}

// consumeLoad reads the stock once with kgo consumers, which share the
// partitions.
type consumeLoad struct {
	consumers int
	cold      bool
}

func (l consumeLoad) run(ctx context.Context, m *meter, st *stock) error {
	if l.cold {
		files, err := segments(m.s, st.topic, st.partitions)
		if err != nil {
			return err
		}
		if err := cool(files); err != nil {
			return err
		}
	}
	var got atomic.Int64
	err := m.measure(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		g, gctx := errgroup.WithContext(ctx)
		for i := range l.consumers {
			from := map[int32]kgo.Offset{}
			for p := i; p < st.partitions; p += l.consumers {
				from[int32(p)] = kgo.NewOffset().AtStart()
			}
			g.Go(func() error {
				cl, err := kgo.NewClient(kgo.SeedBrokers(m.s.Addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{st.topic: from}))
				if err != nil {
					return err
				}
				defer cl.Close()
				for got.Load() < st.records && gctx.Err() == nil {
					fs := cl.PollFetches(gctx)
					n := got.Add(int64(fs.NumRecords()))
					if n >= st.records {
						cancel() // the others wait for what does not come
						return nil
					}
					if err := fs.Err(); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil && got.Load() < st.records {
			return fmt.Errorf("after %d of %d records: %w", got.Load(), st.records, err)
		}
		return nil
	})
	m.r.Records, m.r.Bytes = got.Load(), got.Load()*int64(st.size)
	return err
}

// togetherLoad produces and consumes at once. Its latency is from Produce to the
// consumer's hand. With a rate, records come evenly and without linger; without
// one, as fast as the client takes them.
type togetherLoad struct {
	size   int
	rate   int // records a second, 0 for no limit
	synced bool
}

// stampMark begins the records that carry the time at which they were made.
const stampMark = 0x51de57a3a51de57a

func (l togetherLoad) run(ctx context.Context, m *meter, window time.Duration) error {
	const partitions = 8
	topic, err := createTopic(ctx, m.s, partitions, l.synced)
	if err != nil {
		return err
	}
	load := produceLoad{producers: 1, plain: true, oneByOne: l.rate > 0} // oneByOne: no linger
	clients, err := load.connect(ctx, m.s, topic)
	for _, cl := range clients {
		defer cl.Close()
	}
	if err != nil {
		return err
	}
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(m.s.Addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return err
	}
	defer reader.Close()
	if fs := reader.PollFetches(ctx); fs.Err() != nil { // the first record: it is connected
		return fs.Err()
	}
	var acked, got atomic.Int64
	var times measure.Samples
	err = m.measure(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, window+time.Minute)
		defer cancel()
		var sent atomic.Int64 // 0 until all are sent
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			err := l.produce(ctx, clients[0], time.Now().Add(window), &acked)
			sent.Store(acked.Load())
			return err
		})
		g.Go(func() error {
			for ctx.Err() == nil {
				if n := sent.Load(); n > 0 && got.Load() >= n {
					return nil
				}
				poll, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // to see that all are sent
				fs := reader.PollFetches(poll)
				cancel()
				now := time.Now().UnixNano()
				fs.EachRecord(func(r *kgo.Record) {
					if len(r.Value) >= 16 && binary.BigEndian.Uint64(r.Value) == stampMark {
						times.Add(time.Duration(now - int64(binary.BigEndian.Uint64(r.Value[8:]))))
					}
				})
				got.Add(int64(fs.NumRecords()))
			}
			return fmt.Errorf("consumed %d of %d records: %w", got.Load(), sent.Load(), ctx.Err())
		})
		return g.Wait()
	})
	if err != nil {
		return err
	}
	m.r.Records, m.r.Bytes, m.r.Latencies = got.Load(), got.Load()*int64(l.size), times.Sorted()
	return deleteTopic(ctx, m.s, topic)
}

// produce sends until the time is over. Every 64th record carries its time, or
// each when there is a rate.
func (l togetherLoad) produce(ctx context.Context, cl *kgo.Client, until time.Time, acked *atomic.Int64) error {
	values := measure.Payloads(l.size, false)
	var failed atomic.Pointer[error]
	begun := time.Now()
	for i := 0; failed.Load() == nil && ctx.Err() == nil; i++ {
		if l.rate > 0 {
			if ahead := time.Duration(i)*time.Second/time.Duration(l.rate) - time.Since(begun); ahead > 0 {
				time.Sleep(ahead)
			}
		}
		now := time.Now()
		if now.After(until) {
			break
		}
		value := values[i%len(values)]
		if l.rate > 0 || i%64 == 0 {
			value = append([]byte(nil), value...)
			binary.BigEndian.PutUint64(value, stampMark)
			binary.BigEndian.PutUint64(value[8:], uint64(now.UnixNano()))
		}
		cl.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
				return
			}
			acked.Add(1)
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
