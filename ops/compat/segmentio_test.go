package compat

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// kafka-go has two ways to fetch. Its Client.Fetch says with session -1 that it has none, where its Reader and others
// say 0: it was refused with FETCH_SESSION_ID_NOT_FOUND each time.
func TestKafkaGoFetchesByClient(t *testing.T) {
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitEach)
	defer cancel()
	for _, codec := range Codecs {
		topic := "by-client-" + codec
		createTopic(ctx, t, broker, topic, 1)
		want := Records("kafka-go", codec, recordsEach)
		if err := (segmentio{}).Produce(ctx, broker, topic, codec, want); err != nil {
			t.Fatal(err)
		}
		got, err := segmentioFetch(ctx, broker, topic, len(want))
		if err != nil {
			t.Errorf("%s: %v", codec, err)
			continue
		}
		if !slices.Equal(Sorted(got), Sorted(want)) {
			t.Errorf("%s: %d records that are not the %d that were produced", codec, len(got), len(want))
		}
	}
}

// segmentioFetch reads n records of a topic's partition 0 by Client.Fetch.
func segmentioFetch(ctx context.Context, broker, topic string, n int) ([]Record, error) {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(broker), Transport: transport}
	var records []Record
	for next := int64(0); len(records) < n; {
		resp, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Offset: next, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 100 * time.Millisecond})
		if err == nil {
			err = resp.Error
		}
		if err != nil {
			return records, err
		}
		for {
			r, err := resp.Records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return records, err
			}
			if r.Offset < next { // of a batch that began before
				continue
			}
			key, err := kafka.ReadAll(r.Key)
			if err != nil {
				return records, err
			}
			value, err := kafka.ReadAll(r.Value)
			if err != nil {
				return records, err
			}
			records, next = append(records, Record{string(key), string(value)}), r.Offset+1
		}
	}
	return records, nil
}
