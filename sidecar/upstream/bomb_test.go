package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
	"sidestream/sdk/api"
)

// bombAt is a bomb with its place in the log.
func bombAt(f recordtest.Form, offset int64, records, value int) []byte {
	b := f.Bomb(records, value)
	record.Stamp(b, offset, 0)
	return b
}

func fetched(batches ...[]byte) *kmsg.FetchResponseTopicPartition {
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.RecordBatches = bytes.Join(batches, nil)
	return &rp
}

// What is before a bomb is decoded, and it is told with all its offsets, without
// being unpacked whole: as one record, as many, and as many that are empty.
func TestDecodeStopsAtABomb(t *testing.T) {
	u := NewUnpacking(1<<20, 0)
	for _, f := range recordtest.Forms {
		for _, c := range []struct{ records, value int }{{1, 64 << 20}, {64, 1 << 20}, {40_000, 0}} {
			if f.Codec == record.Snappy && c.records < 40_000 {
				c.value /= 4
			}
			bomb := bombAt(f, 12, c.records, c.value)
			after := 12 + int64(c.records)
			rp := fetched(goodBatch(10, 2), bomb, goodBatch(after, 3))
			claim := u.Claim()
			var before, now runtime.MemStats
			runtime.ReadMemStats(&before)
			d, err := u.Decode(t.Context(), claim, Answer{Topic: "t", Offset: 10, End: -1}, rp)
			runtime.ReadMemStats(&now)
			if err != nil || offsetsOf(d.Part) != "[10 11]" || d.Next != 12 {
				t.Fatalf("%s, %d records: %s, %d, %v", f.Name, c.records, offsetsOf(d.Part), d.Next, err)
			}
			if b := d.Corrupt; b == nil || !b.Oversized || b.Offset != 12 || b.After != after || b.Millis != 1_790_000_000_000 || !bytes.Equal(b.Raw, bomb) {
				t.Fatalf("%s, %d records: %+v", f.Name, c.records, b.Error())
			}
			if grown := now.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
				t.Errorf("%s, %d records: %d bytes were allocated", f.Name, c.records, grown)
			}
			if claim.Held() != 2*(recordWeight+headerWeight) {
				t.Errorf("%s: the claim has %d", f.Name, claim.Held())
			}
			claim.Release()
			d, err = u.Decode(t.Context(), claim, Answer{Topic: "t", Offset: after, End: -1}, fetched(bomb, goodBatch(after, 3)))
			if err != nil || d.Corrupt != nil || len(d.Part.Records) != 3 {
				t.Errorf("%s: behind it %+v, %v", f.Name, d, err)
			}
			claim.Release()
		}
	}
}

// An answer is decoded as far as there is room, and as there is memory. What is
// left of it counts as cut off, and comes with the next one.
func TestDecodeStopsWhereTheRoomEnds(t *testing.T) {
	gzip := recordtest.Forms[0]
	var batches [][]byte
	for i := range int64(6) {
		batches = append(batches, bombAt(gzip, 2*i, 2, 512<<10))
	}
	rp := fetched(batches...)
	u := NewUnpacking(4<<20, 16<<20)
	decode := func(u *Unpacking, a Answer) (int, Decoded) {
		t.Helper()
		claim := u.Claim()
		defer claim.Release()
		a.Topic, a.End = "t", -1
		d, err := u.Decode(t.Context(), claim, a, rp)
		if err != nil || d.Corrupt != nil || d.Next != a.Offset+int64(len(d.Part.Records)) {
			t.Fatalf("%+v, %v", d, err)
		}
		return len(d.Part.Records), d
	}
	if n, d := decode(u, Answer{}); n != 12 || d.Bytes != len(rp.RecordBatches) {
		t.Errorf("%d records of %d bytes", n, d.Bytes)
	}
	if n, d := decode(u, Answer{Room: 1 << 20}); n != 2 || d.Bytes != len(batches[0]) {
		t.Errorf("%d records of %d bytes", n, d.Bytes)
	}
	if n, _ := decode(u, Answer{Room: 1}); n != 2 {
		t.Errorf("%d records: the first batch comes in any case", n)
	}
	if n, d := decode(u, Answer{Admit: func(n int64) bool { return n < 1<<20 }}); n != 0 || !d.Full {
		t.Errorf("%d records that were not admitted", n)
	}
	if n, _ := decode(NewUnpacking(1<<20+2048, 0), Answer{}); n == 0 || n == 12 {
		t.Errorf("%d records in memory for a few batches", n)
	}
	// While others have most of the memory it waits for enough.
	other := u.Claim()
	if err := other.Take(t.Context(), u.Size()-1<<20); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	claim := u.Claim()
	go func() {
		_, err := u.Decode(over, claim, Answer{Topic: "t", End: -1}, rp)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || claim.Held() != 0 {
		t.Errorf("%v, and it has %d", err, claim.Held())
	}
	go func() {
		_, err := u.Decode(t.Context(), claim, Answer{Topic: "t", End: -1}, rp)
		done <- err
	}()
	other.Release()
	if err := <-done; err != nil || claim.Held() == 0 {
		t.Errorf("%v, and it has %d", err, claim.Held())
	}
	claim.Release()
}

// oldMessages is a compressed message set of the format before 0.11, whose place
// is that of its last message.
func oldMessages(t *testing.T, offset int64, count, value int) []byte {
	t.Helper()
	message := func(offset int64, attributes int8, value []byte) []byte {
		m := kmsg.MessageV1{Offset: offset, MessageSize: int32(22 + len(value)), Magic: 1, Attributes: attributes, Timestamp: 5, Value: value}
		b := m.AppendTo(nil)
		binary.BigEndian.PutUint32(b[12:], crc32.ChecksumIEEE(b[16:]))
		return b
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	for i := range count {
		if _, err := w.Write(message(int64(i), 0, make([]byte, value))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return message(offset, 1, out.Bytes())
}

// Brokers that were there before Kafka 0.11 may still have its formats.
func TestDecodeStopsAtABombOfAnOldFormat(t *testing.T) {
	u := NewUnpacking(1<<20, 0)
	decode := func(offset int64, parts ...[]byte) Decoded {
		claim := u.Claim()
		defer claim.Release()
		d, err := u.Decode(t.Context(), claim, Answer{Topic: "t", Offset: offset, End: -1}, fetched(parts...))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := decode(3, oldMessages(t, 5, 3, 10)); offsetsOf(d.Part) != "[3 4 5]" || d.Corrupt != nil {
		t.Fatalf("%s, %v", offsetsOf(d.Part), d.Corrupt)
	}
	for _, value := range []int{1 << 20, 0} {
		count := 3
		if value == 0 {
			count = 40_000
		}
		last := int64(5 + count)
		sets := [][]byte{oldMessages(t, 5, 3, 10), oldMessages(t, last, count, value)}
		if d := decode(3, sets...); offsetsOf(d.Part) != "[3 4 5]" || d.Next != 6 {
			t.Errorf("before it: %s, %d", offsetsOf(d.Part), d.Next)
		}
		d := decode(6, sets...)
		if len(d.Part.Records) > 0 || d.Corrupt == nil || !d.Corrupt.Oversized || d.Corrupt.Offset != 6 || d.Corrupt.After != last+1 {
			t.Errorf("%d messages of %d: %s, %+v", count, value, offsetsOf(d.Part), d.Corrupt)
		}
	}
}

// bombed is a partition with a bomb in it, as the brokers of others have it.
func bombed(t *testing.T) *Upstream {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Bootstrap = newCluster(t).ListenAddrs()
	cfg.MaxUnpackedBytes, cfg.UnpackMemory = 1<<20, 2<<20
	u := newUpstream(t, cfg, nil)
	produceIDs(t, u, nil, "a")
	for _, f := range recordtest.Forms[:1] {
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10_000
		req.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 1, Records: f.Bomb(4, 1<<20)}}}}
		if _, err := u.cl.Request(t.Context(), namedProduce{req}); err != nil {
			t.Fatal(err)
		}
	}
	produceIDs(t, u, nil, "b")
	return u
}

// namedProduce names its topic instead of giving its id.
type namedProduce struct{ *kmsg.ProduceRequest }

func (namedProduce) MaxVersion() int16 { return 12 }

// A search goes past it: what is behind it is found, and what is not found may
// have been in it.
func TestFindBehindABomb(t *testing.T) {
	u := bombed(t)
	found, _, err := u.Find(t.Context(), "t", 1, 0, idSet("a", "b"))
	if err != nil || !maps.Equal(found, map[string]int64{"a": 0, "b": 5}) {
		t.Errorf("%v, %v", found, err)
	}
	found, end, err := u.Find(t.Context(), "t", 1, 0, idSet("b", "nope"))
	if codeOf(err) != api.CodeCorruptRecord || !maps.Equal(found, map[string]int64{"b": 5}) || end != 6 {
		t.Errorf("%v, %d, %v", found, end, err)
	}
}

// A peek shows what is before it, and says where what is behind it begins.
func TestPeekAtABomb(t *testing.T) {
	u := bombed(t)
	for _, offset := range []int64{0, 1} {
		recs, next, _, err := u.Peek(t.Context(), "t", 1, offset, 10, 1<<20)
		if len(recs) != int(1-offset) || next != 1 || codeOf(err) != api.CodeCorruptRecord || !strings.Contains(err.Error(), "what follows begins at offset 5") {
			t.Errorf("from %d: %d records, next %d, %v", offset, len(recs), next, err)
		}
	}
	recs, next, end, err := u.Peek(t.Context(), "t", 1, 5, 10, 1<<20)
	if len(recs) != 1 || next != 6 || end != 6 || err != nil {
		t.Errorf("behind it: %d records, next %d, end %d, %v", len(recs), next, end, err)
	}
	if claim := u.Unpacking().Claim(); claim.Take(t.Context(), u.Unpacking().Size()) != nil {
		t.Error("memory was not given back")
	}
}

// A few records of a large batch do not keep all of it.
func TestPeekedRecordsHaveMemoryOfTheirOwn(t *testing.T) {
	whole := make([]byte, 1<<20)
	rs := []*kgo.Record{{Key: whole[:1], Value: whole[1:3], Headers: []kgo.RecordHeader{{Key: "h", Value: whole[4:5]}}}}
	own(rs, int64(len(whole)))
	whole[0], whole[1], whole[4] = 1, 1, 1
	if r := rs[0]; r.Key[0] != 0 || r.Value[0] != 0 || r.Headers[0].Value[0] != 0 {
		t.Error("they share it")
	}
	few := whole[:600]
	rs = []*kgo.Record{{Value: few}}
	own(rs, int64(len(few)))
	if few[0] = 7; rs[0].Value[0] != 7 {
		t.Error("they were copied although they are all that there is")
	}
}
