package consume

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/sdk/api"
)

// namedProduce names its topic instead of giving its id.
type namedProduce struct{ *kmsg.ProduceRequest }

func (namedProduce) MaxVersion() int16 { return 12 }

// produceRaw writes a batch that says it has count records, with records as
// they are, and returns its offset. The cluster looks at the header alone.
func (l *lab) produceRaw(topic string, partition, count int32, records []byte) int64 {
	l.t.Helper()
	return l.producePacked(topic, partition, count, kgo.CodecNone, records)
}

// producePacked is produceRaw of records that a codec has compressed.
func (l *lab) producePacked(topic string, partition, count int32, codec kgo.CompressionCodecType, records []byte) int64 {
	l.t.Helper()
	rb := kmsg.RecordBatch{Magic: 2, LastOffsetDelta: count - 1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: count, Records: records,
		Attributes: int16(codec), FirstTimestamp: bombTime, MaxTimestamp: bombTime}
	raw := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10_000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: raw}}}}
	kresp, err := l.prod.Broker(0).Request(l.t.Context(), namedProduce{req})
	if err != nil {
		l.t.Fatal(err)
	}
	rp := kresp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
		l.t.Fatal(err)
	}
	return rp.BaseOffset
}

// recordAt is a record at a place of its batch.
func recordAt(delta int32) []byte {
	b := kbin.AppendVarint([]byte{0, 0}, delta)
	b = kbin.AppendVarint(b, -1)
	b = kbin.AppendVarintBytes(b, []byte("bad"))
	b = append(b, 0)
	return append(kbin.AppendVarint(nil, int32(len(b))), b...)
}

// One producer's batch with a good checksum and wrong records (a record at
// place 40 of a batch of two) made groups skip the messages of others that
// follow it, and count as acknowledged what nobody had seen. The partition
// stands still before it instead and says why; a seek goes past it.
func TestCorruptBatchHidesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		count   int32
		records []byte
	}{
		"the same place twice": {2, append(recordAt(1), recordAt(1)...)},
		"a place beyond":       {2, append(recordAt(0), recordAt(40)...)},
		"a place before":       {2, append(recordAt(-3), recordAt(1)...)},
		"fewer":                {3, recordAt(0)},
		"more":                 {1, append(append(recordAt(0), recordAt(1)...), recordAt(2)...)},
		"garbage":              {2, []byte("\xff\xff\xff\xff\xff\xff\xff\xff")},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, map[string]int32{"views": 1})
			l.produce("views", 0, 0, 2)
			at := l.produceRaw("views", 0, c.count, c.records)
			after := at + int64(c.count)
			l.produce("views", 0, 100, 3)
			a := l.host("a")
			if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Unreadable: unreadableStop}); err != nil {
				t.Fatal(err)
			}
			req := PullRequest{Group: "g", Topic: "views"}
			var got []api.Message
			for len(got) < 2 {
				d := a.pullSome(req)
				a.ackAll("g", "views", d)
				got = append(got, d.Messages...)
			}
			if offsetsOf(got) != "[0 1]" {
				t.Fatalf("before it: %s", offsetsOf(got))
			}
			eventually(t, "corrupt_record", func() bool {
				d := a.pull(req)
				if len(d.Messages) > 0 {
					t.Fatalf("delivered %s", offsetsOf(d.Messages))
				}
				return *d.Reason == api.ReasonCorruptRecord
			})
			o, err := a.m.Offsets(t.Context(), "g", "views")
			if err != nil || o.Partitions[0].Position != at || o.Lag != after+3-at {
				t.Fatalf("%+v, %v", o, err)
			}
			if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{Offsets: map[string]int64{"0": after}}); err != nil {
				t.Fatal(err)
			}
			for got = nil; len(got) < 3; {
				d := a.pullSome(req)
				a.ackAll("g", "views", d)
				got = append(got, d.Messages...)
			}
			if *got[0].Value != "100" || *got[2].Value != "102" || got[0].Offset != after {
				t.Fatalf("after it: %+v", got)
			}
		})
	}
}

// What the brokers themselves call corrupt was told as brokers_down, which
// passes by itself, and logged with each try. It is said once.
func TestCorruptSegmentIsNoOutage(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	l.produce("views", 0, 0, 1)
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewFetchResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewFetchResponseTopicPartition()
				sp.Partition, sp.HighWatermark = rp.Partition, 0
				if rp.Partition == 0 {
					sp.ErrorCode, sp.HighWatermark = kerr.CorruptMessage.Code, -1
				}
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	core, logs := observer.New(zapcore.WarnLevel)
	l.log = zap.New(core)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views"}
	eventually(t, "corrupt_record", func() bool { return *a.pull(req).Reason == api.ReasonCorruptRecord })
	stuck := func() *cursor {
		a.m.reader.mu.Lock()
		defer a.m.reader.mu.Unlock()
		for c := range a.m.reader.cursors {
			if c.partition == 0 {
				return c
			}
		}
		return nil
	}()
	// The reader comes back to it, and that is no news.
	why := "the broker cannot read offset 0"
	for range 3 {
		stuck.sink.corrupt(unreadable{offset: 0, after: -1, end: -1, why: why})
	}
	said := func() int { return logs.FilterMessage("partition stands still").Len() } // the broker's words and ours
	eventually(t, "said twice", func() bool { return said() >= 2 })
	if n := said(); n != 2 {
		t.Errorf("said %d times", n)
	}
	if v := a.m.lookup("g").share("views").owner(0).view(time.Now()); !v.unreadable || !strings.HasPrefix(v.trouble, why) {
		t.Errorf("%+v", v)
	}
}

// A log that has lost its tail leaves the position above its end: that does not
// pass by itself either.
func TestPositionAboveTheEnd(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 3)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views"}
	for n := 0; n < 3; {
		d := a.pullSome(req)
		a.ackAll("g", "views", d)
		n += len(d.Messages)
	}
	l.kafka.ControlKey(kmsg.ListOffsets.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		r := kreq.(*kmsg.ListOffsetsRequest)
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		st, sp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		st.Topic = "views"
		if r.Topics[0].Partitions[0].Timestamp == -1 {
			sp.Offset = 1
		}
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		r := kreq.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		st, sp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		st.Topic, st.TopicID = r.Topics[0].Topic, r.Topics[0].TopicID
		sp.ErrorCode = kerr.OffsetOutOfRange.Code
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	eventually(t, "corrupt_record", func() bool { return *a.pull(req).Reason == api.ReasonCorruptRecord })
	if v := a.m.lookup("g").share("views").owner(0).view(time.Now()); !strings.Contains(v.trouble, "lost its tail") {
		t.Errorf("%+v", v)
	}
	eventually(t, "told by the metrics", func() bool { return a.gauge("sidestream_consume_unreadable_partitions") == 1 })
}
