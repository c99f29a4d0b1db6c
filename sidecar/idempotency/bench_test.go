package idempotency

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// none writes everything at once.
type none struct{ offset atomic.Int64 }

func (n *none) Publish(_ context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	if o.Landed != nil {
		o.Landed(nil)
	}
	return api.Published{Topic: topic, Offset: n.offset.Add(1), Timestamp: m.Timestamp.UnixMilli()}, nil
}

func (n *none) PublishBatch(_ context.Context, _ string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	o.Landed(nil)
	first := n.offset.Add(int64(len(ms)))
	results := make([]api.BatchResult, len(ms))
	for i := range results {
		results[i].Offset = first + int64(i)
	}
	return results, nil
}

func BenchmarkPublish(b *testing.B) {
	for _, clients := range []int{1, 64} {
		for _, with := range []string{"out a key", " a key"} {
			b.Run(strconv.Itoa(clients)+" clients with"+with, func(b *testing.B) {
				w := newWorld(b)
				k, err := New(&none{}, DefaultConfig(), Deps{Dir: b.TempDir(), Nonce: "n", Brokers: w, Timeout: time.Minute, MaxTimeout: time.Minute, FS: disk.OS})
				if err != nil {
					b.Fatal(err)
				}
				defer k.Close()
				value := make([]byte, 200)
				var n atomic.Int64
				b.SetParallelism(max(1, clients/2))
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						o := publish.Options{}
						if with == " a key" {
							o.IdempotencyKey = "key " + strconv.FormatInt(n.Add(1), 10)
						}
						if _, err := k.Publish(context.Background(), "t", publish.Message{Value: value}, o); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

func BenchmarkBatch(b *testing.B) {
	w := newWorld(b)
	k, err := New(&none{}, DefaultConfig(), Deps{Dir: b.TempDir(), Nonce: "n", Brokers: w, Timeout: time.Minute, MaxTimeout: time.Minute, FS: disk.OS})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	ms := make([]publish.Message, 10_000)
	for i := range ms {
		ms[i].Value = make([]byte, 200)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := k.PublishBatch(context.Background(), "t", ms, publish.Options{IdempotencyKey: strconv.Itoa(i)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(ms))/b.Elapsed().Seconds(), "messages/s")
}
