package upstream

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record/unpack"
)

// spoiltBatch is a batch of count records at an offset; change may spoil it before
// its checksum is made, spoil after.
func spoiltBatch(base int64, count int32, change func(*kmsg.RecordBatch), spoil func([]byte)) []byte {
	rb := kmsg.RecordBatch{FirstOffset: base, Magic: 2, LastOffsetDelta: count - 1, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: count}
	for i := range count {
		b := kbin.AppendVarint([]byte{0, 0}, i)
		b = kbin.AppendVarint(b, -1)
		b = kbin.AppendVarintBytes(b, []byte("v"))
		b = append(b, 0)
		rb.Records = append(kbin.AppendVarint(rb.Records, int32(len(b))), b...)
	}
	if change != nil {
		change(&rb)
	}
	raw := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], castagnoli))
	if spoil != nil {
		spoil(raw)
	}
	return raw
}

func rawAt(base int64, count int32) []byte { return spoiltBatch(base, count, nil, nil) }

// What is passed over is lost to its reader, so a batch that is not sound is not
// believed when it says that it ends far away.
func TestInspect(t *testing.T) {
	good := func(base int64) []byte { return spoiltBatch(base, 2, nil, nil) }
	wrong := spoiltBatch(10, 2, nil, func(b []byte) { b[len(b)-1] ^= 1 })
	far := spoiltBatch(10, 2, nil, func(b []byte) { binary.BigEndian.PutUint32(b[23:], 1<<30) }) // of a header that the disk spoiled
	lost := rawAt(10+1<<56, 2)                                                                   // the disk has spoiled where it begins, which no checksum covers
	for name, c := range map[string]struct {
		records []byte
		offset  int64
		end     int64
		after   int64
		raw     []byte
		record  int64 // -1: none
	}{
		"a good one":                     {good(10), 10, 12, 0, nil, 10},
		"a good one from its middle":     {good(10), 11, 12, 0, nil, 11},
		"nothing":                        {nil, 10, 10, 0, nil, -1},
		"bad at the end":                 {wrong, 10, 12, 12, wrong, -1},
		"bad, more follows":              {join(wrong, good(12)), 10, 14, 12, wrong, -1},
		"bad behind what is not asked":   {join(good(8), wrong, good(12)), 10, 14, 12, wrong, -1},
		"a lie about its end":            {join(far, good(12)), 10, 14, 12, far, -1},
		"a lie at the log's end":         {far, 10, 12, 12, far, -1},
		"a lie, and a gap":               {join(far, good(20)), 10, 22, 20, far, -1},
		"bad, and what follows is too":   {join(wrong, spoiltBatch(12, 2, nil, func(b []byte) { b[len(b)-1] ^= 1 })), 10, 14, 12, wrong, -1},
		"bad further on":                 {join(good(10), spoiltBatch(12, 1, nil, func(b []byte) { b[len(b)-1] ^= 1 })), 10, 13, 0, nil, 10},
		"its place is spoiled":           {join(lost, good(12)), 10, 14, 12, lost, -1},
		"its place, at the log's end":    {lost, 10, 12, 12, lost, -1},
		"behind a spoiled place":         {join(lost, good(12)), 12, 14, 0, nil, 12},
		"in the middle, behind one":      {join(lost, good(12)), 13, 14, 0, nil, 13},
		"before a spoiled place":         {join(good(8), lost, good(12)), 8, 14, 0, nil, 8},
		"cut off, nothing else is known": {wrong[:40], 10, 12, 11, wrong[:40], -1},
	} {
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.RecordBatches, rp.HighWatermark, rp.LastStableOffset = c.records, c.end, c.end
		got, err := NewUnpacking(unpack.DefaultLimit, 0).inspect(t.Context(), "t", 0, c.offset, c.end, &rp)
		if err != nil {
			t.Fatal(err)
		}
		if (got.Record == nil) != (c.record < 0) || got.Record != nil && got.Record.Offset != c.record {
			t.Errorf("%s: record %+v", name, got.Record)
		}
		if got.After != c.after || (got.Why == "") != (c.after == 0) || string(got.Raw) != string(c.raw) {
			t.Errorf("%s: after %d, why %q, %d bytes", name, got.After, got.Why, len(got.Raw))
		}
	}
}
