package compat

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franz is github.com/twmb/franz-go, which is idempotent by default.
type franz struct{}

func (franz) Name() string { return "franz-go" }

func (franz) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codecs[codec]))
	if err != nil {
		return err
	}
	defer client.Close()
	var batch []*kgo.Record
	for _, r := range records {
		batch = append(batch, &kgo.Record{Key: []byte(r.Key), Value: []byte(r.Value)})
	}
	return client.ProduceSync(ctx, batch...).FirstErr()
}

func (franz) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	raw, err := fetchAll(ctx, broker, topic)
	var records []Record
	for _, r := range raw {
		records = append(records, Record{string(r.Key), string(r.Value)})
	}
	return records, err
}

// fetchAll returns the records with what else franz-go tells of them.
func fetchAll(ctx context.Context, broker, topic string) ([]*kgo.Record, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	starts := map[string]map[int32]kgo.Offset{topic: {}}
	left := map[int32]int64{}
	var listErr error
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err != nil {
			listErr = fmt.Errorf("end of partition %d: %w", o.Partition, o.Err)
		}
		if o.Offset > 0 {
			starts[topic][o.Partition] = kgo.NewOffset().AtStart()
			left[o.Partition] = o.Offset
		}
	})
	if listErr != nil {
		return nil, listErr
	}
	client.AddConsumePartitions(starts)
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return records, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return records, nil
}
