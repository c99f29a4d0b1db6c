package spool

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"sidestream/sidecar/publish"
)

// BenchmarkAccept is messages of 200 bytes taken in batches of 1000, each batch
// synced before its answer, on the disk of the test's folder.
func BenchmarkAccept(b *testing.B) {
	for _, clients := range []int{1, 16} {
		for _, keyed := range []bool{false, true} {
			b.Run(fmt.Sprintf("clients=%d/keyed=%v", clients, keyed), func(b *testing.B) {
				bs := newBrokers(16)
				cfg := DefaultConfig()
				cfg.MaxBytes = 1 << 40
				s, err := Open(cfg, Deps{Dir: b.TempDir(), Next: &live{b: bs}, Brokers: bs, Sender: bs.sender(), Logger: zap.NewNop()})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close(context.Background())
				value := make([]byte, 200)
				ms := make([]publish.Message, 1000)
				for i := range ms {
					ms[i] = publish.Message{Value: value}
					if keyed {
						ms[i].Key = fmt.Append(nil, "visitor-", i)
					}
				}
				b.SetParallelism(clients)
				b.ReportAllocs()
				begun := time.Now()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := s.PublishBatch(context.Background(), "t", ms, publish.Options{Ack: publish.AckSpool}); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.ReportMetric(float64(b.N)*1000/time.Since(begun).Seconds(), "events/s")
			})
		}
	}
}
