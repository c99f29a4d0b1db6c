package broker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker"
)

// put produces one record, without repeats.
func (w *world) put(topic string, partition int32) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.b.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.RecordRetries(0))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	return cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: []byte("v")}).FirstErr()
}

// Somebody removed the data folder of an agent while it ran. Publishes were
// answered with offsets for as long as it lived, and the offsets began at 0 again
// after the restart. The same for one that is moved away or in whose place another
// is put, and for the folder of one partition.
func TestDataFolderGone(t *testing.T) {
	all := func(path string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	aside := func(path string, again bool) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, path), filepath.Join(filepath.Dir(dir), "aside")); err != nil {
				t.Fatal(err)
			}
			if again {
				if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		lose  func(t *testing.T, dir string)
		whole bool // of all partitions
	}{
		"removed":            {all(""), true},
		"moved":              {aside("", false), true},
		"replaced":           {aside("", true), true},
		"partition removed":  {all("a-0"), false},
		"partition moved":    {aside("a-0", false), false},
		"partition replaced": {aside("a-0", true), false},
		"log removed":        {all("a-0/00000000000000000000.log"), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.topic("a", 2, nil)
			w.topic("lax", 1, map[string]string{"flush.messages": "1000000"})
			for _, topic := range []string{"a", "lax"} {
				if err := w.put(topic, 0); err != nil {
					t.Fatal(err)
				}
			}
			c.lose(t, w.cfg.DataDir)
			if err := w.put("a", 0); !errors.Is(err, kerr.KafkaStorageError) {
				t.Fatalf("the first record after it: %v, want KAFKA_STORAGE_ERROR", err)
			}
			if err := w.put("a", 1); c.whole != errors.Is(err, kerr.KafkaStorageError) {
				t.Fatalf("another partition: %v", err)
			}
			if err := w.put("lax", 0); c.whole != errors.Is(err, kerr.KafkaStorageError) {
				t.Fatalf("a partition that is not synced for each record: %v", err)
			}
			want := "takes no writes"
			if c.whole {
				want = "log directory " + w.cfg.DataDir + " is offline"
			}
			if text := strings.Join(w.b.Alarms(), "\n"); !strings.Contains(text, want) || !strings.Contains(text, "gone from its place") {
				t.Fatalf("alarms: %s", text)
			}
			if got := w.read("a", 0); got != 1 { // what is open is read on
				t.Fatalf("%d records are read, want the one that was answered", got)
			}
			err := w.newTopic("later")
			if c.whole != (err != nil) {
				t.Fatalf("a new topic: %v", err)
			}
		})
	}
}

// Nobody writes, and it is an alarm all the same.
func TestDataFolderGoneIdle(t *testing.T) {
	for name, path := range map[string]string{"all": "", "partition": "a-0"} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.topic("a", 1, nil)
			if err := w.put("a", 0); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(w.cfg.DataDir, path)); err != nil {
				t.Fatal(err)
			}
			for begun := time.Now(); len(w.b.Alarms()) == 0; time.Sleep(50 * time.Millisecond) {
				if time.Since(begun) > 20*time.Second {
					t.Fatal("no alarm")
				}
			}
		})
	}
}

// newTopic leads a topic that is new.
func (w *world) newTopic(name string) error {
	_, err := w.cluster.CreateTopic(w.t.Context(), broker.TopicSpec{Name: name, Partitions: 1, Replication: 1})
	return err
}

// read counts the records of a partition.
func (w *world) read(topic string, partition int32) (n int) {
	w.t.Helper()
	cl := w.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
	defer cancel()
	return cl.PollFetches(ctx).NumRecords()
}
