package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker"
)

// produce sends values to partition 0 of a topic and fails the test on any error.
func produce(t *testing.T, cl *kgo.Client, topic string, values ...string) {
	t.Helper()
	var rs []*kgo.Record
	for _, v := range values {
		rs = append(rs, &kgo.Record{Topic: topic, Value: []byte(v)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := cl.ProduceSync(ctx, rs...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// consume reads n records of partition 0 from the start.
func consume(t *testing.T, w *world, topic string, n int) []string {
	t.Helper()
	cl := w.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []string
	for len(out) < n {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset != int64(len(out)) {
				t.Fatalf("record %d has offset %d", len(out), r.Offset)
			}
			out = append(out, string(r.Value))
		})
	}
	return out
}

func numbered(n int, text string) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", text, i))
	}
	return out
}

func TestPitfallEveryCodecIsTakenAndPassedThrough(t *testing.T) {
	w := start(t)
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			w.topic(name, 1, nil)
			want := numbered(2000, strings.Repeat(name, 5))
			produce(t, w.client(kgo.ProducerBatchCompression(codec)), name, want...)
			got := consume(t, w, name, len(want))
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("record %d: %q, want %q", i, got[i], want[i])
				}
			}
			// By time, inside what is compressed.
			offsets, err := w.admin().ListOffsetsAfterMilli(t.Context(), 1, name)
			if o, _ := offsets.Lookup(name, 0); err != nil || o.Err != nil || o.Offset != 0 {
				t.Errorf("offset by time: %+v, %v", o, err)
			}
		})
	}
}

func TestManyProducersAndPartitions(t *testing.T) {
	w := start(t)
	w.topic("t", 8, nil)
	const producers, each = 4, 500
	errs := make(chan error, producers)
	for range producers {
		cl := w.client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerLinger(0))
		go func() {
			var first error
			for i := range each {
				cl.Produce(context.Background(), &kgo.Record{Topic: "t", Value: fmt.Append(nil, i)}, func(_ *kgo.Record, err error) {
					if err != nil && first == nil {
						first = err
					}
				})
			}
			errs <- errors.Join(cl.Flush(context.Background()), first)
		}()
	}
	for range producers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	ends, err := w.admin().ListEndOffsets(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
	if total != producers*each {
		t.Errorf("%d records, want %d", total, producers*each)
	}
}

func TestAdminThroughKadm(t *testing.T) {
	w := start(t)
	adm := w.admin()
	ctx := t.Context()
	value := "3600000"
	created, err := adm.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": &value}, "made")
	if err != nil || created.ID == (kadm.TopicID{}) || created.NumPartitions != 3 || created.ReplicationFactor != 1 {
		t.Fatalf("create: %+v, %v", created, err)
	}
	for name, c := range map[string]struct {
		topic   string
		parts   int32
		repl    int16
		configs map[string]*string
		want    error
		text    string
	}{
		"exists":       {"made", 1, 1, nil, kerr.TopicAlreadyExists, "exists already"},
		"bad name":     {"a/b", 1, 1, nil, kerr.InvalidTopicException, `contains '/'`},
		"dots":         {"..", 1, 1, nil, kerr.InvalidTopicException, "not allowed"},
		"long name":    {strings.Repeat("x", 250), 1, 1, nil, kerr.InvalidTopicException, "250 characters"},
		"replication":  {"r", 1, 3, nil, kerr.InvalidReplicationFactor, "1 broker"},
		"partitions":   {"p", 0, 1, nil, kerr.InvalidPartitions, "use 1 or more"},
		"config value": {"c", 1, 1, map[string]*string{"retention.ms": ptr("soon")}, kerr.InvalidConfig, "retention.ms"},
		"config name":  {"c", 1, 1, map[string]*string{"retention.min": ptr("1")}, kerr.InvalidConfig, "retention.min"},
	} {
		got, err := adm.CreateTopic(ctx, c.parts, c.repl, c.configs, c.topic)
		if !errors.Is(err, c.want) || !strings.Contains(got.ErrMessage, c.text) {
			t.Errorf("%s: %v, %q, want %v with %q", name, err, got.ErrMessage, c.want, c.text)
		}
	}
	if _, err := adm.ValidateCreateTopics(ctx, 2, 1, nil, "only-checked"); err != nil {
		t.Errorf("validate: %v", err)
	}
	topics, err := adm.ListTopics(ctx)
	if err != nil || len(topics) != 1 || len(topics["made"].Partitions) != 3 || topics["made"].ID != created.ID {
		t.Errorf("list: %+v, %v", topics, err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "made")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range configs[0].Configs {
		got[c.Key] = c.MaybeValue()
	}
	if got["retention.ms"] != value || got["cleanup.policy"] != "delete" || got["flush.messages"] != "1" {
		t.Errorf("configs: %v", got)
	}
	brokers, err := adm.DescribeBrokerConfigs(ctx, selfID)
	if err != nil || len(brokers) != 1 || len(brokers[0].Configs) == 0 {
		t.Errorf("broker configs: %+v, %v", brokers, err)
	}
	if r, err := adm.UpdatePartitions(ctx, 5, "made"); err != nil || r["made"].Err != nil {
		t.Errorf("more partitions: %+v, %v", r, err)
	}
	if r, _ := adm.UpdatePartitions(ctx, 5, "made"); !errors.Is(r["made"].Err, kerr.InvalidPartitions) {
		t.Errorf("no more partitions: %+v", r)
	}
	if r, err := adm.DeleteTopics(ctx, "made", "never"); err != nil || r["made"].Err != nil || !errors.Is(r["never"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("delete: %+v, %v", r, err)
	}
	if held := w.b.Held(); len(held) != 0 {
		t.Errorf("still held: %+v", held)
	}
}

func ptr(s string) *string { return &s }

func TestKcat(t *testing.T) {
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed (Debian package kcat)")
	}
	w := start(t, func(c *broker.Config) { c.AutoCreateTopics = true })
	w.topic("kcat", 1, nil)
	run := func(in string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, kcat, append([]string{"-b", w.b.Addr()}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("kcat %s: %v\n%s", strings.Join(args, " "), err, errOut.String())
		}
		return out.String()
	}
	var want []string
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		lines := numbered(100, codec)
		want = append(want, lines...)
		run(strings.Join(lines, "\n")+"\n", "-P", "-t", "kcat", "-p", "0", "-z", codec, "-X", "enable.idempotence=true")
	}
	got := strings.Split(strings.TrimSpace(run("", "-C", "-t", "kcat", "-o", "beginning", "-e", "-q")), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("line %d: %q, want %q", i, got[i], want[i])
		}
	}
	if meta := run("", "-L"); !strings.Contains(meta, `topic "kcat" with 1 partitions`) {
		t.Errorf("metadata:\n%s", meta)
	}
	run("x\n", "-P", "-t", "made-by-kcat", "-X", "allow.auto.create.topics=true")
	if w.cluster.View().Topics["made-by-kcat"] == nil {
		t.Error("the topic was not created on the fly")
	}
}
