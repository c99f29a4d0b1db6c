package kafka

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
	"sidestream/broker/record"
)

func TestCodes(t *testing.T) {
	for err, want := range map[error]int16{
		nil:                               0,
		errors.New("?"):                   -1,
		fmt.Errorf("x: %w", ErrNotLeader): 6,
		record.ErrTooLarge:                10,
		record.ErrCRC:                     2,
		// Damage on the disk is that, whatever it looks like: code 87 is one that
		// consumers do not expect and stop at.
		&commitlog.CorruptError{Cause: record.ErrInvalid}: 2,
		cluster.ErrTopicExists:                            36,
		cluster.ErrUnavailable:                            15,
		cluster.ErrUnknownOutcome:                         7,
		fmt.Errorf("write: %w", syscall.ENOSPC):           56,
		ErrOutOfOrder:                                     45,
		ErrDuplicateSequence:                              46,
		ErrStaleProducer:                                  47,
		ErrFencedEpoch:                                    74,
		ErrUnknownEpoch:                                   75,
	} {
		if got := codeOf(err); got != want {
			t.Errorf("%v: code %d, want %d", err, got, want)
		}
	}
	s := &Server{}
	if got := s.clusterCode(context.DeadlineExceeded); got != 7 {
		t.Errorf("an ended context: code %d, want 7", got)
	}
}

// Everything in the answer must be readable by kmsg, whose encoder this replaces.
func TestFetchAnswerReadsAsKmsg(t *testing.T) {
	for version := fetchAPI.min; version <= fetchAPI.max; version++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.IsolationLevel = version, 1
		topics := []fetchedTopic{{name: "a-topic", id: cluster.UUID{1, 2, 3}, parts: []*fetched{
			{req: kmsg.FetchRequestTopicPartition{Partition: 7}, at: Offsets{Start: 5, HighWatermark: 9, End: 10}},
			{req: kmsg.FetchRequestTopicPartition{Partition: 8}, at: Offsets{-1, -1, -1}, err: ErrNotLeader},
		}}}
		r, err := encodeFetch(header{key: keyFetch, version: version, correlation: 3}, req, topics, codeNone, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := r.pieces[0].bytes
		skip := 8
		if version >= fetchFlexible {
			skip = 9
		}
		got := kmsg.NewPtrFetchResponse()
		got.Version = version
		if err := got.ReadFrom(b[skip:]); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		if again := got.AppendTo(nil); !reflect.DeepEqual(again, b[skip:]) {
			t.Errorf("version %d: kmsg writes it otherwise:\n%x\n%x", version, again, b[skip:])
		}
		p := got.Topics[0].Partitions
		if p[0].Partition != 7 || p[0].HighWatermark != 9 || p[0].LastStableOffset != 9 || p[0].ErrorCode != 0 {
			t.Errorf("version %d: %+v", version, p[0])
		}
		if p[1].ErrorCode != 6 {
			t.Errorf("version %d: error %d", version, p[1].ErrorCode)
		}
	}
}

func view() *cluster.View {
	return &cluster.View{ClusterID: "c", Controller: 1, Brokers: []cluster.Node{{ID: 1, Host: "h", Port: 9, Rack: "r"}},
		Topics: map[string]*cluster.TopicView{
			"led":   {Name: "led", ID: cluster.UUID{1}, Partitions: []cluster.PartitionView{{Leader: 1, Epoch: 4, Replicas: []int32{1}, ISR: []int32{1}}}},
			"gone":  {Name: "gone", ID: cluster.UUID{2}, Partitions: []cluster.PartitionView{{Leader: 2, Replicas: []int32{2}}, {Leader: -1}}},
			"empty": {Name: "empty", ID: cluster.UUID{3}},
		}}
}

func TestMetadataFromAView(t *testing.T) {
	name := func(s string) kmsg.MetadataRequestTopic { return kmsg.MetadataRequestTopic{Topic: &s} }
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	req.Topics = []kmsg.MetadataRequestTopic{name("led"), name("gone"), name("empty"), name("none"), name("creating"), {TopicID: cluster.UUID{1}}, {TopicID: cluster.UUID{9}}}
	resp := metadata(req, view(), map[string]error{"creating": errNoLeaderYet})
	var codes []int16
	for _, rt := range resp.Topics {
		codes = append(codes, rt.ErrorCode)
	}
	if want := []int16{0, 0, 5, 3, 5, 0, 100}; !reflect.DeepEqual(codes, want) {
		t.Errorf("topic codes %v, want %v", codes, want)
	}
	partial := view()
	partial.Partial = true
	for i, rt := range metadata(req, partial, nil).Topics { // nobody is told that a topic is not there
		if want := []int16{0, 0, 5, 5, 5, 0, 5}[i]; rt.ErrorCode != want {
			t.Errorf("topic %d of a partial view: code %d, want %d", i, rt.ErrorCode, want)
		}
	}
	led := resp.Topics[0].Partitions[0]
	if led.Leader != 1 || led.LeaderEpoch != 4 || led.ErrorCode != 0 {
		t.Errorf("led: %+v", led)
	}
	for _, p := range resp.Topics[1].Partitions { // a leader that is no broker now, and none at all
		if p.ErrorCode != codeLeaderNotAvailable || p.Leader != -1 {
			t.Errorf("gone: %+v", p)
		}
	}
	if off := resp.Topics[1].Partitions[0].OfflineReplicas; !reflect.DeepEqual(off, []int32{2}) {
		t.Errorf("offline replicas %v", off)
	}
}

func TestMetadataAllAndNone(t *testing.T) {
	for _, c := range []struct {
		version int16
		topics  []kmsg.MetadataRequestTopic
		want    int
	}{
		{0, []kmsg.MetadataRequestTopic{}, 3}, // version 0: empty is all
		{1, nil, 3},
		{1, []kmsg.MetadataRequestTopic{}, 0},
		{12, nil, 3},
	} {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.Topics = c.version, c.topics
		if got := len(metadata(req, view(), nil).Topics); got != c.want {
			t.Errorf("version %d, %v: %d topics, want %d", c.version, c.topics, got, c.want)
		}
	}
}

func TestTopicSpec(t *testing.T) {
	value := "1"
	base := func() kmsg.CreateTopicsRequestTopic {
		return kmsg.CreateTopicsRequestTopic{Topic: "t", NumPartitions: 3, ReplicationFactor: 1}
	}
	for name, c := range map[string]struct {
		change func(*kmsg.CreateTopicsRequestTopic)
		want   error
		text   string
	}{
		"plain":        {func(*kmsg.CreateTopicsRequestTopic) {}, nil, ""},
		"defaults":     {func(r *kmsg.CreateTopicsRequestTopic) { r.NumPartitions, r.ReplicationFactor = -1, -1 }, nil, ""},
		"no partition": {func(r *kmsg.CreateTopicsRequestTopic) { r.NumPartitions = 0 }, cluster.ErrInvalidPartitions, "use 1 or more"},
		"no replica":   {func(r *kmsg.CreateTopicsRequestTopic) { r.ReplicationFactor = 0 }, cluster.ErrInvalidReplication, "use 1 or more"},
		"null config": {func(r *kmsg.CreateTopicsRequestTopic) {
			r.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
		}, cluster.ErrInvalidConfig, "retention.ms"},
		"config": {func(r *kmsg.CreateTopicsRequestTopic) {
			r.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms", Value: &value}}
		}, nil, ""},
		"both": {func(r *kmsg.CreateTopicsRequestTopic) {
			r.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{1}}}
		}, errInvalidRequest, "to -1"},
		"gap": {func(r *kmsg.CreateTopicsRequestTopic) {
			r.NumPartitions, r.ReplicationFactor = -1, -1
			r.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 1, Replicas: []int32{1}}}
		}, errAssignment, "lacks partition 0"},
	} {
		r := base()
		c.change(&r)
		_, err := topicSpec(r, false)
		if !errors.Is(err, c.want) || (err != nil && !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: got %v, want %v with %q", name, err, c.want, c.text)
		}
	}
}

func TestIncrementRefusesWhatItDoesNotKnow(t *testing.T) {
	v := "x"
	defaults := map[string]ConfigEntry{"list": {Name: "list", Value: "a,b", Kind: kindList}, "n": {Name: "n", Value: "1", Kind: 5}}
	for name, c := range map[string]struct {
		name string
		op   kmsg.IncrementalAlterConfigOp
		want error
		then string
	}{
		"operation": {"list", 9, errInvalidRequest, ""},
		"number":    {"n", kmsg.IncrementalAlterConfigOpAppend, cluster.ErrInvalidConfig, ""},
		"append":    {"list", kmsg.IncrementalAlterConfigOpAppend, nil, "a,b,x"},
		"subtract":  {"list", kmsg.IncrementalAlterConfigOpSubtract, nil, "a,b"},
		"set":       {"list", kmsg.IncrementalAlterConfigOpSet, nil, "x"},
	} {
		got, err := increment(map[string]string{}, []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: c.name, Op: c.op, Value: &v}}, defaults)
		if !errors.Is(err, c.want) || err == nil && got[c.name] != c.then {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	twice := []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "n", Value: &v}, {Name: "n", Value: &v}}
	if _, err := increment(map[string]string{}, twice, defaults); !errors.Is(err, errInvalidRequest) {
		t.Errorf("a config named twice: %v", err)
	}
}

func TestAStricterLoggerStaysAsItIs(t *testing.T) {
	for _, level := range []zapcore.Level{zap.DebugLevel, zap.WarnLevel, zap.ErrorLevel} {
		core, logs := observer.New(level)
		complaints := &strings.Builder{}
		log := atLeastWarn(zap.New(core, zap.ErrorOutput(zapcore.AddSync(complaints))))
		log.Info("chatter")
		log.Error("trouble")
		if logs.Len() != 1 || complaints.Len() > 0 {
			t.Errorf("%s: %d lines, zap says %q", level, logs.Len(), complaints)
		}
	}
}

func TestAdmission(t *testing.T) {
	a := &admission{max: 3, perIP: 2, byIP: map[string]int{}}
	var got []string
	for _, ip := range []string{"a", "a", "a", "b", "b"} {
		got = append(got, a.enter(ip))
	}
	if want := []string{"", "", "max_connections_per_ip", "", "max_connections"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	a.leave("a")
	a.leave("a")
	a.leave("b")
	if a.all != 0 || len(a.byIP) != 0 {
		t.Errorf("left over: %d, %v", a.all, a.byIP)
	}
}
