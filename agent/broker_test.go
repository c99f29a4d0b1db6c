package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery"
)

// realHosts starts hosts with the real broker, and a client that knows them all.
func realHosts(t *testing.T, n int) (*testCluster, []*storageHost) {
	t.Helper()
	c := newTestCluster(t)
	var hosts []*storageHost
	for i := range n {
		h := c.host(fmt.Sprint("host", i+1))
		h.real = true
		h.start(c)
		h.ready()
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		h.await("all brokers in the view", func() bool { return len(h.View().Brokers) == n && h.View().Controller > 0 })
	}
	return c, hosts
}

func client(t *testing.T, h *storageHost, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(h.BrokerAddr()), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.RecordDeliveryTimeout(patience)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// produce writes one record to the partition and returns its offset.
func produce(t *testing.T, cl *kgo.Client, topic string, partition int32, value string) int64 {
	t.Helper()
	ctx, cancel := shortly()
	defer cancel()
	r, err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).First()
	if err != nil {
		t.Fatalf("produce %q to %s-%d: %v", value, topic, partition, err)
	}
	return r.Offset
}

// consume reads n records of a topic from its start, by partition.
func consume(t *testing.T, h *storageHost, topic string, n int) map[int32][]string {
	t.Helper()
	cl := client(t, h, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := shortly()
	defer cancel()
	got := map[int32][]string{}
	for seen := 0; seen < n; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("consumed %d of %d records: %v", seen, n, got)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got[r.Partition] = append(got[r.Partition], string(r.Value))
			seen++
		})
	}
	return got
}

// folders lists the partition folders of a topic in a data folder.
func folders(t *testing.T, h *storageHost, topic string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(h.dir, topic+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestProduceRestartConsumeDelete(t *testing.T) {
	c, hosts := realHosts(t, 3)
	one, two := hosts[0], hosts[1]
	cl := client(t, one)
	adm := kadm.NewClient(cl)
	ctx, cancel := shortly()
	defer cancel()
	if resp, err := adm.CreateTopic(ctx, 6, 1, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, "views"); err != nil || resp.Err != nil {
		t.Fatalf("create: %v %v", err, resp.Err)
	}
	if _, err := adm.CreateTopic(ctx, 6, 1, nil, "views"); !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Errorf("creating it again gave %v", err)
	}
	for p := range int32(6) {
		if o := produce(t, cl, "views", p, fmt.Sprint("before ", p)); o != 0 {
			t.Errorf("the first record of partition %d has offset %d", p, o)
		}
	}
	before := two.View().Topics["views"]
	two.stop()
	one.await("a third of the leaders gone", func() bool { return fmt.Sprint(one.leaders("views")) == "[1 -1 3 1 -1 3]" })

	// Only its partitions are unavailable, and retriably so.
	produce(t, cl, "views", 0, "meanwhile 0")
	impatient := client(t, one, kgo.RecordDeliveryTimeout(time.Second), kgo.UnknownTopicRetries(-1))
	short, cancelShort := context.WithTimeout(ctx, 3*time.Second)
	if err := impatient.ProduceSync(short, &kgo.Record{Topic: "views", Partition: 1, Value: []byte("x")}).FirstErr(); err == nil {
		t.Error("a record was written to a partition whose broker is down")
	}
	cancelShort()
	meta, err := adm.Metadata(ctx, "views")
	if err != nil {
		t.Fatal(err)
	}
	for p, d := range meta.Topics["views"].Partitions {
		if down := p == 1 || p == 4; down != (d.Err != nil) || down && !kerr.IsRetriable(d.Err) {
			t.Errorf("metadata of partition %d: leader %d, error %v", p, d.Leader, d.Err)
		}
	}

	two.start(c)
	two.ready()
	one.await("all leaders back", func() bool { return !contains(one.leaders("views"), -1) })
	after := two.View().Topics["views"]
	for p := range after.Partitions {
		grown := after.Partitions[p].Epoch > before.Partitions[p].Epoch
		if own := after.Partitions[p].Leader == two.ID(); own != grown {
			t.Errorf("partition %d led by %d: epoch %d, then %d", p, after.Partitions[p].Leader, before.Partitions[p].Epoch, after.Partitions[p].Epoch)
		}
	}
	for p := range int32(6) {
		produce(t, cl, "views", p, fmt.Sprint("after ", p))
	}
	got := consume(t, two, "views", 13)
	for p := range int32(6) {
		want := fmt.Sprintf("[before %d after %d]", p, p)
		if p == 0 {
			want = "[before 0 meanwhile 0 after 0]"
		}
		if fmt.Sprint(got[p]) != want {
			t.Errorf("partition %d holds %v; want %s", p, got[p], want)
		}
	}

	if err := one.CreatePartitions(ctx, "views", 8); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.DeleteTopic(ctx, "views"); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if f := folders(t, h, "views"); len(f) != 0 {
			t.Errorf("%s: files are left: %v", h.name, f)
		}
	}
}

func TestRecordsSurviveAWipeOfTheStore(t *testing.T) {
	c, hosts := realHosts(t, 2)
	one, two := hosts[0], hosts[1]
	one.create("t", 4)
	cl := client(t, one)
	for p := range int32(4) {
		produce(t, cl, "t", p, "first")
	}
	cluster := one.Status().ClusterID
	c.store.Wipe()
	for _, h := range hosts {
		h.await("the alarm", func() bool { return h.hasAlarm("cluster-id missing") })
	}
	for p := range int32(4) {
		produce(t, cl, "t", p, "wiped")
	}
	if got := consume(t, one, "t", 8); fmt.Sprint(got) != "map[0:[first wiped] 1:[first wiped] 2:[first wiped] 3:[first wiped]]" {
		t.Errorf("while wiped: %v", got)
	}
	two.stop()
	two.start(c)
	two.ready()
	ctx, cancel := shortly()
	defer cancel()
	for _, h := range hosts {
		if r, err := h.Rebuild(ctx, cluster); err != nil || len(r.Conflicts) != 0 || len(r.Partitions) != 2 {
			t.Fatalf("rebuild: %+v %v", r, err)
		}
	}
	for _, h := range hosts {
		h.await("no alarm", func() bool { return len(h.Alarms()) == 0 })
		h.await("all leaders", func() bool { return fmt.Sprint(h.leaders("t")) == "[1 2 1 2]" })
		if n := len(folders(t, h, "t")); n != 2 {
			t.Errorf("%s has %d folders; want 2", h.name, n)
		}
	}
	fresh := client(t, one) // its producer id is none of those given out before the wipe
	for p := range int32(4) {
		produce(t, fresh, "t", p, "rebuilt")
	}
	if got := consume(t, two, "t", 12); fmt.Sprint(got) != "map[0:[first wiped rebuilt] 1:[first wiped rebuilt] 2:[first wiped rebuilt] 3:[first wiped rebuilt]]" {
		t.Errorf("after the rebuild: %v", got)
	}
}

func TestServingGoesOnWithoutTheStore(t *testing.T) {
	c, hosts := realHosts(t, 2)
	one, two := hosts[0], hosts[1]
	one.create("t", 2)
	cl := client(t, one)
	produce(t, cl, "t", 0, "a")
	produce(t, cl, "t", 1, "a")
	c.store.SetDown(true)
	produce(t, cl, "t", 0, "b")
	produce(t, cl, "t", 1, "b")
	two.cfg.Broker.Listen = two.BrokerAddr() // clients that know it find it again
	two.stop()
	two.start(c)
	two.ready()
	produce(t, cl, "t", 1, "c")
	c.store.SetDown(false)
	two.await("its epoch raised", func() bool {
		v := two.View().Topics["t"]
		return v != nil && v.Partitions[1].Epoch == 2 && v.Partitions[0].Leader == 1
	})
	if got := consume(t, two, "t", 5); fmt.Sprint(got) != "map[0:[a b] 1:[a b c]]" {
		t.Errorf("consumed %v", got)
	}
}

// Files that no key mentions are kept, and told of.
func TestUnknownFilesAreKept(t *testing.T) {
	c, hosts := realHosts(t, 1)
	one := hosts[0]
	one.create("t", 3)
	produce(t, client(t, one), "t", 0, "kept")
	one.stop()
	if _, err := c.store.Commit(context.Background(), discovery.DeletePrefix(discovery.PrefixTopics), discovery.DeletePrefix(discovery.PrefixState)); err != nil {
		t.Fatal(err)
	}
	one.start(c)
	one.ready()
	one.await("the alarm", func() bool { return one.hasAlarm("3 partitions on disk are unknown to the store") })
	for _, f := range folders(t, one, "t") {
		if _, err := os.Stat(filepath.Join(f, "00000000000000000000.log")); err != nil {
			t.Error(err)
		}
	}
	if n := len(folders(t, one, "t")); n != 3 {
		t.Errorf("%d folders are left; want 3", n)
	}
	ctx, cancel := shortly()
	defer cancel()
	if _, err := one.Rebuild(ctx, one.Status().ClusterID); err != nil {
		t.Fatal(err)
	}
	one.await("no alarm", func() bool { return len(one.Alarms()) == 0 })
	if got := consume(t, one, "t", 1); fmt.Sprint(got) != "map[0:[kept]]" {
		t.Errorf("consumed %v", got)
	}
}

// Offsets and configs are the cluster's: whoever is asked, and after a restart.
func TestOffsetsAndConfigsThroughAnyBroker(t *testing.T) {
	_, hosts := realHosts(t, 2)
	one, two := hosts[0], hosts[1]
	adm, other := kadm.NewClient(client(t, one)), kadm.NewClient(client(t, two))
	ctx, cancel := shortly()
	defer cancel()
	if _, err := adm.CreateTopic(ctx, 4, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: "t", Partition: 3, At: int64(i), LeaderEpoch: 1, Metadata: fmt.Sprint("m", i)})
		if err := adm.CommitAllOffsets(ctx, fmt.Sprint("group ", i), offsets); err != nil {
			t.Fatal(err)
		}
		got, err := other.FetchOffsets(ctx, fmt.Sprint("group ", i))
		if o := got["t"][3]; err != nil || o.At != int64(i) || o.Metadata != fmt.Sprint("m", i) || o.LeaderEpoch != 1 {
			t.Errorf("group %d: %+v, %v", i, got, err)
		}
	}
	if groups, err := other.ListGroups(ctx); err != nil || len(groups) != 8 {
		t.Errorf("groups %+v, %v", groups, err)
	}
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("100")}}
	if r, err := adm.AlterTopicConfigs(ctx, set, "t"); err != nil || r[0].Err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	cl := client(t, two, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for p := range int32(4) { // two on each broker
		var err error
		two.await("both brokers go by the new limit", func() bool {
			err = cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Partition: p, Value: make([]byte, 200)}).FirstErr()
			return err != nil
		})
		if !errors.Is(err, kerr.MessageTooLarge) {
			t.Errorf("partition %d: %v", p, err)
		}
	}
	if _, err := other.DeleteGroups(ctx, "group 1"); err != nil {
		t.Error(err)
	}
	if got, err := adm.FetchOffsets(ctx, "group 1"); err != nil || len(got) != 0 {
		t.Errorf("a deleted group has %+v, %v", got, err)
	}
}
