package upstream

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// produceIDs writes one record an id, each in a batch of its own.
func produceIDs(t *testing.T, u *Upstream, opts []kgo.Opt, ids ...string) *kgo.Client {
	t.Helper()
	cl, err := u.Client(append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if len(opts) > 0 {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		r := &kgo.Record{Topic: "t", Partition: 1, Value: []byte("v"), Headers: []kgo.RecordHeader{
			{Key: HeaderID, Value: []byte("other")}, {Key: "h", Value: []byte(id)}, {Key: HeaderID, Value: []byte(id)},
		}}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return cl
}

func idSet(ids ...string) map[string]struct{} {
	m := map[string]struct{}{}
	for _, id := range ids {
		m[id] = struct{}{}
	}
	return m
}

func TestFind(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	produce(t, u, "t", 1, "without", "an id")
	produceIDs(t, u, nil, "a", "b", "c", "b")
	tests := []struct {
		from int64
		ids  map[string]struct{}
		want map[string]int64
		end  int64
	}{
		{0, idSet("a", "b", "nope"), map[string]int64{"a": 2, "b": 3}, 6},
		{4, idSet("a", "b"), map[string]int64{"b": 5}, 6},
		{6, idSet("a"), map[string]int64{}, 6},
		{99, idSet("a"), map[string]int64{}, 6},
		{0, idSet(), map[string]int64{}, 6},
		{-3, idSet("a"), map[string]int64{"a": 2}, 6},
		{0, idSet("other"), map[string]int64{"other": 2}, 6},
		{0, idSet("other", "c"), map[string]int64{"other": 2, "c": 4}, 6},
	}
	for _, tt := range tests {
		found, end, err := u.Find(t.Context(), "t", 1, tt.from, tt.ids)
		if err != nil || !maps.Equal(found, tt.want) || end != tt.end {
			t.Errorf("%v from %d: %v, %d, %v; want %v, %d", tt.ids, tt.from, found, end, err, tt.want, tt.end)
		}
	}
	if _, _, err := u.Find(t.Context(), "nope", 0, 0, idSet("a")); codeOf(err) != api.CodeTopicNotFound {
		t.Errorf("unknown topic: %v", err)
	}
	if _, _, err := u.Find(t.Context(), "t", 7, 0, idSet("a")); codeOf(err) != api.CodePartitionNotFound {
		t.Errorf("unknown partition: %v", err)
	}
}

// What somebody's open transaction holds back is found all the same, and
// records that lie behind it.
func TestFindBehindAnOpenTransaction(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	tx := produceIDs(t, u, []kgo.Opt{kgo.TransactionalID("x")}, "inside")
	produceIDs(t, u, nil, "behind")
	found, _, err := u.Find(t.Context(), "t", 1, 0, idSet("inside", "behind"))
	if err != nil || len(found) != 2 {
		t.Errorf("%v, %v", found, err)
	}
	if err := tx.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}

// What retention has removed is not looked for.
func TestFindBelowTheStart(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	produceIDs(t, u, nil, "a", "b", "c")
	var offsets = map[string]map[int32]int64{"t": {1: 1}}
	req := kmsg.NewPtrDeleteRecordsRequest()
	for topic, parts := range offsets {
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = topic
		for p, o := range parts {
			rp := kmsg.NewDeleteRecordsRequestTopicPartition()
			rp.Partition, rp.Offset = p, o
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	if _, err := req.RequestWith(t.Context(), u.cl); err != nil {
		t.Fatal(err)
	}
	found, end, err := u.Find(t.Context(), "t", 1, 0, idSet("a", "c"))
	if err != nil || end != 3 || !maps.Equal(found, map[string]int64{"c": 2}) {
		t.Errorf("%v, %d, %v", found, end, err)
	}
}

// A new leader that does not know yet how far the log was acknowledged must not
// make a record look absent.
func TestFindBeforeTheLeaderKnowsItsEnd(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	produceIDs(t, u, nil, "a")
	c.ControlKey(kmsg.ListOffsets.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		resp := kreq.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = "t"
		rp := kmsg.NewListOffsetsResponseTopicPartition()
		rp.Partition, rp.ErrorCode, rp.Offset = 1, kerr.OffsetNotAvailable.Code, 0
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	if _, _, err := u.Find(t.Context(), "t", 1, 0, idSet("a")); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("got %v", err)
	}
	if found, _, err := u.Find(t.Context(), "t", 1, 0, idSet("a")); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestFindAmongMany(t *testing.T) {
	u := bootstrapped(t, newCluster(t))
	cl, err := u.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	value := make([]byte, 100<<10)
	var recs []*kgo.Record
	for i := range 100 { // 10 MB: several fetches
		recs = append(recs, &kgo.Record{Topic: "t", Partition: 2, Value: value, Headers: []kgo.RecordHeader{{Key: HeaderID, Value: fmt.Append(nil, i)}}})
	}
	if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	found, _, err := u.Find(ctx, "t", 2, 0, idSet("0", "57", "99", "100"))
	if err != nil || len(found) != 3 || found["57"] != 57 || found["99"] != 99 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestFindWithoutBrokers(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	produceIDs(t, u, nil, "a").Close()
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, _, err := u.Find(ctx, "t", 1, 0, idSet("a")); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("got %v", err)
	}
}

// A leader that has records which its replicas lack shows them later: until then
// nothing is said to be absent.
func TestFindWaitsForWhatTheReplicasLack(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	produceIDs(t, u, nil, "a", "b")
	behind := true // the replicas have the first record
	c.ControlKey(kmsg.ListOffsets.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ListOffsetsRequest)
		if req.ReplicaID != -1 || !behind {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = "t"
		rp := kmsg.NewListOffsetsResponseTopicPartition()
		rp.Partition, rp.Offset = 1, 1
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	found, end, err := u.Find(t.Context(), "t", 1, 0, idSet("b"))
	if err != nil || end != 2 || found["b"] != 1 {
		t.Errorf("%v, %d, %v; want b at 1, and the end at 2", found, end, err)
	}
}
