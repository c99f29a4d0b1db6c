package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record/recordtest"
)

// What other implementations got wrong in parts of the protocol that are not served here, or only half: what can be asked
// of it all the same has the right answer.

// advertised is the keys of ApiVersions.
func (r *raw) advertised() map[int16]bool {
	r.t.Helper()
	keys := map[int16]bool{}
	for _, k := range ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest()).ApiKeys {
		keys[k.ApiKey] = true
	}
	return keys
}

// Clients read the values of transaction markers, though they are the brokers' own: one that is not written as Kafka does
// it stops consumers. Here there are none: no client can write one, and no request that would have a broker write one is
// there.
func TestPitfallThereAreNoControlRecords(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	const control, transactional = 0x20, 0x10
	for _, attributes := range []int16{control, control | transactional} {
		batch := recordtest.Batch(recordtest.Spec{Attributes: attributes, Producer: true, ID: 7})
		if got := r.put("t", batch); got.ErrorCode == 0 || got.BaseOffset != -1 {
			t.Errorf("a batch with attributes %#x of a client: %+v", attributes, got)
		}
	}
	if got := r.get(fetchReq(12, "t", 0, 0)); got.HighWatermark != 0 || len(got.RecordBatches) != 0 {
		t.Errorf("something of it was written: %+v", got)
	}
	keys := r.advertised()
	for _, key := range []int16{24, 25, 26, 27, 28} { // AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, TxnOffsetCommit
		if keys[key] {
			t.Errorf("key %d of transactions is advertised", key)
		}
	}
}

// A leader that serves before it knows what of the log is its own shows an end that is too low, and consumers go back.
func TestPitfallALeaderServesOnlyWhenItsLogIsWhole(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for range 5 {
		if got := r.put("t", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
	}
	w.close()
	w.open()
	r = w.dial()
	if got := r.get(fetchReq(12, "t", 0, 0)); got.ErrorCode != kerr.NotLeaderForPartition.Code {
		t.Errorf("before it leads: %+v, want NOT_LEADER_OR_FOLLOWER", got)
	}
	w.raiseEpochs(nil)
	if got := r.get(fetchReq(12, "t", 0, 5)); got.ErrorCode != 0 || got.HighWatermark != 5 || got.LastStableOffset != 5 {
		t.Errorf("the first answer of the new epoch: %+v, want a high watermark of 5", got)
	}
	for epoch, want := range map[int32]int16{0: kerr.FencedLeaderEpoch.Code, 1: 0, 2: kerr.UnknownLeaderEpoch.Code} {
		req := fetchReq(12, "t", 0, 0)
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = epoch
		if got := r.get(req); got.ErrorCode != want {
			t.Errorf("a fetch that knows of epoch %d: error %d, want %d", epoch, got.ErrorCode, want)
		}
	}
}

// Consumers that asked for stable offsets were told for ever that they were not yet; there is no transaction here that
// could leave them so. What else belongs to membership is not there to go wrong.
func TestPitfallStableOffsetsAreNotWaitedFor(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for v := int16(2); v <= 9; v++ {
		if code := ask[*kmsg.OffsetCommitResponse](r, commitReq(v, "g", "t", commit{0, int64(v), -1, nil})).Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Fatalf("commit version %d: error %d", v, code)
		}
		for fetch := int16(7); fetch <= 9; fetch++ {
			req := kmsg.NewPtrOffsetFetchRequest()
			req.Version, req.Group, req.RequireStable = fetch, "g", true
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = "g"
			req.Groups = append(req.Groups, g)
			resp := ask[*kmsg.OffsetFetchResponse](r, req)
			var offset int64 = -2
			switch {
			case fetch == 7 && resp.ErrorCode == 0 && len(resp.Topics) == 1:
				offset = resp.Topics[0].Partitions[0].Offset
			case fetch > 7 && resp.Groups[0].ErrorCode == 0 && len(resp.Groups[0].Topics) == 1:
				offset = resp.Groups[0].Topics[0].Partitions[0].Offset
			}
			if offset != int64(v) {
				t.Errorf("version %d of a stable offset: %+v, want %d", fetch, resp, v)
			}
		}
	}
	keys := r.advertised()
	for _, key := range []int16{11, 12, 13, 14, 68} { // JoinGroup, Heartbeat, LeaveGroup, SyncGroup, ConsumerGroupHeartbeat
		if keys[key] {
			t.Errorf("key %d of membership is advertised", key)
		}
	}
}

// A client that asks for a transactional producer is told at once that there is none, and what to do.
func TestATransactionalProducerFailsAtOnce(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	cl := w.client(kgo.TransactionalID("me"))
	begun := time.Now()
	err := cl.BeginTransaction()
	if err == nil {
		err = cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr()
	}
	if !errors.Is(err, kerr.ClusterAuthorizationFailed) || time.Since(begun) > 10*time.Second {
		t.Errorf("after %v: %v, want CLUSTER_AUTHORIZATION_FAILED at once", time.Since(begun), err)
	}
}

// Consoles and operators ask for ACLs and reassignments before anything else, and take it for a broken broker when the
// request is not known.
func TestWhatIsNotThereIsSaidToBeNone(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for v := int16(0); v <= 3; v++ {
		req := kmsg.NewPtrDescribeACLsRequest()
		req.Version, req.ResourceType, req.ResourcePatternType, req.Operation, req.PermissionType = v, 1, 1, 1, 1
		if got := ask[*kmsg.DescribeACLsResponse](r, req); got.ErrorCode != kerr.SecurityDisabled.Code || got.ErrorMessage == nil || len(got.Resources) != 0 {
			t.Errorf("version %d: %+v, want SECURITY_DISABLED with a text", v, got)
		}
	}
	for _, topics := range [][]kmsg.ListPartitionReassignmentsRequestTopic{nil, {{Topic: "t", Partitions: []int32{0}}}} {
		req := kmsg.NewPtrListPartitionReassignmentsRequest()
		req.Topics = topics
		if got := ask[*kmsg.ListPartitionReassignmentsResponse](r, req); got.ErrorCode != 0 || len(got.Topics) != 0 {
			t.Errorf("%+v, want no reassignment", got)
		}
	}
}

// Reassignment with rules of one's own surprises tools that were made for Kafka's. It is not there, nor is any way round
// it that would move replicas; where new ones go can be said.
func TestPitfallReassignmentIsNotServed(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	keys := r.advertised()
	for _, key := range []int16{34, 43, 45} { // AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments
		if keys[key] {
			t.Errorf("key %d is advertised", key)
		}
	}
	asked := kadm.TopicsSet{}
	asked.Add("t", 0)
	if got, err := w.admin().ListPartitionReassignments(t.Context(), asked); err != nil || len(got) != 0 {
		t.Errorf("a tool that lists reassignments: %v, %v, want none", got, err)
	}
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Version, req.TimeoutMillis = 3, 5000
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = "t", 2
	req.Topics = append(req.Topics, topic)
	for name, c := range map[string]struct {
		replicas [][]int32
		want     int16
	}{
		"too many":         {[][]int32{{selfID}, {selfID}}, kerr.InvalidReplicaAssignment.Code},
		"to nobody":        {[][]int32{{}}, kerr.InvalidReplicaAssignment.Code},
		"to one twice":     {[][]int32{{selfID, selfID}}, kerr.InvalidReplicaAssignment.Code},
		"to one not there": {[][]int32{{9}}, kerr.InvalidReplicaAssignment.Code},
		"as it should be":  {[][]int32{{selfID}}, 0},
	} {
		for _, validate := range []bool{true, c.want != 0} { // the good one is made in the second round
			req.ValidateOnly = validate
			req.Topics[0].Assignment = nil
			for _, ids := range c.replicas {
				a := kmsg.NewCreatePartitionsRequestTopicAssignment()
				a.Replicas = ids
				req.Topics[0].Assignment = append(req.Topics[0].Assignment, a)
			}
			got := ask[*kmsg.CreatePartitionsResponse](r, req).Topics[0]
			if c.want == 0 && !validate && got.ErrorCode == 0 {
				w.cluster.mu.Lock()
				if a := w.cluster.assigned; len(a) != 1 || a[0][0] != selfID {
					t.Errorf("the cluster was told %v", a)
				}
				w.cluster.mu.Unlock()
				req.Topics[0].Count = 3 // for the other cases
			}
			if got.ErrorCode != c.want {
				t.Errorf("%s: %+v, want error %d", name, got, c.want)
			}
		}
	}
}
