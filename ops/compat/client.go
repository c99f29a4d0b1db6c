// Package compat lets other people's Kafka clients meet our broker: each
// produces with every codec, and each consumes, by assignment, what every other
// produced. It is a module of its own, so that none of them becomes a
// dependency of the product. Its tests run the real binary; see `make compat`.
package compat

import (
	"context"
	"fmt"
	"os/exec"
	"sort"
	"strings"
)

// Codecs are the compressions of record batches.
var Codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Record is a key and a value, all that every client can be asked for.
type Record struct{ Key, Value string }

// Client is one of the clients under test.
type Client interface {
	Name() string
	// Produce writes the records, compressed, with acks=all.
	Produce(ctx context.Context, broker, topic, codec string, records []Record) error
	// Consume assigns itself all partitions of the topic from their start and
	// returns all records up to their present ends.
	Consume(ctx context.Context, broker, topic string) ([]Record, error)
}

// Clients are all of them.
func Clients() []Client {
	return []Client{franz{}, saramaClient{}, segmentio{}, kcat{}, confluent{},
		confluentNew, kafkaPython, aiokafka, java39, java4}
}

// Records makes n records whose values compress well.
func Records(producer, codec string, n int) []Record {
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{
			Key:   fmt.Sprintf("key-%d", i%7),
			Value: fmt.Sprintf("%s %s %04d %s", producer, codec, i, strings.Repeat("lorem ipsum ", 50)),
		}
	}
	return records
}

// Sorted orders records, since partitions have no order between them.
func Sorted(records []Record) []Record {
	sorted := append([]Record(nil), records...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Value < sorted[j].Value })
	return sorted
}

// run runs a program with an input and returns what it printed.
func run(ctx context.Context, input, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// lines and fields: the form in which records pass through programs.
func toLines(records []Record) string {
	var b strings.Builder
	for _, r := range records {
		b.WriteString(r.Key + "\t" + r.Value + "\n")
	}
	return b.String()
}

func fromLines(text string) ([]Record, error) {
	var records []Record
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !found {
			return nil, fmt.Errorf("printed %q, want key, tab, value", line)
		}
		records = append(records, Record{key, value})
	}
	return records, nil
}
