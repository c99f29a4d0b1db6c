package broker_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

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
