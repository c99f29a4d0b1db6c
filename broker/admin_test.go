package broker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

func (w *world) configs(topic string) map[string]*kadm.Config {
	w.t.Helper()
	got, err := w.admin().DescribeTopicConfigs(w.t.Context(), topic)
	if err != nil || len(got) != 1 {
		w.t.Fatalf("%+v, %v", got, err)
	}
	out := map[string]*kadm.Config{}
	for _, c := range got[0].Configs {
		out[c.Key] = &c
	}
	return out
}

func TestPitfallIncrementalAlterConfigsAppendsAndSubtracts(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"retention.ms": "1000"})
	adm := w.admin()
	alter := func(changes ...kadm.AlterConfig) (string, error) {
		t.Helper()
		got, err := adm.AlterTopicConfigs(t.Context(), changes, "t")
		if err != nil {
			t.Fatal(err)
		}
		return got[0].ErrMessage, got[0].Err
	}
	for name, c := range map[string]struct {
		change kadm.AlterConfig
		want   error
		text   string
	}{
		"append to a number":     {kadm.AlterConfig{Op: kadm.AppendConfig, Name: "retention.ms", Value: ptr("5")}, kerr.InvalidConfig, "no list"},
		"subtract from nothing":  {kadm.AlterConfig{Op: kadm.SubtractConfig, Name: "nonsense", Value: ptr("5")}, kerr.InvalidConfig, "nonsense"},
		"append without a value": {kadm.AlterConfig{Op: kadm.AppendConfig, Name: "cleanup.policy"}, kerr.InvalidConfig, "no value"},
		"append what is unknown": {kadm.AlterConfig{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: ptr("burn")}, kerr.InvalidConfig, "cleanup.policy"},
		"subtract the last":      {kadm.AlterConfig{Op: kadm.SubtractConfig, Name: "cleanup.policy", Value: ptr("delete")}, kerr.InvalidConfig, "leaves nothing"},
		"a bad value":            {kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: ptr("soon")}, kerr.InvalidConfig, "retention.ms"},
	} {
		if text, err := alter(c.change); !errors.Is(err, c.want) || !strings.Contains(text, c.text) {
			t.Errorf("%s: %v, %q, want %v with %q", name, err, text, c.want, c.text)
		}
	}
	for _, c := range []struct {
		op   kadm.IncrementalOp
		want string
	}{{kadm.AppendConfig, "delete,compact"}, {kadm.AppendConfig, "delete,compact"}, {kadm.SubtractConfig, "delete"}} {
		if text, err := alter(kadm.AlterConfig{Op: c.op, Name: "cleanup.policy", Value: ptr("compact")}); err != nil {
			t.Fatalf("%v: %v, %s", c.op, err, text)
		}
		if got := w.configs("t")["cleanup.policy"]; got.MaybeValue() != c.want || got.Source != kmsg.ConfigSourceDynamicTopicConfig {
			t.Errorf("%v: %+v, want %q", c.op, got, c.want)
		}
	}
	// Several at once are all or none.
	if _, err := alter(kadm.AlterConfig{Op: kadm.SetConfig, Name: "segment.ms", Value: ptr("5000")}, kadm.AlterConfig{Op: kadm.SetConfig, Name: "nonsense", Value: ptr("1")}); err == nil {
		t.Error("a bad one among good ones was taken")
	}
	if _, err := alter(kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "retention.ms"}); err != nil {
		t.Error(err)
	}
	got := w.configs("t")
	if got["segment.ms"].Source != kmsg.ConfigSourceDefaultConfig || got["retention.ms"].Source != kmsg.ConfigSourceDefaultConfig || got["retention.ms"].MaybeValue() != "604800000" {
		t.Errorf("%+v, %+v", got["segment.ms"], got["retention.ms"])
	}
}

func TestConfigsThatAreAlteredHoldAtOnce(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	big := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 500)}})
	if got := r.put("t", big); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	alter := kmsg.NewPtrAlterConfigsRequest()
	res := kmsg.NewAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, "t"
	conf := kmsg.NewAlterConfigsRequestResourceConfig()
	conf.Name, conf.Value = "max.message.bytes", ptr("200")
	res.Configs = append(res.Configs, conf)
	alter.Resources = append(alter.Resources, res)
	for v := int16(0); v <= 2; v++ {
		alter.Version, alter.ValidateOnly = v, v < 2
		if got := ask[*kmsg.AlterConfigsResponse](r, alter); got.Resources[0].ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
		want := int16(0)
		if v == 2 {
			want = 10
		}
		if got := r.put("t", big); got.ErrorCode != want {
			t.Errorf("version %d: error %d, want %d: only the last was meant", v, got.ErrorCode, want)
		}
	}
	for name, change := range map[string]func(*kmsg.AlterConfigsRequestResource){
		"broker":  func(r *kmsg.AlterConfigsRequestResource) { r.ResourceType = kmsg.ConfigResourceTypeBroker },
		"unknown": func(r *kmsg.AlterConfigsRequestResource) { r.ResourceName = "nowhere" },
		"null":    func(r *kmsg.AlterConfigsRequestResource) { r.Configs[0].Value = nil },
	} {
		bad := *alter
		bad.Resources = []kmsg.AlterConfigsRequestResource{res}
		bad.Resources[0].Configs = []kmsg.AlterConfigsRequestResourceConfig{conf}
		change(&bad.Resources[0])
		if got := ask[*kmsg.AlterConfigsResponse](r, &bad); got.Resources[0].ErrorCode == 0 || got.Resources[0].ErrorMessage == nil {
			t.Errorf("%s was taken: %+v", name, got)
		}
	}
}

func TestPitfallDescribeConfigsTellsSourcesAndSynonyms(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"cleanup.policy": "compact"})
	for v := int16(1); v <= 4; v++ {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Version, req.IncludeSynonyms, req.IncludeDocumentation = v, true, true
		res := kmsg.NewDescribeConfigsRequestResource()
		res.ResourceType, res.ResourceName, res.ConfigNames = kmsg.ConfigResourceTypeTopic, "t", []string{"cleanup.policy"}
		req.Resources = append(req.Resources, res)
		got := ask[*kmsg.DescribeConfigsResponse](w.dial(), req).Resources[0].Configs
		if len(got) != 1 || *got[0].Value != "compact" || got[0].Source != kmsg.ConfigSourceDynamicTopicConfig || len(got[0].ConfigSynonyms) != 2 ||
			*got[0].ConfigSynonyms[1].Value != "delete" || got[0].ConfigSynonyms[1].Source != kmsg.ConfigSourceDefaultConfig {
			t.Errorf("version %d: %+v", v, got)
		}
	}
}

func TestPitfallKeylessRecordsAreRefusedByACompactedTopic(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"cleanup.policy": "compact"})
	for v := int16(3); v <= 12; v++ {
		resp := ask[*kmsg.ProduceResponse](w.dial(), produceReq(v, -1, "t", 0, recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}})))
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != 87 || p.BaseOffset != -1 {
			t.Errorf("version %d: %+v", v, p)
		}
		if v >= 8 && (len(p.ErrorRecords) != 2 || p.ErrorRecords[1].RelativeOffset != 1 || !strings.Contains(*p.ErrorRecords[1].ErrorMessage, "no key") || p.ErrorMessage == nil) {
			t.Errorf("version %d: %+v", v, p)
		}
	}
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		cl := w.client(kgo.ProducerBatchCompression(codec), kgo.RecordDeliveryTimeout(5*time.Second))
		err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte(strings.Repeat("no key ", 100))}).FirstErr()
		if !errors.Is(err, kerr.InvalidRecord) {
			t.Errorf("%v without a key: %v", codec, err)
		}
		if err := w.client(kgo.ProducerBatchCompression(codec)).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Key: []byte("k"), Value: []byte(strings.Repeat("with key ", 100))},
			&kgo.Record{Topic: "t", Key: []byte{}, Value: nil}).FirstErr(); err != nil {
			t.Errorf("%v with a key: %v", codec, err)
		}
	}
}

func TestDeleteRecordsMovesTheStart(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	produce(t, w.client(), "t", numbered(10, "v")...)
	r := w.dial()
	remove := func(version int16, topic string, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version = version
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = topic
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Offset = offset
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.DeleteRecordsResponse](r, req).Topics[0].Partitions[0]
	}
	for _, c := range []struct {
		version int16
		topic   string
		offset  int64
		low     int64
		code    int16
	}{{0, "t", 3, 3, 0}, {1, "t", 2, 3, 0}, {2, "t", 11, -1, 1}, {2, "t", -2, -1, 1}, {2, "nowhere", 0, -1, 3}, {2, "t", -1, 10, 0}} {
		if got := remove(c.version, c.topic, c.offset); got.LowWatermark != c.low || got.ErrorCode != c.code {
			t.Errorf("%+v: got %+v", c, got)
		}
		if c.offset == 3 {
			if got := r.get(fetchReq(12, "t", 0, 2)); got.ErrorCode != 1 || got.LogStartOffset != 3 {
				t.Errorf("fetch below the start: %+v", got)
			}
		}
	}
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}}))
	for _, epoch := range []int32{3, 7} {
		if err := w.b.Lead(broker.Lead{Topic: "t", ID: id, Count: 1, Epoch: epoch}); err != nil {
			t.Fatal(err)
		}
		if epoch == 3 {
			r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"c"}}))
		}
	}
	for v := int16(2); v <= 4; v++ {
		for _, c := range []struct {
			current, asked, found int32
			end                   int64
			code                  int16
		}{
			{-1, 0, 0, 2, 0}, {-1, 2, 0, 2, 0}, {-1, 3, 3, 3, 0}, {7, 5, 3, 3, 0},
			{7, 7, 7, 3, 0},    // no record yet
			{-1, 8, -1, -1, 0}, // never heard of
			{6, 3, -1, -1, 74}, {8, 3, -1, -1, 75},
		} {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.Version, req.ReplicaID = v, -1
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = "t"
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.CurrentLeaderEpoch, rp.LeaderEpoch = c.current, c.asked
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			got := ask[*kmsg.OffsetForLeaderEpochResponse](r, req).Topics[0].Partitions[0]
			if got.LeaderEpoch != c.found || got.EndOffset != c.end || got.ErrorCode != c.code {
				t.Errorf("version %d, %+v: got %+v", v, c, got)
			}
		}
	}
}

func TestPitfallLogDirsAndClusterAreDescribed(t *testing.T) {
	w := start(t)
	w.topic("t", 2, nil)
	produce(t, w.client(), "t", "a")
	dirs, err := w.admin().DescribeAllLogDirs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d := dirs[selfID][w.cfg.DataDir]
	if d.Err != nil || d.Topics["t"][0].Size == 0 || len(d.Topics["t"]) != 2 {
		t.Errorf("%+v", dirs)
	}
	r := w.dial()
	for v := int16(1); v <= 4; v++ {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Version = v
		rt := kmsg.NewDescribeLogDirsRequestTopic()
		rt.Topic, rt.Partitions = "t", []int32{1}
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.DescribeLogDirsResponse](r, req)
		if len(got.Dirs) != 1 || len(got.Dirs[0].Topics) != 1 || len(got.Dirs[0].Topics[0].Partitions) != 1 || v >= 4 && (got.Dirs[0].UsableBytes <= 0 || got.Dirs[0].TotalBytes < got.Dirs[0].UsableBytes) {
			t.Errorf("version %d: %+v", v, got)
		}
	}
	for v := int16(0); v <= 1; v++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version, req.EndpointType = v, 1
		got := ask[*kmsg.DescribeClusterResponse](r, req)
		if got.ErrorCode != 0 || got.ClusterID != "test-cluster" || got.ControllerID != selfID || len(got.Brokers) != 1 || got.Brokers[0].Port == 0 {
			t.Errorf("version %d: %+v", v, got)
		}
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.Version, req.EndpointType = 1, 2
	if got := ask[*kmsg.DescribeClusterResponse](r, req); got.ErrorCode != 115 || got.ErrorMessage == nil {
		t.Errorf("controllers: %+v", got)
	}
}

func TestPitfallCreatePartitionsAnswersAndWarns(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Version = 3
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = "t", 3
	req.Topics = append(req.Topics, rt)
	got := ask[*kmsg.CreatePartitionsResponse](w.dial(), req)
	if len(got.Topics) != 1 || got.Topics[0].ErrorCode != 0 || got.Topics[0].ErrorMessage == nil || !strings.Contains(*got.Topics[0].ErrorMessage, "keys map to other partitions") {
		t.Errorf("%+v", got)
	}
}
