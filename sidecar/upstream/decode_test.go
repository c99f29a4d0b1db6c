package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"sidestream/sdk/api"

	"sidestream/broker/record/unpack"
)

// rawRecord is a record at a place of its batch.
func rawRecord(delta int32, value string) []byte {
	b := kbin.AppendVarlong([]byte{0}, int64(delta)) // attributes and time
	b = kbin.AppendVarint(b, delta)
	b = kbin.AppendVarint(b, -1) // no key
	b = kbin.AppendVarintBytes(b, []byte(value))
	b = kbin.AppendVarint(b, 1) // a header
	b = kbin.AppendVarintBytes(b, []byte("n"))
	b = kbin.AppendVarintBytes(b, []byte("v"))
	return append(kbin.AppendVarint(nil, int32(len(b))), b...)
}

// rawBatch is a batch with a right checksum, whatever is in it.
type rawBatch struct {
	base       int64
	last       int32
	count      int32
	attributes int16
	first      int64 // time
	pid        int64
	records    []byte
}

func (r rawBatch) bytes() []byte {
	tail := binary.BigEndian.AppendUint16(nil, uint16(r.attributes))
	tail = binary.BigEndian.AppendUint32(tail, uint32(r.last))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.first))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.first)+uint64(r.last))
	tail = binary.BigEndian.AppendUint64(tail, uint64(r.pid))
	tail = append(tail, 0, 0, 0, 0, 0, 0) // epoch and sequence
	tail = binary.BigEndian.AppendUint32(tail, uint32(r.count))
	tail = append(tail, r.records...)
	b := binary.BigEndian.AppendUint64(nil, uint64(r.base))
	b = binary.BigEndian.AppendUint32(b, uint32(len(tail)+9))
	b = append(b, 0, 0, 0, 7, 2) // leader epoch, magic
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(tail, crc32.MakeTable(crc32.Castagnoli)))
	return append(b, tail...)
}

// goodBatch holds count messages from base on.
func goodBatch(base int64, count int32) []byte {
	var rs []byte
	for i := range count {
		rs = append(rs, rawRecord(i, fmt.Sprint(base+int64(i)))...)
	}
	return rawBatch{base: base, last: count - 1, count: count, records: rs}.bytes()
}

func decode(offset int64, parts ...[]byte) (kgo.FetchPartition, int64, *CorruptError) {
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.RecordBatches = bytes.Join(parts, nil)
	return decodeAnswer(offset, &rp)
}

func decodeAnswer(offset int64, rp *kmsg.FetchResponseTopicPartition) (kgo.FetchPartition, int64, *CorruptError) {
	u := NewUnpacking(unpack.DefaultLimit, 0)
	claim := u.Claim()
	defer claim.Release()
	d, err := u.Decode(context.Background(), claim, Answer{Topic: "t", Offset: offset, End: -1}, rp)
	if err != nil {
		panic(err) // no context is over
	}
	return d.Part, d.Next, d.Corrupt
}

func offsetsOf(part kgo.FetchPartition) string {
	var os []int64
	for _, r := range part.Records {
		os = append(os, r.Offset)
	}
	return fmt.Sprint(os)
}

func join(rs ...[]byte) []byte { return bytes.Join(rs, nil) }

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// A producer can write a batch whose checksum and header are right and whose
// records are not: the broker does not look inside. Such batches made groups
// skip other producers' messages (a record at place 40 of a batch of two moved
// the position over the 38 that follow), or count offsets as acknowledged that
// nobody has seen. They are told instead, what lies before them is decoded, and
// what lies after them once it is asked for.
func TestUnsoundBatches(t *testing.T) {
	for name, c := range map[string]struct {
		bad  rawBatch
		says string
	}{
		"the same place twice":      {rawBatch{last: 1, count: 2, records: join(rawRecord(1, "x"), rawRecord(1, "y"))}, "place 1 after one at 1"},
		"a place beyond its end":    {rawBatch{last: 1, count: 2, records: join(rawRecord(0, "x"), rawRecord(40, "y"))}, "place 40"},
		"a place before its start":  {rawBatch{last: 1, count: 2, records: join(rawRecord(-3, "x"), rawRecord(1, "y"))}, "place -3"},
		"falling places":            {rawBatch{last: 1, count: 2, records: join(rawRecord(1, "x"), rawRecord(0, "y"))}, "place 0 after one at 1"},
		"fewer than it says":        {rawBatch{last: 2, count: 3, records: rawRecord(0, "x")}, "record 2 of 3"},
		"more than it says":         {rawBatch{last: 0, count: 1, records: join(rawRecord(0, "x"), rawRecord(1, "y"), rawRecord(2, "z"))}, "after the last of its 1 records"},
		"more than there is room":   {rawBatch{last: 0, count: 3, records: join(rawRecord(0, "x"), rawRecord(1, "y"), rawRecord(2, "z"))}, "3 records in 1 offsets"},
		"none, and bytes":           {rawBatch{last: 0, count: 0, records: rawRecord(0, "x")}, "after the last of its 0 records"},
		"one, and no bytes":         {rawBatch{last: 0, count: 1}, "record 1 of 1"},
		"a huge length":             {rawBatch{last: 0, count: 1, records: kbin.AppendVarint(nil, 1<<20)}, "cut off"},
		"garbage":                   {rawBatch{last: 0, count: 1, records: bytes.Repeat([]byte{0xff}, 30)}, "cut off"},
		"garbage of the right size": {rawBatch{last: 0, count: 1, records: append([]byte{40}, bytes.Repeat([]byte{0xfe}, 20)...)}, "cannot be read"},
		"a record with a tail":      {rawBatch{last: 0, count: 1, records: append([]byte{22}, append(rawRecord(0, "")[1:], 9)...)}, "1 bytes too many"},
		"no gzip":                   {rawBatch{last: 0, count: 1, attributes: 1, records: []byte("notgzip")}, "decompressed"},
		"no zstd":                   {rawBatch{last: 0, count: 1, attributes: 4, records: bytes.Repeat([]byte{0xff}, 20)}, "decompressed"},
		"bad inside of gzip":        {rawBatch{last: 1, count: 2, attributes: 1, records: gzipped(join(rawRecord(0, "x"), rawRecord(9, "y")))}, "place 9"},
		"no codec":                  {rawBatch{last: 0, count: 1, attributes: 7, records: rawRecord(0, "x")}, "codec 7"},
		"no offsets":                {rawBatch{last: -2, count: 1, records: rawRecord(0, "x")}, "ends -2 after"},
		"a negative count":          {rawBatch{last: 0, count: -5, records: rawRecord(0, "x")}, "-5 records"},
		"a marker beyond its end":   {rawBatch{last: 1, count: 2, attributes: controlBit, records: join(rawRecord(0, "x"), rawRecord(5, "y"))}, "place 5"},
		"a marker cut off":          {rawBatch{last: 0, count: 1, attributes: controlBit, records: []byte{20, 0}}, "cut off"},
	} {
		c.bad.base = 5
		after := 5 + int64(max(c.bad.last, 0)) + 1
		part, next, bad := decode(2, goodBatch(0, 4), goodBatch(4, 1), c.bad.bytes(), goodBatch(after, 2))
		if bad == nil || next != 5 || offsetsOf(part) != "[2 3 4]" || part.Err != nil {
			t.Errorf("%s: offsets %s, next %d, %v, %v", name, offsetsOf(part), next, part.Err, bad)
			continue
		}
		if bad.Offset != 5 || bad.After != after || !strings.Contains(bad.Error(), c.says) {
			t.Errorf("%s: %+v, want one until %d that says %q", name, bad, after, c.says)
		}
		// Where it stands still, and beyond it.
		if part, next, bad := decode(5, c.bad.bytes(), goodBatch(after, 2)); bad == nil || next != 5 || len(part.Records) != 0 {
			t.Errorf("%s, alone: offsets %s, next %d, %v", name, offsetsOf(part), next, bad)
		}
		if part, next, bad := decode(after, goodBatch(after, 2)); bad != nil || next != after+2 || len(part.Records) != 2 {
			t.Errorf("%s, after it: offsets %s, next %d, %v", name, offsetsOf(part), next, bad)
		}
	}
}

// Damage on a disk: the header lies, or the checksum tells.
func TestDamagedBatches(t *testing.T) {
	flipped := goodBatch(5, 2)
	flipped[70] ^= 0x20
	magic := goodBatch(5, 2)
	magic[16] = 9
	short := rawBatch{base: 5}.bytes()[:40]
	binary.BigEndian.PutUint32(short[8:], uint32(len(short)-12))
	moved := goodBatch(5, 2)
	moved[1] = 1 // the base offset is not under the checksum
	for name, b := range map[string][]byte{"a flipped byte": flipped, "an unknown format": magic, "no header": short, "another base offset": moved} {
		part, next, bad := decode(4, goodBatch(4, 1), b, goodBatch(7, 1))
		if bad == nil || bad.Offset != 5 || next != 5 || offsetsOf(part) != "[4]" {
			t.Errorf("%s: offsets %s, next %d, %v", name, offsetsOf(part), next, bad)
		}
	}
	cut := goodBatch(5, 2)
	cut = cut[:len(cut)-3]
	if part, next, bad := decode(4, goodBatch(4, 1), cut); bad != nil || next != 5 || len(part.Records) != 1 {
		t.Errorf("a batch that did not fit into the answer: next %d, %v", next, bad)
	}
	if _, next, bad := decode(5, cut); bad == nil || next != 5 {
		t.Errorf("nothing but a part: next %d, %v", next, bad)
	}
	// Whoever sought past damage reads on, even if the broker sends it along.
	if part, next, bad := decode(7, flipped, goodBatch(7, 1)); bad != nil || next != 8 || len(part.Records) != 1 {
		t.Errorf("past it: next %d, %v", next, bad)
	}
}

// What is sound stays so: gaps of compaction, empty batches, markers, aborted
// transactions, all codecs, a fetch from the middle of a batch.
func TestSoundBatches(t *testing.T) {
	compacted := rawBatch{base: 10, last: 9, count: 2, records: join(rawRecord(3, "13"), rawRecord(7, "17"))}.bytes()
	empty := rawBatch{base: 20, last: 4}.bytes()
	packed := rawBatch{base: 25, last: 1, count: 2, attributes: 1, records: gzipped(join(rawRecord(0, "25"), rawRecord(1, "26")))}.bytes()
	part, next, bad := decode(12, compacted, empty, packed)
	if bad != nil || next != 27 || offsetsOf(part) != "[13 17 25 26]" {
		t.Fatalf("offsets %s, next %d, %v", offsetsOf(part), next, bad)
	}
	if r := part.Records[3]; string(r.Value) != "26" || r.LeaderEpoch != 7 || r.Headers[0].Key != "n" {
		t.Errorf("%+v", r)
	}
	const transactional = 1 << 4
	aborted := rawBatch{base: 27, last: 0, count: 1, pid: 9, attributes: transactional, records: rawRecord(0, "no")}.bytes()
	marker := kbin.AppendVarint([]byte{0, 0, 0}, 4) // attributes, time, place, key of 4 bytes
	marker = append(marker, 0, 0, 0, 0)             // version 0, abort
	marker = kbin.AppendVarint(marker, -1)
	marker = kbin.AppendVarint(marker, 0)
	end := rawBatch{base: 28, last: 0, count: 1, pid: 9, attributes: transactional | controlBit, records: append(kbin.AppendVarint(nil, int32(len(marker))), marker...)}.bytes()
	committed := rawBatch{base: 29, last: 0, count: 1, pid: 9, attributes: transactional, records: rawRecord(0, "yes")}.bytes()
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.RecordBatches = join(aborted, end, committed)
	rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 9, FirstOffset: 27}}
	part, next, bad = decodeAnswer(27, &rp)
	if bad != nil || next != 30 || offsetsOf(part) != "[29]" {
		t.Errorf("transactions: offsets %s, next %d, %v", offsetsOf(part), next, bad)
	}
	rp = kmsg.NewFetchResponseTopicPartition()
	rp.ErrorCode = kerr.NotLeaderForPartition.Code
	if part, next, bad := decodeAnswer(5, &rp); part.Err == nil || next != 5 || bad != nil {
		t.Errorf("an error code: %v, next %d, %v", part.Err, next, bad)
	}
}

// kgo counts nanoseconds, so times before 1677 and after 2262 came out as any
// other time, mostly 0 or -1.
func TestWildTimes(t *testing.T) {
	for _, ms := range []int64{1 << 62, -(1 << 62), 1<<63 - 2, -(1 << 63), maxMillis, maxMillis + 1, 253402300799999, 0, -1, 1767225600000} {
		b := rawBatch{last: 1, count: 2, first: ms, records: join(rawRecord(0, "a"), rawRecord(1, "b"))}
		if part, _, bad := decode(0, b.bytes()); bad != nil || part.Records[0].Timestamp.UnixMilli() != ms || part.Records[1].Timestamp.UnixMilli() != ms+1 {
			t.Errorf("%d: %v, %v", ms, part.Records, bad)
		}
		b.attributes = appendTimeBit
		if part, _, bad := decode(0, b.bytes()); bad != nil || part.Records[0].Timestamp.UnixMilli() != ms+1 {
			t.Errorf("%d by the broker's clock: %v, %v", ms, part.Records, bad)
		}
	}
}

// Whatever comes, nothing is passed over in silence: where no fault is told the
// position is at the end of what came, and never beyond it; nothing panics.
func TestDecodeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rawBatch{
			last: rapid.Int32Range(-2, 4).Draw(t, "last"), count: rapid.Int32Range(-2, 5).Draw(t, "count"),
			attributes: rapid.SampledFrom([]int16{0, 0, 0, 1, 7, controlBit}).Draw(t, "attributes"),
		}
		n := rapid.Int32Range(0, 4).Draw(t, "records")
		for range n {
			b.records = append(b.records, rawRecord(rapid.Int32Range(-1, 5).Draw(t, "delta"), "v")...)
		}
		raw := b.bytes()
		if rapid.Bool().Draw(t, "flip") {
			raw[rapid.IntRange(0, len(raw)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		}
		part, next, bad := decode(0, raw, goodBatch(5, 1))
		if bad == nil {
			h, _ := headerOf(raw)
			if len(part.Records) == 0 || part.Records[len(part.Records)-1].Offset != 5 || next != 6 {
				t.Fatalf("offsets %s, next %d, no fault", offsetsOf(part), next)
			}
			if !h.isControl() && len(part.Records) != int(h.count)+1 && h.last >= 0 {
				t.Fatalf("%d records of %d, no fault", len(part.Records)-1, h.count)
			}
			return
		}
		if bad.Offset != next || bad.After <= bad.Offset {
			t.Fatalf("next %d, %+v", next, bad)
		}
		for _, r := range part.Records {
			if r.Offset >= next {
				t.Fatalf("offset %d, next %d", r.Offset, next)
			}
		}
	})
}

// A look at damage was told as brokers_unavailable, retryable, without the
// messages before it.
func TestPeekStopsAtCorruptRecords(t *testing.T) {
	c := newCluster(t)
	u := bootstrapped(t, c)
	bad := rawBatch{base: 2, last: 1, count: 2, records: join(rawRecord(1, "x"), rawRecord(1, "y"))}.bytes()
	code := int16(0)
	c.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		st, sp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		st.Topic = req.Topics[0].Topic
		sp.Partition, sp.ErrorCode, sp.HighWatermark, sp.LastStableOffset = 0, code, 6, 6
		switch at := req.Topics[0].Partitions[0].FetchOffset; {
		case code != 0:
		case at < 2:
			sp.RecordBatches = join(goodBatch(0, 2), bad, goodBatch(4, 2))
		case at < 4:
			sp.RecordBatches = join(bad, goodBatch(4, 2))
		case at < 6:
			sp.RecordBatches = goodBatch(4, 2)
		}
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	recs, next, end, err := u.Peek(t.Context(), "t", 0, 0, 10, 1<<20)
	if len(recs) != 2 || next != 2 || end != 6 || codeOf(err) != api.CodeCorruptRecord || !strings.Contains(err.Error(), "offset 4") {
		t.Errorf("%d records, next %d, end %d, %v", len(recs), next, end, err)
	}
	if recs, next, _, err = u.Peek(t.Context(), "t", 0, 1, 1, 1<<20); err != nil || len(recs) != 1 || next != 2 {
		t.Errorf("no more than was asked for: %d records, next %d, %v", len(recs), next, err)
	}
	if recs, next, _, err = u.Peek(t.Context(), "t", 0, 3, 10, 1<<20); len(recs) != 0 || next != 3 || codeOf(err) != api.CodeCorruptRecord || err.(*api.Error).Retryable {
		t.Errorf("inside: %d records, next %d, %v", len(recs), next, err)
	}
	if recs, next, _, err = u.Peek(t.Context(), "t", 0, 4, 10, 1<<20); err != nil || len(recs) != 2 || next != 6 {
		t.Errorf("past it: %d records, next %d, %v", len(recs), next, err)
	}
	code = kerr.CorruptMessage.Code
	if _, _, _, err = u.Peek(t.Context(), "t", 0, 0, 10, 1<<20); codeOf(err) != api.CodeCorruptRecord {
		t.Errorf("the broker's own word: %v", err)
	}
}
