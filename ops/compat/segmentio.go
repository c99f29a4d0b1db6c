package compat

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
)

// segmentio is github.com/segmentio/kafka-go.
type segmentio struct{}

func (segmentio) Name() string { return "kafka-go" }

func (segmentio) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	codecs := map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	w := &kafka.Writer{Addr: kafka.TCP(broker), Topic: topic, Compression: codecs[codec], RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.Hash{}, BatchTimeout: 1, Transport: &kafka.Transport{}}
	var batch []kafka.Message
	for _, r := range records {
		batch = append(batch, kafka.Message{Key: []byte(r.Key), Value: []byte(r.Value)})
	}
	if err := w.WriteMessages(ctx, batch...); err != nil {
		_ = w.Close()
		return err
	}
	w.Transport.(*kafka.Transport).CloseIdleConnections()
	return w.Close()
}

func (segmentio) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	conn, err := kafka.DialContext(ctx, "tcp", broker)
	if err != nil {
		return nil, err
	}
	partitions, err := conn.ReadPartitions(topic)
	_ = conn.Close()
	if err != nil {
		return nil, err
	}
	var records []Record
	for _, p := range partitions {
		got, err := segmentioPartition(ctx, broker, topic, p.ID)
		records = append(records, got...)
		if err != nil {
			return records, err
		}
	}
	return records, nil
}

func segmentioPartition(ctx context.Context, broker, topic string, partition int) ([]Record, error) {
	leader, err := kafka.DialLeader(ctx, "tcp", broker, topic, partition)
	if err != nil {
		return nil, err
	}
	end, err := leader.ReadLastOffset()
	_ = leader.Close()
	if err != nil || end == 0 {
		return nil, err
	}
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{broker}, Topic: topic, Partition: partition,
		MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 100 * time.Millisecond}) // its Close waits for the fetch under way
	defer func() { _ = r.Close() }()
	var records []Record
	for {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return records, err
		}
		records = append(records, Record{string(m.Key), string(m.Value)})
		if m.Offset+1 >= end {
			return records, nil
		}
	}
}
