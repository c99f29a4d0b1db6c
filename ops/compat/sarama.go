package compat

import (
	"context"
	"fmt"

	"github.com/IBM/sarama"
)

// saramaClient is github.com/IBM/sarama.
type saramaClient struct{}

func (saramaClient) Name() string { return "sarama" }

func (saramaClient) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	codecs := map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
	cfg := sarama.NewConfig()
	cfg.Producer.Compression = codecs[codec]
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer([]string{broker}, cfg)
	if err != nil {
		return err
	}
	var batch []*sarama.ProducerMessage
	for _, r := range records {
		batch = append(batch, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(r.Key), Value: sarama.StringEncoder(r.Value)})
	}
	if err := producer.SendMessages(batch); err != nil {
		_ = producer.Close()
		return err
	}
	return producer.Close()
}

func (saramaClient) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	client, err := sarama.NewClient([]string{broker}, sarama.NewConfig())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = consumer.Close() }()
	partitions, err := consumer.Partitions(topic)
	if err != nil {
		return nil, err
	}
	var records []Record
	for _, p := range partitions {
		end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			return nil, fmt.Errorf("end of partition %d: %w", p, err)
		}
		if end == 0 {
			continue
		}
		got, err := saramaPartition(ctx, consumer, topic, p, end)
		records = append(records, got...)
		if err != nil {
			return records, err
		}
	}
	return records, nil
}

func saramaPartition(ctx context.Context, consumer sarama.Consumer, topic string, p int32, end int64) ([]Record, error) {
	stream, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	var records []Record
	for {
		select {
		case m := <-stream.Messages():
			records = append(records, Record{string(m.Key), string(m.Value)})
			if m.Offset+1 >= end {
				return records, nil
			}
		case <-ctx.Done():
			return records, ctx.Err()
		}
	}
}
