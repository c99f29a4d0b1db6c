package compat

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	recordsEach    = 60
	partitionsEach = 3
	limitEach      = 60 * time.Second
)

// topicOf names the topic of a producer and codec.
func topicOf(c Client, codec string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(c.Name()+" "+codec))
}

// Every client produces with every codec, and every client reads what every
// client produced. That the codec was really used is read from the batches.
func TestEveryoneReadsEveryone(t *testing.T) {
	broker := startBroker(t)
	clients := present(t, Clients())
	for _, producer := range clients {
		for _, codec := range Codecs {
			t.Run(producer.Name()+"/"+codec, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limitEach)
				defer cancel()
				topic := topicOf(producer, codec)
				createTopic(ctx, t, broker, topic, partitionsEach)
				want := Records(producer.Name(), codec, recordsEach)
				if err := producer.Produce(ctx, broker, topic, codec, want); err != nil {
					t.Fatalf("producing: %v", err)
				}
				checkCodec(ctx, t, broker, topic, codec)
				for _, consumer := range clients {
					got, err := consumer.Consume(ctx, broker, topic)
					if err != nil {
						t.Errorf("%s, consuming: %v", consumer.Name(), err)
						continue
					}
					if !slices.Equal(Sorted(got), Sorted(want)) {
						t.Errorf("%s read %d records that are not the %d that were produced", consumer.Name(), len(got), len(want))
					}
				}
			})
		}
	}
}

// codecNumbers are those of a batch's attributes (Kafka protocol guide, RecordBatch).
var codecNumbers = map[string]uint8{"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

// checkCodec looks at the batches: a client that does not trust a broker with
// a codec silently falls back to none.
func checkCodec(ctx context.Context, t *testing.T, broker, topic, codec string) {
	t.Helper()
	records, err := fetchAll(ctx, broker, topic)
	if err != nil {
		t.Fatalf("looking at the batches: %v", err)
	}
	for _, r := range records {
		if got := r.Attrs.CompressionType(); got != codecNumbers[codec] {
			t.Fatalf("offset %d of partition %d is compressed with codec %d, want %d (%s)", r.Offset, r.Partition, got, codecNumbers[codec], codec)
		}
	}
}
