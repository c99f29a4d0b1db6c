package broker_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// A batch says in its header what the highest timestamp of its records is. A producer that left it at -1 (there are
// clients that do), or lied, was believed: searches by time and for the highest timestamp answered with a time that no
// record has, and retention went by it.
func TestTheHighestTimestampIsThatOfTheRecords(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	now := time.Now().UnixMilli()
	for i, claimed := range []int64{-1, now - 1000, now + 3_600_000, 0} {
		ts := now + 10*int64(i)
		b := recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Timestamps: []int64{ts, ts + 5}})
		binary.BigEndian.PutUint64(b[35:], uint64(claimed))
		recordtest.Seal(b)
		if got := r.put("t", b); got.ErrorCode != 0 || got.BaseOffset != 2*int64(i) {
			t.Fatalf("batch %d: %+v", i, got)
		}
	}
	if got := listOffset(r, 7, -3); got.Offset != 7 || got.Timestamp != now+35 {
		t.Errorf("highest timestamp: %+v, want offset 7 at %d", got, now+35)
	}
	for ts, want := range map[int64]int64{now: 0, now + 5: 1, now + 6: 2, now + 15: 3, now + 30: 6, now + 35: 7, now + 36: -1} {
		if got := listOffset(r, 7, ts); got.Offset != want {
			t.Errorf("by time, %d after the first: offset %d, want %d", ts-now, got.Offset, want)
		}
	}
}

// A batch that says it is compressed and has 2147483647 records, in a few bytes of garbage, took as many offsets and a
// segment of its own.
func TestABatchTakesNoMoreOffsetsThanItHasRecords(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	values := make([]string, 3000)
	records := recordtest.Batch(recordtest.Spec{Values: values})[record.HeaderSize:]
	for _, codec := range []record.Codec{record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		body := pack(t, codec, records)
		for name, c := range map[string]struct {
			count int32
			body  []byte
			want  int16
		}{
			"garbage":     {1<<31 - 1, []byte("nothing of the kind"), 87},
			"more":        {1<<31 - 1, body, 87},
			"as it is":    {3000, body, 0},
			"an overhang": {1<<31 - 1, append(append([]byte{}, body...), "xyz"...), 87},
		} {
			h := record.Header{Attributes: int16(codec), Count: c.count, LastOffsetDelta: c.count - 1, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
			if got := r.put("t", record.AppendBatch(nil, h, c.body)); got.ErrorCode != c.want {
				t.Errorf("%v, %s: %+v, want error %d", codec, name, got, c.want)
			}
		}
	}
	if end := listOffset(r, 7, -1); end.Offset != 4*3000 {
		t.Errorf("the log ends at %d, want %d", end.Offset, 4*3000)
	}
}

// To count the records of a suspicious batch it is unpacked, which takes a good part of a second at most: on an event
// loop that held up all its connections. The connection is taken off its loop for it, with what it had sent before and
// sends after in order.
func TestUnpackingHoldsUpNoLoop(t *testing.T) {
	w, reg := startCounted(t, func(*broker.Config) {})
	w.topic("t", 1, nil)
	r := w.dial()
	plain := recordtest.Batch(recordtest.Spec{})
	put := func(batch []byte) { r.send(produceReq(9, -1, "t", 0, batch)) }
	values := make([]string, 3000)
	body := pack(t, record.Zstd, recordtest.Batch(recordtest.Spec{Values: values})[record.HeaderSize:])
	h := record.Header{Attributes: int16(record.Zstd), Count: 3000, LastOffsetDelta: 2999, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
	if len(body) > 2999 {
		t.Fatalf("%d bytes are not suspicious", len(body))
	}
	if got := r.put("t", bytes.Clone(plain)); got.ErrorCode != 0 || gauge(t, reg, "sidestream_broker_connections", "loop") != 1 {
		t.Fatalf("%+v, and %v connections on loops", got, gauge(t, reg, "sidestream_broker_connections", "loop"))
	}
	put(bytes.Clone(plain))
	put(record.AppendBatch(nil, h, body))
	put(bytes.Clone(plain))
	for i, want := range []int64{1, 2, 3002} {
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = 9
		r.receive(resp)
		if got := resp.Topics[0].Partitions[0]; got.ErrorCode != 0 || got.BaseOffset != want {
			t.Errorf("answer %d: %+v, want offset %d", i, got, want)
		}
	}
	if n := gauge(t, reg, "sidestream_broker_connections", "goroutine"); n != 1 {
		t.Errorf("%v connections are off their loops", n)
	}
}

// Batches to be unpacked wait for each other, as few are at once. A broker that was stopped unpacked all of them first:
// with some hundred connections, or one request of many batches, that took many seconds.
func TestBatchesThatWaitToBeUnpackedDoNotHoldUpTheStop(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	body := pack(t, record.Gzip, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("v", 15<<20)}})[record.HeaderSize:])
	h := record.Header{Attributes: int16(record.Gzip), Count: 1, FirstTimestamp: 1, MaxTimestamp: -1, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
	batch := record.AppendBatch(nil, h, body)
	large := produceReq(9, -1, "t", 0, batch)
	for range 1500 {
		large.Topics[0].Partitions = append(large.Topics[0].Partitions, large.Topics[0].Partitions[0])
	}
	w.dial().send(large)
	for range 800 {
		w.dial().send(produceReq(9, -1, "t", 0, batch))
	}
	begun := time.Now()
	w.close()
	if took := time.Since(begun); took > 4*time.Second { // a tenth of a second when nothing else runs here
		t.Errorf("the stop took %s", took)
	}
}

// Kafka's broker refuses these too, or never sees them: with LogAppendTime every record would be given the highest
// timestamp, with a delete horizon tombstones would be taken for old ones and go at the next compaction.
func TestProducersDoNotSetWhatBrokersSet(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for attributes, want := range map[int16]int16{0x08: 32, 0x40: 87, 0x48: 32} {
		if got := r.put("t", recordtest.Batch(recordtest.Spec{Attributes: attributes})); got.ErrorCode != want {
			t.Errorf("attributes %#x: %+v, want error %d", attributes, got, want)
		}
	}
	if end := listOffset(r, 7, -1); end.Offset != 0 {
		t.Errorf("the log ends at %d, want 0", end.Offset)
	}
}

// pack compresses as a client does.
func pack(t *testing.T, codec record.Codec, b []byte) []byte {
	t.Helper()
	how := map[record.Codec]kgo.CompressionCodec{
		record.Gzip: kgo.GzipCompression(), record.Snappy: kgo.SnappyCompression(),
		record.LZ4: kgo.Lz4Compression(), record.Zstd: kgo.ZstdCompression(),
	}[codec]
	c, err := kgo.DefaultCompressor(how)
	if err != nil {
		t.Fatal(err)
	}
	out, got := c.Compress(new(bytes.Buffer), b)
	if int8(got) != int8(codec) {
		t.Fatalf("compressed as %d, want %v", got, codec)
	}
	return bytes.Clone(out)
}
