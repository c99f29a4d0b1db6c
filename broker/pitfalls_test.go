package broker_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// What other implementations of the protocol got wrong, each with a test.

func TestPitfallApiVersionsNewerThanOursIsAnsweredInVersion0(t *testing.T) {
	r := start(t).dial()
	// A version that kmsg does not know: by hand, flexible header.
	req := []byte{0, 18, 0, 99, 0, 0, 0, 7, 0, 1, 'x', 0, 2, 'n', 2, 'v', 0}
	_, _ = r.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(req))), req...))
	resp := kmsg.NewPtrApiVersionsResponse()
	if id := r.receive(resp); id != 7 {
		t.Errorf("correlation id %d", id)
	}
	if resp.ErrorCode != 35 || len(resp.ApiKeys) != 1 || resp.ApiKeys[0].ApiKey != 18 || resp.ApiKeys[0].MaxVersion != 4 {
		t.Errorf("got %+v, want error 35 and the range of key 18", resp)
	}
	// The connection goes on, at every version we know.
	for v := int16(0); v <= 4; v++ {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = v, "test", "1"
		if got := ask[*kmsg.ApiVersionsResponse](r, q); got.ErrorCode != 0 || len(got.ApiKeys) < 11 {
			t.Errorf("version %d: %+v", v, got)
		}
	}
}

func TestPitfallProduceAdvertises0AndRefusesOldFormats(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for _, k := range ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest()).ApiKeys {
		if k.ApiKey == 0 && (k.MinVersion != 0 || k.MaxVersion < 9) {
			t.Errorf("produce is advertised as %d to %d", k.MinVersion, k.MaxVersion)
		}
	}
	for v := int16(0); v < 3; v++ {
		resp := ask[*kmsg.ProduceResponse](r, produceReq(v, 1, "t", 0, recordtest.Batch(recordtest.Spec{})))
		if code := resp.Topics[0].Partitions[0].ErrorCode; code != 35 {
			t.Errorf("version %d: error %d, want 35", v, code)
		}
	}
	for v := int16(3); v <= 12; v++ {
		resp := ask[*kmsg.ProduceResponse](r, produceReq(v, -1, "t", 0, recordtest.Batch(recordtest.Spec{})))
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != 0 || p.BaseOffset != int64(v-3) {
			t.Errorf("version %d: error %d, offset %d", v, p.ErrorCode, p.BaseOffset)
		}
	}
}

func TestPitfallFetchFromTheMiddleOfABatchReturnsTheWholeBatch(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"0"}}))
	batch := recordtest.Batch(recordtest.Spec{Values: []string{"1", "2", "3"}})
	r.put("t", batch)
	for offset := int64(1); offset <= 3; offset++ {
		got := r.get(fetchReq(12, "t", 0, offset))
		h, err := record.Check(got.RecordBatches, 0)
		if err != nil || h.BaseOffset != 1 || h.Count != 3 {
			t.Errorf("from %d: %+v, %v", offset, h, err)
		}
		if !bytes.Equal(got.RecordBatches[16:], batch[16:]) {
			t.Errorf("from %d: the batch was changed past its stamp", offset)
		}
	}
}

func TestPitfallFirstBatchLargerThanTheLimitsComesWhole(t *testing.T) {
	w := start(t)
	w.topic("t", 2, nil)
	r := w.dial()
	big := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 100_000)}})
	for p := range int32(2) {
		ask[*kmsg.ProduceResponse](r, produceReq(9, -1, "t", p, bytes.Clone(big)))
	}
	req := fetchReq(11, "t", 0, 0)
	req.MaxBytes = 10
	req.Topics[0].Partitions[0].PartitionMaxBytes = 5
	second := req.Topics[0].Partitions[0]
	second.Partition = 1
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, second)
	parts := ask[*kmsg.FetchResponse](r, req).Topics[0].Partitions
	if len(parts[0].RecordBatches) != len(big) || parts[0].ErrorCode != 0 {
		t.Errorf("first partition: %d bytes, want %d", len(parts[0].RecordBatches), len(big))
	}
	if len(parts[1].RecordBatches) != 0 || parts[1].ErrorCode != 0 {
		t.Errorf("second partition: %d bytes, error %d, want none", len(parts[1].RecordBatches), parts[1].ErrorCode)
	}
}

func TestPitfallMaxMessageBytesIsEnforced(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"max.message.bytes": "200"})
	r := w.dial()
	got := r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 300)}}))
	if got.ErrorCode != 10 || got.ErrorMessage == nil || !strings.Contains(*got.ErrorMessage, "200") {
		t.Errorf("got %+v, want MESSAGE_TOO_LARGE that names the limit", got)
	}
	if got := r.put("t", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 0 || got.BaseOffset != 0 {
		t.Errorf("a small one after it: %+v", got)
	}
}

func listOffset(r *raw, version int16, ts int64) kmsg.ListOffsetsResponseTopicPartition {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = version
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp, p.CurrentLeaderEpoch = ts, -1
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return ask[*kmsg.ListOffsetsResponse](r, req).Topics[0].Partitions[0]
}

func TestPitfallListOffsetsByTimestampAndItsEpoch(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Timestamps: []int64{1000, 3000}}))
	if err := w.b.Lead(broker.Lead{Topic: "t", ID: id, Count: 1, Epoch: 5}); err != nil {
		t.Fatal(err)
	}
	r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"c", "d"}, Timestamps: []int64{9000, 2000}}))
	for version := int16(1); version <= 7; version++ {
		for _, c := range []struct {
			ts, offset, timestamp int64
			epoch                 int32
		}{
			{-1, 4, -1, 5},
			{-2, 0, -1, 0},
			{-3, 2, 9000, 5},
			{0, 0, 1000, 0},
			{1000, 0, 1000, 0},
			{1001, 1, 3000, 0},
			{3001, 2, 9000, 5},
			{9001, -1, -1, -1},
		} {
			if version < 4 {
				c.epoch = 0 // not in the answer
			}
			got := listOffset(r, version, c.ts)
			if version < 4 {
				got.LeaderEpoch = 0
			}
			if got.ErrorCode != 0 || got.Offset != c.offset || got.Timestamp != c.timestamp || got.LeaderEpoch != c.epoch {
				t.Errorf("version %d, time %d: got %+v, want offset %d, timestamp %d, epoch %d", version, c.ts, got, c.offset, c.timestamp, c.epoch)
			}
		}
	}
	if got := listOffset(r, 7, -4); got.ErrorCode != 35 {
		t.Errorf("tiered storage: error %d, want 35", got.ErrorCode)
	}
}

func TestPitfallAutoCreateHonoursBothSwitches(t *testing.T) {
	metadata := func(r *raw, version int16, allow bool) kmsg.MetadataResponseTopic {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation = version, allow
		topic := kmsg.NewMetadataRequestTopic()
		name := "made"
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
		return ask[*kmsg.MetadataResponse](r, req).Topics[0]
	}
	off := start(t).dial()
	if got := metadata(off, 12, true); got.ErrorCode != 3 {
		t.Errorf("switched off: error %d, want 3", got.ErrorCode)
	}
	on := start(t, func(c *broker.Config) { c.AutoCreateTopics = true }).dial()
	if got := metadata(on, 12, false); got.ErrorCode != 3 {
		t.Errorf("not allowed by the client: error %d, want 3", got.ErrorCode)
	}
	if got := metadata(on, 12, true); got.ErrorCode != 0 || len(got.Partitions) != 4 || got.Partitions[0].Leader != selfID {
		t.Errorf("allowed: %+v", got)
	}
}

func idempotent(seq int32, values ...string) []byte {
	return recordtest.Batch(recordtest.Spec{Values: values, Producer: true, ID: 42, Epoch: 3, Sequence: seq})
}

func TestPitfallDuplicatesAreAnsweredWithTheFirstOffset(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for i := range int32(8) {
		if got := r.put("t", idempotent(2*i, "a", "b")); got.ErrorCode != 0 || got.BaseOffset != int64(2*i) {
			t.Fatalf("batch %d: %+v", i, got)
		}
	}
	for i := int32(3); i < 8; i++ { // the last five
		if got := r.put("t", idempotent(2*i, "a", "b")); got.ErrorCode != 0 || got.BaseOffset != int64(2*i) {
			t.Errorf("duplicate of %d: %+v", i, got)
		}
	}
	if got := r.put("t", idempotent(0, "a", "b")); got.ErrorCode != 46 {
		t.Errorf("duplicate from before the five: error %d, want 46", got.ErrorCode)
	}
	if got := r.put("t", idempotent(20, "a", "b")); got.ErrorCode != 45 {
		t.Errorf("gap: error %d, want 45", got.ErrorCode)
	}
	stale := recordtest.Batch(recordtest.Spec{Producer: true, ID: 42, Epoch: 2, Sequence: 16})
	if got := r.put("t", stale); got.ErrorCode != 47 {
		t.Errorf("older producer epoch: error %d, want 47", got.ErrorCode)
	}
	if end := listOffset(r, 7, -1); end.Offset != 16 {
		t.Errorf("end %d, want 16: a duplicate was appended", end.Offset)
	}
}

func TestPitfallPipelinedRequestsAreProcessedAndAnsweredInOrder(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	var all []byte
	const n = 60
	for i := range n {
		switch {
		case i%7 == 3:
			all = append(all, r.frame(kmsg.NewPtrApiVersionsRequest())...)
		case i%7 == 5:
			req := kmsg.NewPtrListOffsetsRequest()
			req.Version = 7
			all = append(all, r.frame(req)...)
		default:
			all = append(all, r.frame(produceReq(9, []int16{-1, 1}[i%2], "t", 0, recordtest.Batch(recordtest.Spec{})))...)
		}
	}
	go func() { // in splits that fit nothing
		for len(all) > 0 {
			k := min(len(all), 77)
			if _, err := r.Write(all[:k]); err != nil {
				return
			}
			all = all[k:]
		}
	}()
	next := int64(0)
	for i := range n {
		id, b := r.body()
		if id != int32(i+1) {
			t.Fatalf("answer %d came as number %d", id, i+1)
		}
		if i%7 != 3 && i%7 != 5 {
			resp := kmsg.NewPtrProduceResponse()
			resp.Version = 9
			if err := resp.ReadFrom(b[1:]); err != nil {
				t.Fatal(err)
			}
			if got := resp.Topics[0].Partitions[0]; got.BaseOffset != next || got.ErrorCode != 0 {
				t.Fatalf("request %d: offset %d, error %d, want offset %d", i+1, got.BaseOffset, got.ErrorCode, next)
			}
			next++
		}
	}
}

func TestPitfallAcks0HasNoAnswerAndDoesNotWedge(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for range 3 {
		r.send(produceReq(9, 0, "t", 0, recordtest.Batch(recordtest.Spec{})))
	}
	if got := r.put("t", recordtest.Batch(recordtest.Spec{})); got.BaseOffset != 3 {
		t.Errorf("the fourth batch has offset %d", got.BaseOffset)
	}
	// An error that cannot be told closes the connection.
	r.send(produceReq(9, 0, "unknown", 0, recordtest.Batch(recordtest.Spec{})))
	r.expectClosed()
}

func TestPitfallDuplicatePartitionsInAFetch(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{}))
	req := fetchReq(12, "t", 0, 0)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, req.Topics[0].Partitions[0])
	if got := ask[*kmsg.FetchResponse](r, req).Topics[0].Partitions; len(got) != 2 || len(got[0].RecordBatches) == 0 {
		t.Errorf("got %+v", got)
	}
}

func TestPitfallFetchSessionIsAlwaysNone(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{}))
	// Epoch 0 asks for a session and -1 does without, whatever the id says. Ids other than 0 were once refused, and with
	// them every Client.Fetch of kafka-go, which sends -1 and -1.
	for version := int16(7); version <= 12; version++ {
		for _, c := range []struct {
			id, epoch int32
			want      int16
		}{{0, -1, 0}, {0, 0, 0}, {-1, -1, 0}, {5, -1, 0}, {5, 0, 0}, {5, 1, 70}, {0, 1, 70}, {-1, 7, 70}} {
			req := fetchReq(version, "t", 0, 0)
			req.SessionID, req.SessionEpoch, req.MaxWaitMillis = c.id, c.epoch, 0
			got := ask[*kmsg.FetchResponse](r, req)
			if got.SessionID != 0 || got.ErrorCode != c.want {
				t.Errorf("version %d, session %d, epoch %d: session %d, error %d, want none and %d", version, c.id, c.epoch, got.SessionID, got.ErrorCode, c.want)
			}
			if c.want == 0 && (len(got.Topics) != 1 || len(got.Topics[0].Partitions[0].RecordBatches) == 0) {
				t.Errorf("version %d, session %d, epoch %d: %+v", version, c.id, c.epoch, got)
			}
		}
	}
}

// Before the flexible versions a string has a length of two bytes. The text of an error quoted the name that it was
// about, and one of 32,000 bytes made the text longer than its own length could say: nobody could read the answer.
func TestTheTextOfAnErrorHasALengthThatFits(t *testing.T) {
	w := start(t)
	r := w.dial()
	for _, name := range []string{strings.Repeat("n", 32_700), strings.Repeat("\xff", 32_700), strings.Repeat("é", 16_000)} {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = 2
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
		req.Topics = append(req.Topics, topic)
		got := ask[*kmsg.CreateTopicsResponse](r, req)
		if len(got.Topics) != 1 || got.Topics[0].Topic != name || got.Topics[0].ErrorCode != 17 || got.Topics[0].ErrorMessage == nil ||
			len(*got.Topics[0].ErrorMessage) > 5000 || !strings.Contains(*got.Topics[0].ErrorMessage, "use 1 to 249") {
			t.Errorf("got %+v", got)
		}
		c := kmsg.NewPtrFindCoordinatorRequest()
		c.Version, c.CoordinatorKey = 1, name
		if got := ask[*kmsg.FindCoordinatorResponse](r, c); got.ErrorCode != 24 || got.ErrorMessage == nil {
			t.Errorf("got %+v", got)
		}
	}
}

// An answer says which record is to blame, as KIP-467 has it, so that clients need not give up the others.
func TestARefusedRecordIsNamed(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	b := recordtest.Batch(recordtest.Spec{Values: []string{"a", "b", "c"}})
	b[record.HeaderSize+8+3] = 9 // the second record's offset delta
	recordtest.Seal(b)
	got := w.dial().put("t", b)
	if got.ErrorCode != 87 || got.ErrorMessage == nil || len(got.ErrorRecords) != 1 || got.ErrorRecords[0].RelativeOffset != 1 || got.ErrorRecords[0].ErrorMessage == nil {
		t.Errorf("got %+v, want INVALID_RECORD that names record 1", got)
	}
}

func TestPitfallDeletionClearsProducerState(t *testing.T) {
	w := start(t)
	first := w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", idempotent(0, "a"))
	r.put("t", idempotent(1, "a"))
	if err := w.cluster.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if got := r.put("t", idempotent(2, "a")); got.ErrorCode != 3 {
		t.Errorf("after deletion: error %d, want 3", got.ErrorCode)
	}
	if second := w.topic("t", 1, nil); second == first {
		t.Fatal("same id")
	}
	if got := r.put("t", idempotent(0, "a")); got.ErrorCode != 0 || got.BaseOffset != 0 {
		t.Errorf("after creation anew: %+v", got)
	}
}

func TestPitfallUnknownVersionsCloseTheConnection(t *testing.T) {
	w := start(t)
	for name, frame := range map[string][]byte{
		"unknown key":         {0, 99, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"old offset commit":   {0, 8, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"old offset fetch":    {0, 9, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"join group":          {0, 11, 0, 5, 0, 0, 0, 1, 0xff, 0xff},
		"old fetch":           {0, 1, 0, 3, 0, 0, 0, 1, 0xff, 0xff},
		"garbage after fetch": {0, 1, 0, 11, 0, 0, 0, 1, 0xff, 0xff, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.dial()
			r.t = t
			_, _ = r.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
			r.expectClosed()
		})
	}
}

func TestFetchErrorsAndEpochs(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{}))
	if err := w.b.Lead(broker.Lead{Topic: "t", ID: id, Count: 1, Epoch: 5}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		topic  string
		part   int32
		offset int64
		epoch  int32
		want   int16
	}{
		"fine":              {"t", 0, 0, 5, 0},
		"at the end":        {"t", 0, 1, -1, 0},
		"above the end":     {"t", 0, 2, -1, 1},
		"below the start":   {"t", 0, -1, -1, 1},
		"unknown topic":     {"u", 0, 0, -1, 3},
		"unknown partition": {"t", 1, 0, -1, 3},
		"fenced epoch":      {"t", 0, 0, 4, 74},
		"unknown epoch":     {"t", 0, 0, 6, 75},
	} {
		req := fetchReq(12, c.topic, c.part, c.offset)
		req.MaxWaitMillis = 0
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = c.epoch
		if got := r.get(req).ErrorCode; got != c.want {
			t.Errorf("%s: error %d, want %d", name, got, c.want)
		}
	}
	byID := fetchReq(13, "", 0, 0)
	byID.Topics[0].TopicID = id
	if got := r.get(byID); got.ErrorCode != 0 || len(got.RecordBatches) == 0 {
		t.Errorf("by id: %+v", got)
	}
	byID.Topics[0].TopicID[0]++
	if got := r.get(byID).ErrorCode; got != 100 {
		t.Errorf("by an unknown id: error %d, want 100", got)
	}
	w.b.Resign(id, 0)
	if got := r.get(fetchReq(12, "t", 0, 0)).ErrorCode; got != 6 {
		t.Errorf("resigned: error %d, want 6", got)
	}
	if got := r.put("t", recordtest.Batch(recordtest.Spec{})).ErrorCode; got != 6 {
		t.Errorf("produce, resigned: error %d, want 6", got)
	}
}

func TestProduceRefusesWhatIsNoPlainBatch(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	flipped := recordtest.Batch(recordtest.Spec{Values: []string{"abc"}})
	flipped[len(flipped)-2] ^= 1
	good := recordtest.Batch(recordtest.Spec{})
	for name, c := range map[string]struct {
		batch []byte
		want  int16
	}{
		"flipped bit":   {flipped, 2},
		"cut":           {good[:len(good)-1], 2},
		"old magic":     {append([]byte(nil), append(append(append([]byte{}, good[:16]...), 1), good[17:]...)...), 2},
		"two batches":   {append(bytes.Clone(good), good...), 87},
		"nothing":       {[]byte{}, 87},
		"control":       {recordtest.Batch(recordtest.Spec{Attributes: 0x20}), 87},
		"transactional": {recordtest.Batch(recordtest.Spec{Attributes: 0x10}), 87},
	} {
		if got := r.put("t", c.batch); got.ErrorCode != c.want || got.ErrorMessage == nil {
			t.Errorf("%s: %+v, want error %d with a text", name, got, c.want)
		}
	}
	txn := produceReq(9, -1, "t", 0, good)
	id := "my-txn"
	txn.TransactionID = &id
	if got := ask[*kmsg.ProduceResponse](r, txn).Topics[0].Partitions[0]; got.ErrorCode != 31 || got.ErrorMessage == nil || !strings.Contains(*got.ErrorMessage, "transactions are not served") {
		t.Errorf("transactional id: %+v", got)
	}
	if got := ask[*kmsg.ProduceResponse](r, produceReq(9, 2, "t", 0, good)).Topics[0].Partitions[0]; got.ErrorCode != 21 {
		t.Errorf("acks=2: %+v", got)
	}
	zstd := recordtest.Batch(recordtest.Spec{Attributes: 4})
	if got := ask[*kmsg.ProduceResponse](r, produceReq(6, 1, "t", 0, zstd)).Topics[0].Partitions[0]; got.ErrorCode != 76 {
		t.Errorf("zstd before version 7: %+v", got)
	}
	if end := listOffset(r, 7, -1); end.Offset != 0 {
		t.Errorf("end %d: something refused was appended", end.Offset)
	}
}

func TestInitProducerID(t *testing.T) {
	w := start(t)
	r := w.dial()
	seen := map[int64]bool{}
	for i := range 25 {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version = int16(i % 5)
		got := ask[*kmsg.InitProducerIDResponse](r, req)
		if got.ErrorCode != 0 || got.ProducerEpoch != 0 || got.ProducerID < 1000 || seen[got.ProducerID] {
			t.Fatalf("number %d: %+v", i, got)
		}
		seen[got.ProducerID] = true
	}
	w.cluster.mu.Lock()
	if w.cluster.idAsks != 3 {
		t.Errorf("the cluster was asked %d times for 25 ids in blocks of 10", w.cluster.idAsks)
	}
	w.cluster.mu.Unlock()
	txn := kmsg.NewPtrInitProducerIDRequest()
	id := "x"
	txn.TransactionalID = &id
	if got := ask[*kmsg.InitProducerIDResponse](r, txn); got.ErrorCode != 31 || got.ProducerID != -1 {
		t.Errorf("transactional: %+v", got)
	}
	for v := int16(1); v <= 4; v++ {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorType, find.CoordinatorKey, find.CoordinatorKeys = v, 1, "x", []string{"x"}
		got := ask[*kmsg.FindCoordinatorResponse](r, find)
		code, text := got.ErrorCode, got.ErrorMessage
		if v == 4 {
			code, text = got.Coordinators[0].ErrorCode, got.Coordinators[0].ErrorMessage
		}
		if code != 31 || text == nil || !strings.Contains(*text, "transactions are not served") {
			t.Errorf("coordinator of transactions, version %d: %+v", v, got)
		}
	}
}

func TestLongPollWakesWithTheHighWatermark(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	consumer, producer := w.dial(), w.dial()
	req := fetchReq(12, "t", 0, 0)
	req.MaxWaitMillis = 20_000
	batch := recordtest.Batch(recordtest.Spec{})
	req.MinBytes = int32(2 * len(batch))
	begun := time.Now()
	consumer.send(req)
	producer.put("t", bytes.Clone(batch))
	producer.put("t", bytes.Clone(batch))
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	consumer.receive(resp)
	if n := len(resp.Topics[0].Partitions[0].RecordBatches); n != 2*len(batch) {
		t.Errorf("%d bytes, want both batches", n)
	}
	if time.Since(begun) > 15*time.Second {
		t.Error("it was not woken")
	}
	// Resignation wakes too.
	req = fetchReq(12, "t", 0, 2)
	req.MaxWaitMillis = 20_000
	consumer.send(req)
	time.Sleep(20 * time.Millisecond) // let it begin to wait; the test holds either way
	w.b.Resign(id, 0)
	resp = req.ResponseKind().(*kmsg.FetchResponse)
	consumer.receive(resp)
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 6 {
		t.Errorf("error %d, want 6", code)
	}
	if time.Since(begun) > 15*time.Second {
		t.Error("resignation did not wake it")
	}
}

// Without transactions the last stable offset is the high watermark, to the offset: one less hides records for ever.
func TestPitfallLastStableOffsetIsTheHighWatermark(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for range 3 {
		r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}}))
	}
	for isolation := int8(0); isolation <= 1; isolation++ {
		req := fetchReq(12, "t", 0, 5)
		req.IsolationLevel = isolation
		if got := r.get(req); got.LastStableOffset != 6 || got.HighWatermark != 6 || len(got.RecordBatches) == 0 {
			t.Errorf("isolation %d: %+v", isolation, got)
		}
	}
}
