package broker_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
)

type commit struct {
	partition int32
	offset    int64
	epoch     int32
	metadata  *string
}

func commitReq(version int16, group, topic string, commits ...commit) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = version, group, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = topic
	for _, c := range commits {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = c.partition, c.offset, c.epoch, c.metadata
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	return req
}

// offsetsOf asks for a group's offsets in any version; partitions nil asks for all.
func (r *raw) offsetsOf(version int16, group, topic string, partitions ...int32) (map[int32]kmsg.OffsetFetchResponseGroupTopicPartition, int16) {
	r.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = version
	req.Group = group
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	if partitions != nil {
		t := kmsg.NewOffsetFetchRequestTopic()
		t.Topic, t.Partitions = topic, partitions
		req.Topics = append(req.Topics, t)
		gt := kmsg.NewOffsetFetchRequestGroupTopic()
		gt.Topic, gt.Partitions = topic, partitions
		g.Topics = append(g.Topics, gt)
	}
	req.Groups = append(req.Groups, g)
	resp := ask[*kmsg.OffsetFetchResponse](r, req)
	out := map[int32]kmsg.OffsetFetchResponseGroupTopicPartition{}
	if version >= 8 {
		for _, t := range resp.Groups[0].Topics {
			for _, p := range t.Partitions {
				out[p.Partition] = p
			}
		}
		return out, resp.Groups[0].ErrorCode
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out[p.Partition] = kmsg.OffsetFetchResponseGroupTopicPartition{Partition: p.Partition, Offset: p.Offset,
				LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode}
		}
	}
	return out, resp.ErrorCode
}

// Storm keeps a JSON text in the metadata and starts again from the beginning when it does not come back to the letter.
func TestPitfallCommittedMetadataAndEpochRoundTripInEveryVersion(t *testing.T) {
	w := start(t)
	w.topic("t", 3, nil)
	r := w.dial()
	for _, metadata := range []string{`{"topologyId":"word-count-1-1700000000","taskId":7,"threadName":"<a&b>"}`, "", "\x00\xff not UTF-8", "\u2028é"} {
		for cv := int16(2); cv <= 9; cv++ {
			group := "storm/" + string(rune('a'+cv))
			resp := ask[*kmsg.OffsetCommitResponse](r, commitReq(cv, group, "t", commit{0, 10 + int64(cv), 4, &metadata}, commit{2, 5, -1, nil}))
			for _, p := range resp.Topics[0].Partitions {
				if p.ErrorCode != 0 {
					t.Fatalf("commit version %d: %+v", cv, p)
				}
			}
			for fv := int16(1); fv <= 9; fv++ {
				got, code := r.offsetsOf(fv, group, "t", 0, 1, 2)
				if code != 0 || got[0].Offset != 10+int64(cv) || *got[0].Metadata != metadata || got[2].Offset != 5 || *got[2].Metadata != "" {
					t.Errorf("commit %d, fetch %d: %d, %+v", cv, fv, code, got)
				}
				if epoch := int32(4); fv >= 5 && (cv >= 6 && got[0].LeaderEpoch != epoch || cv < 6 && got[0].LeaderEpoch != -1) {
					t.Errorf("commit %d, fetch %d: epoch %d", cv, fv, got[0].LeaderEpoch)
				}
				if got[1].Offset != -1 || got[1].ErrorCode != 0 {
					t.Errorf("fetch %d: a partition without a commit: %+v", fv, got[1])
				}
				if fv < 2 {
					continue
				}
				if all, _ := r.offsetsOf(fv, group, ""); len(all) != 2 || all[2].Offset != 5 {
					t.Errorf("fetch %d of all: %+v", fv, all)
				}
			}
		}
	}
}

func TestOffsetsOfUnknownGroupsAndPartitionsAreMinusOne(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	got, code := r.offsetsOf(9, "never", "t", 0, 7)
	if code != 0 || got[0].Offset != -1 || got[7].Offset != -1 || got[0].ErrorCode != 0 || got[7].ErrorCode != 0 {
		t.Errorf("%d, %+v", code, got)
	}
	if got, _ := r.offsetsOf(9, "never", "no-topic", 0); got[0].Offset != -1 {
		t.Errorf("%+v", got)
	}
}

func TestCommitsThatCannotBeAreRefusedOneByOne(t *testing.T) {
	w := start(t)
	w.topic("t", 2, nil)
	r := w.dial()
	long := strings.Repeat("x", 4097)
	got := ask[*kmsg.OffsetCommitResponse](r, commitReq(8, "g", "t", commit{0, 1, -1, nil}, commit{1, 1, -1, &long}, commit{2, 1, -1, nil}))
	if p := got.Topics[0].Partitions; p[0].ErrorCode != 0 || p[1].ErrorCode != 12 || p[2].ErrorCode != 3 {
		t.Errorf("%+v", p)
	}
	member := commitReq(8, "g", "t", commit{0, 99, -1, nil})
	member.Generation, member.MemberID = 3, "me"
	if code := ask[*kmsg.OffsetCommitResponse](r, member).Topics[0].Partitions[0].ErrorCode; code != 22 {
		t.Errorf("a member's commit: error %d, want ILLEGAL_GENERATION", code)
	}
	if code := ask[*kmsg.OffsetCommitResponse](r, commitReq(8, "", "t", commit{0, 9, -1, nil})).Topics[0].Partitions[0].ErrorCode; code != 24 {
		t.Errorf("no group: error %d, want INVALID_GROUP_ID", code)
	}
	if o, _ := r.offsetsOf(8, "g", "t", 0, 1); o[0].Offset != 1 || o[1].Offset != -1 {
		t.Errorf("stored: %+v", o)
	}
}

// Clients look the coordinator up again and retry when they get COORDINATOR_NOT_AVAILABLE, and give up on most others.
func TestOffsetsWhileTheStoreIsAwayAreRetriable(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	w.cluster.mu.Lock()
	w.cluster.away = broker.ErrUnavailable
	w.cluster.mu.Unlock()
	if code := ask[*kmsg.OffsetCommitResponse](r, commitReq(8, "g", "t", commit{0, 1, -1, nil})).Topics[0].Partitions[0].ErrorCode; code != 15 {
		t.Errorf("commit: error %d, want 15", code)
	}
	for v := int16(1); v <= 9; v++ {
		got, code := r.offsetsOf(v, "g", "t", 0)
		if v == 1 {
			code = got[0].ErrorCode
		}
		if code != 15 {
			t.Errorf("fetch version %d: error %d, want 15", v, code)
		}
	}
}

// Offsets of a deleted topic must not be taken for those of a new one of the same name.
func TestPitfallDeletionClearsCommittedOffsets(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	ask[*kmsg.OffsetCommitResponse](r, commitReq(8, "g", "t", commit{0, 42, -1, nil}))
	if err := w.cluster.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	w.topic("t", 1, nil)
	if got, _ := r.offsetsOf(8, "g", "t", 0); got[0].Offset != -1 {
		t.Errorf("the new topic has the old one's offset: %+v", got)
	}
	if all, _ := r.offsetsOf(8, "g", ""); len(all) != 0 {
		t.Errorf("all offsets: %+v", all)
	}
}

func TestFindCoordinatorIsTheSameWhoeverAsks(t *testing.T) {
	w := start(t)
	w.cluster.change(func(v *broker.View) {
		v.Brokers = append(v.Brokers, broker.Node{ID: 2, Host: "two", Port: 2}, broker.Node{ID: 3, Host: "three", Port: 3})
	})
	r := w.dial()
	share := map[int32]int{}
	for i := range 300 {
		group := strings.Repeat("g", 1+i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26))
		var first int32
		for v := int16(0); v <= 4; v++ {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.Version, req.CoordinatorKey, req.CoordinatorKeys = v, group, []string{group}
			got := ask[*kmsg.FindCoordinatorResponse](r, req)
			id, code, port := got.NodeID, got.ErrorCode, got.Port
			if v >= 4 {
				c := got.Coordinators[0]
				id, code, port = c.NodeID, c.ErrorCode, c.Port
			}
			if v == 0 {
				first = id
				share[id]++
			}
			if code != 0 || id != first || id < 1 || port == 0 {
				t.Fatalf("version %d: %+v", v, got)
			}
		}
	}
	for id := int32(1); id <= 3; id++ {
		if share[id] < 50 {
			t.Errorf("shares %v: each of three brokers should have some of 300 groups", share)
		}
	}
	for kind, want := range map[int8]int16{1: 31, 2: 42} { // of transactions, of share groups
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorType = 3, "x", kind
		if got := ask[*kmsg.FindCoordinatorResponse](r, req); got.ErrorCode != want || got.NodeID != -1 {
			t.Errorf("type %d: %+v", kind, got)
		}
	}
}

func TestGroupsThroughKadm(t *testing.T) {
	w := start(t)
	w.topic("a", 2, nil)
	w.topic("b", 1, nil)
	adm := w.admin()
	ctx := t.Context()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: "a", Partition: 0, At: 3, LeaderEpoch: 1, Metadata: "here"})
	offsets.Add(kadm.Offset{Topic: "a", Partition: 1, At: 4, LeaderEpoch: -1})
	offsets.Add(kadm.Offset{Topic: "b", Partition: 0, At: 5, LeaderEpoch: -1})
	if err := adm.CommitAllOffsets(ctx, "g 1", offsets); err != nil {
		t.Fatal(err)
	}
	got, err := adm.FetchOffsets(ctx, "g 1")
	if err != nil || len(got["a"]) != 2 || got["a"][0].At != 3 || got["a"][0].LeaderEpoch != 1 || got["a"][0].Metadata != "here" || got["b"][0].At != 5 {
		t.Fatalf("fetched %+v, %v", got, err)
	}
	groups, err := adm.ListGroups(ctx)
	if err != nil || len(groups) != 1 || groups["g 1"].State != "Empty" {
		t.Errorf("listed %+v, %v", groups, err)
	}
	if busy, err := adm.ListGroups(ctx, "Stable"); err != nil || len(busy) != 0 {
		t.Errorf("stable groups: %+v, %v", busy, err)
	}
	described, err := adm.DescribeGroups(ctx, "g 1", "other")
	if err != nil || described["g 1"].State != "Empty" || described["other"].State != "Dead" {
		t.Errorf("described %+v, %v", described, err)
	}
	gone := kadm.TopicsSet{}
	gone.Add("a", 0)
	if r, err := adm.DeleteOffsets(ctx, "g 1", gone); err != nil || r["a"][0] != nil {
		t.Errorf("delete one: %+v, %v", r, err)
	}
	if left, _ := adm.FetchOffsets(ctx, "g 1"); len(left["a"]) != 1 || left["b"][0].At != 5 {
		t.Errorf("left: %+v", left)
	}
	deleted, err := adm.DeleteGroups(ctx, "g 1", "other")
	if err != nil || deleted["g 1"].Err != nil || !errors.Is(deleted["other"].Err, kerr.GroupIDNotFound) {
		t.Errorf("deleted %+v, %v", deleted, err)
	}
}

// Old clients join without having asked what is served: closing the connection would send them round for ever.
func TestPitfallJoinGroupThatIsNotAdvertisedIsRefused(t *testing.T) {
	w := start(t)
	r := w.dial()
	for version := int16(0); version <= 9; version++ {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.ProtocolType = version, "g", "consumer"
		if code := ask[*kmsg.JoinGroupResponse](r, req).ErrorCode; code != kerr.InvalidRequest.Code {
			t.Errorf("version %d: error code %d, want INVALID_REQUEST", version, code)
		}
	}
	req := kmsg.NewPtrApiVersionsRequest()
	for _, k := range ask[*kmsg.ApiVersionsResponse](r, req).ApiKeys {
		if k.ApiKey == 11 {
			t.Error("JoinGroup is advertised, so that new clients would not see at once that it is not served")
		}
	}
}

// A subscribe() finds a coordinator and then that nobody serves JoinGroup: it must say so at once, and not wait for ever.
func TestSubscribeFailsFast(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	t.Run("franz-go", func(t *testing.T) {
		cl := w.client(kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"))
		err := cl.PollFetches(ctx).Err()
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "unable to join group session") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("kcat", func(t *testing.T) {
		out, err := kcat(t, ctx, "-b", w.b.Addr(), "-G", "g", "t")
		if err == nil || ctx.Err() != nil || !strings.Contains(out, "JoinGroup failed: Local: Required feature not supported by broker") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// kcat's simple consumer begins at the offset that it stored with the cluster before.
func TestKcatGoesOnFromItsStoredOffset(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	produce(t, w.client(), "t", "a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	read := func() string {
		out, err := kcat(t, ctx, "-b", w.b.Addr(), "-C", "-q", "-e", "-t", "t", "-p", "0", "-o", "stored",
			"-X", "group.id=simple", "-X", "topic.auto.offset.reset=earliest", "-X", "topic.offset.store.method=broker")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	if got := read(); got != "a b" {
		t.Errorf("first: %q", got)
	}
	produce(t, w.client(), "t", "c")
	if got := read(); got != "c" {
		t.Errorf("then: %q", got)
	}
}

func kcat(t *testing.T, ctx context.Context, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed (Debian package kcat)")
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	return string(out), err
}
