package devserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/ops/devserver"
)

// mountSmall mounts a real file system of eight megabytes.
func mountSmall(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("this machine does not let root mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// binary builds the program under test.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sidestream")
	if out, err := exec.Command("go", "build", "-o", path, "sidestream/ops/sidestream").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// fillUp takes all the room that is left, to the last byte.
func fillUp(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "other data"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			size /= 2
		}
	}
}

const (
	topic      = "orders"
	partitions = 2
)

// peer is a Kafka client of the broker under test.
type peer struct {
	t      *testing.T
	client *kgo.Client
	admin  *kadm.Client
}

func dial(t *testing.T, broker string) peer {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordRetries(0), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return peer{t, client, kadm.NewClient(client)}
}

func (p peer) produce(partition int32, value string) (int64, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}
	err := p.client.ProduceSync(ctx, r).FirstErr()
	return r.Offset, err
}

// contents is what a partition holds, by offset.
func contents(t *testing.T, broker string, partition int32) map[int64]string {
	t.Helper()
	p := dial(t, broker)
	starts, err := p.admin.ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := p.admin.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	start, _ := starts.Lookup(topic, partition)
	end, _ := ends.Lookup(topic, partition)
	if err := errors.Join(start.Err, end.Err); err != nil {
		t.Fatalf("the offsets of partition %d: %v", partition, err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {partition: kgo.NewOffset().At(start.Offset)}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out := map[int64]string{}
	for int64(len(out)) < end.Offset-start.Offset {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records read: %v", len(out), end.Offset-start.Offset, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { out[r.Offset] = string(r.Value) })
	}
	return out
}

// alarms are those of /status, which /readyz must tell as well.
func alarms(t *testing.T, agent string) string {
	t.Helper()
	get := func(path string, into any) {
		response, err := http.Get(agent + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, response.StatusCode, body, err)
		}
		if err := json.Unmarshal(body, into); err != nil {
			t.Fatal(err)
		}
	}
	var status struct{ Alarms []string }
	var ready struct{ Causes []string }
	get("/status", &status)
	get("/readyz", &ready)
	if a, b := strings.Join(status.Alarms, "\n"), strings.Join(ready.Causes, "\n"); a != b {
		t.Errorf("/status tells %q and /readyz %q", a, b)
	}
	return strings.Join(status.Alarms, "\n")
}

func value(partition int32, n int) string {
	return fmt.Sprintf("%d/%d/%s", partition, n, strings.Repeat("x", 9000))
}

// checker knows what was acknowledged.
type checker struct {
	t     *testing.T
	acked [partitions]map[int64]string
	n     int
}

// fill produces until the disk is full, and says so.
func (c *checker) fill(broker string) {
	c.t.Helper()
	p := dial(c.t, broker)
	for {
		part := int32(c.n % partitions)
		v := value(part, c.n)
		c.n++
		offset, err := p.produce(part, v)
		if errors.Is(err, kerr.KafkaStorageError) {
			return
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if c.acked[part] == nil {
			c.acked[part] = map[int64]string{}
		}
		c.acked[part][offset] = v
	}
}

// check compares what is there with what was acknowledged. What was refused is
// nowhere.
func (c *checker) check(broker string) {
	c.t.Helper()
	for part := range int32(partitions) {
		got := contents(c.t, broker, part)
		if len(got) != len(c.acked[part]) {
			c.t.Errorf("partition %d has %d records, %d were acknowledged", part, len(got), len(c.acked[part]))
		}
		for offset, v := range c.acked[part] {
			if got[offset] != v {
				c.t.Errorf("partition %d: offset %d has %.20q, %.20q was acknowledged", part, offset, got[offset], v)
			}
		}
	}
}

// deleteSome makes room with DeleteRecords.
func (c *checker) deleteSome(broker string) {
	c.t.Helper()
	p := dial(c.t, broker)
	ends, err := p.admin.ListEndOffsets(c.t.Context(), topic)
	if err != nil {
		c.t.Fatal(err)
	}
	upTo := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) {
		at := o.Offset - 10
		upTo.AddOffset(o.Topic, o.Partition, at, -1)
		for offset := range c.acked[o.Partition] {
			if offset < at {
				delete(c.acked[o.Partition], offset)
			}
		}
	})
	answers, err := p.admin.DeleteRecords(c.t.Context(), upTo)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		c.t.Fatalf("DeleteRecords on a full disk: %v", err)
	}
}

func createTopic(t *testing.T, broker string) {
	t.Helper()
	size := "262144"
	answer, err := dial(t, broker).admin.CreateTopic(t.Context(), partitions, 1, map[string]*string{"segment.bytes": &size}, topic)
	if err = errors.Join(err, answer.Err); err != nil {
		t.Fatal(err)
	}
}

// A `sidestream dev` that filled its disk and was killed comes back: it serves
// what is there, says what is wrong, and takes writes again once records were
// deleted; again and again.
func TestDevComesBackOnAFullDisk(t *testing.T) {
	dir := mountSmall(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	options := devserver.Options{Binary: binary(t), Dir: dir}
	start := func() *devserver.Server {
		t.Helper()
		s, err := devserver.Start(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Kill() })
		return s
	}
	c := &checker{t: t}
	s := start()
	createTopic(t, s.Info.Broker)
	for round := range 3 {
		c.fill(s.Info.Broker)
		fillUp(t, dir)
		if round == 1 {
			// It cannot note where the logs end, and says so: the next start looks.
			if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("stopping on a full disk: %v, want that there was no room to note the end", err)
			}
			fillUp(t, dir)
		} else if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		s = start()
		c.check(s.Info.Broker)
		if got := alarms(t, s.Info.Agent); !strings.Contains(got, "is full") {
			t.Errorf("round %d: alarms %q, want one that says that the disk is full", round, got)
		}
		if _, err := dial(t, s.Info.Broker).produce(0, value(0, 0)); !errors.Is(err, kerr.KafkaStorageError) || !kerr.IsRetriable(err) {
			t.Errorf("round %d: producing on a full disk: %v, want the storage error, which is retriable", round, err)
		}
		c.deleteSome(s.Info.Broker)
		for part := range int32(partitions) {
			v := value(part, c.n)
			offset, err := dial(t, s.Info.Broker).produce(part, v)
			if err != nil {
				t.Fatalf("round %d: producing after records were deleted: %v", round, err)
			}
			c.acked[part][offset] = v
		}
		if got := alarms(t, s.Info.Agent); got != "" {
			t.Errorf("round %d: alarms %q although there is room again", round, got)
		}
		c.check(s.Info.Broker)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}
