package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

func sample() []byte {
	return recordtest.Batch(recordtest.Spec{
		Values: []string{"one", "two", "three"}, Timestamps: []int64{1000, 3000, 2000},
		Producer: true, ID: 77, Epoch: 3, Sequence: 41, Attributes: 0x10,
	})
}

func TestHeader(t *testing.T) {
	b := sample()
	record.Stamp(b, 500, 9)
	h, err := record.Check(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := record.Header{
		BaseOffset: 500, Length: int32(len(b) - 12), LeaderEpoch: 9, Magic: 2, CRC: record.CRC(b), Attributes: 0x10,
		LastOffsetDelta: 2, FirstTimestamp: 1000, MaxTimestamp: 3000, ProducerID: 77, ProducerEpoch: 3, BaseSequence: 41, Count: 3,
	}
	if h != want {
		t.Errorf("got  %+v\nwant %+v", h, want)
	}
	if h.LastOffset() != 502 || h.NextOffset() != 503 || h.Size() != len(b) || h.LastSequence() != 43 {
		t.Errorf("last offset %d, next %d, size %d, last sequence %d", h.LastOffset(), h.NextOffset(), h.Size(), h.LastSequence())
	}
	if !h.IsTransactional() || h.IsControl() || h.LogAppendTime() || h.Codec() != record.None {
		t.Error("attributes are misread")
	}
	h.Attributes = 0x2c
	if h.IsTransactional() || !h.IsControl() || !h.LogAppendTime() || h.Codec().String() != "zstd" {
		t.Error("attributes are misread")
	}
	h.BaseSequence = -1
	if h.LastSequence() != -1 {
		t.Error("no sequence has no last one")
	}
	h.BaseSequence = 1<<31 - 1
	if h.LastSequence() != 1 {
		t.Errorf("after the highest sequence comes %d, want 1 for two more", h.LastSequence())
	}
}

// set writes a field and, unless the checksum is the subject, seals the batch.
func set(at int, value ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[at:], value)
		recordtest.Seal(b)
		return b
	}
}

func TestCheckRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(b []byte) []byte
		want  error
	}{
		"nothing":               {func([]byte) []byte { return nil }, record.ErrTruncated},
		"half a header":         {func(b []byte) []byte { return b[:40] }, record.ErrTruncated},
		"a byte missing":        {func(b []byte) []byte { return b[:len(b)-1] }, record.ErrTruncated},
		"a byte too many":       {func(b []byte) []byte { return append(b, 0) }, record.ErrInvalid},
		"two batches":           {func(b []byte) []byte { return append(b, b...) }, record.ErrInvalid},
		"too large":             {func(b []byte) []byte { return append(b, make([]byte, 1000)...) }, record.ErrTooLarge},
		"magic 0":               {set(16, 0), record.ErrMagic},
		"magic 1":               {set(16, 1), record.ErrMagic},
		"magic 3":               {set(16, 3), record.ErrMagic},
		"length 0":              {set(8, 0, 0, 0, 0), record.ErrInvalid},
		"length negative":       {set(8, 0xff, 0xff, 0xff, 0xff), record.ErrInvalid},
		"length of a header -1": {set(8, 0, 0, 0, 48), record.ErrInvalid},
		"base offset negative":  {set(0, 0x80), record.ErrInvalid},
		"delta negative":        {set(23, 0xff, 0xff, 0xff, 0xff), record.ErrInvalid},
		"crc":                   {func(b []byte) []byte { b[17] ^= 1; return b }, record.ErrCRC},
		"contents":              {func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, record.ErrCRC},
		"attributes":            {func(b []byte) []byte { b[22] ^= 1; return b }, record.ErrCRC},
		"count 0":               {set(57, 0, 0, 0, 0), record.ErrInvalid},
		"count 4":               {set(57, 0, 0, 0, 4), record.ErrInvalid},
		"count negative":        {set(57, 0xff, 0xff, 0xff, 0xff), record.ErrInvalid},
		"delta 1":               {set(23, 0, 0, 0, 1), record.ErrInvalid},
		"codec 5":               {set(21, 0, 5), record.ErrInvalid},
		"producer epoch -1":     {set(51, 0xff, 0xff), record.ErrInvalid},
		"sequence -1":           {set(53, 0xff, 0xff, 0xff, 0xff), record.ErrInvalid},
	} {
		if _, err := record.Check(c.spoil(sample()), 500); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestStampStaysOutsideTheChecksum(t *testing.T) {
	b := sample()
	for _, offset := range []int64{0, 1, 1 << 40, 1<<63 - 10} {
		record.Stamp(b, offset, 12)
		if h, err := record.Check(b, 0); err != nil || h.BaseOffset != offset || h.LeaderEpoch != 12 {
			t.Errorf("stamped %d: %+v, %v", offset, h, err)
		}
	}
}

func TestChecksumInParts(t *testing.T) {
	b := sample()
	for cut := record.ChecksumStart; cut <= len(b); cut++ {
		crc := record.UpdateCRC(record.UpdateCRC(0, b[record.ChecksumStart:cut]), b[cut:])
		if crc != record.CRC(b) {
			t.Fatalf("cut at %d: %08x, want %08x", cut, crc, record.CRC(b))
		}
	}
}

func TestSplit(t *testing.T) {
	a, b := sample(), recordtest.Batch(recordtest.Spec{Values: []string{"x"}})
	both := append(bytes.Clone(a), b...)
	count := func(in []byte) (batches int, last error) {
		for part, err := range record.Split(in) {
			if last = err; err == nil {
				if _, err := record.Check(part, 0); err != nil {
					t.Error(err)
				}
				batches++
			}
		}
		return batches, last
	}
	for name, c := range map[string]struct {
		in      []byte
		batches int
		want    error
	}{
		"none":           {nil, 0, nil},
		"two":            {both, 2, nil},
		"cut in the 2nd": {both[:len(both)-1], 1, record.ErrTruncated},
		"some bytes":     {append(bytes.Clone(a), 1, 2, 3), 1, record.ErrTruncated},
		"length 5":       {append(bytes.Clone(a), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 2, 0), 1, record.ErrInvalid},
		"magic 1":        {append(bytes.Clone(a), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 22, 0, 0, 0, 0, 1, 0, 0, 0), 1, record.ErrMagic},
	} {
		if n, err := count(c.in); n != c.batches || !errors.Is(err, c.want) {
			t.Errorf("%s: %d batches, %v; want %d, %v", name, n, err, c.batches, c.want)
		}
	}
	for range record.Split(both) { // stopping early is allowed
		break
	}
}

func TestRecords(t *testing.T) {
	b := sample()
	record.Stamp(b, 100, 0)
	h, _ := record.ParseHeader(b)
	body := b[record.HeaderSize:]
	var list []record.Record
	for r, err := range record.Records(body, h) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	if len(list) != 3 || string(list[1].Value) != "two" || list[1].Offset != 101 || list[1].Timestamp != 3000 || list[2].Timestamp != 2000 || list[0].Key != nil {
		t.Fatalf("got %+v", list)
	}
	h.Attributes |= 0x08
	for r := range record.Records(body, h) {
		if r.Timestamp != h.MaxTimestamp {
			t.Errorf("with append time a record has %d", r.Timestamp)
		}
	}
}

func TestRecordFields(t *testing.T) {
	var r []byte
	r = append(r, 0)
	r = binary.AppendVarint(r, 5)
	r = binary.AppendVarint(r, 0)
	r = binary.AppendVarint(r, 1)
	r = append(r, 'k')
	r = binary.AppendVarint(r, -1) // a tombstone
	r = binary.AppendVarint(r, 2)
	r = append(r, 2, 'a', 2, 'b')
	r = append(r, 2, 'c', 1) // a header without a value
	body := append(binary.AppendVarint(nil, int64(len(r))), r...)
	h := record.Header{Count: 1, FirstTimestamp: 10}
	for got, err := range record.Records(body, h) {
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Key) != "k" || got.Value != nil || got.Timestamp != 15 || len(got.Headers) != 2 ||
			got.Headers[0].Key != "a" || string(got.Headers[0].Value) != "b" || got.Headers[1].Value != nil {
			t.Errorf("got %+v", got)
		}
	}
	for i := range body { // no cut is taken for whole, and none panics
		failed := false
		for _, err := range record.Records(body[:i], h) {
			failed = failed || err != nil
		}
		if !failed {
			t.Errorf("%d bytes of %d pass", i, len(body))
		}
	}
	for name, bad := range map[string][]byte{
		"more bytes than records": append(bytes.Clone(body), 0),
		"huge length":             {0xfe, 0xff, 0xff, 0xff, 0x0f, 1},
		"negative length":         {1, 0},
		"offset beyond the batch": {14, 0, 0, 4, 1, 1, 0, 0},
		"a billion headers":       {22, 0, 0, 0, 1, 1, 0x80, 0xa8, 0xd6, 0xb9, 0x07, 0},
		"key beyond the record":   {14, 0, 0, 0, 100, 1, 0, 0},
	} {
		var last error
		for _, err := range record.Records(bad, h) {
			last = err
		}
		if !errors.Is(last, record.ErrInvalid) && !errors.Is(last, record.ErrTruncated) {
			t.Errorf("%s: %v", name, last)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(sample())
	f.Add(sample()[:70])
	f.Add([]byte{})
	f.Add(recordtest.Batch(recordtest.Spec{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := record.Check(b, 1<<20)
		if err != nil {
			return
		}
		if h.Size() != len(b) || h.Count < 1 || h.NextOffset() <= h.BaseOffset {
			t.Errorf("passed: %+v of %d bytes", h, len(b))
		}
		for _, err := range record.Records(b[record.HeaderSize:], h) {
			if err != nil && !errors.Is(err, record.ErrInvalid) && !errors.Is(err, record.ErrTruncated) {
				t.Error(err)
			}
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add(append(sample(), sample()...))
	f.Add(append(sample(), 1, 2, 3))
	f.Add(make([]byte, 30))
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for part, err := range record.Split(b) {
			total += len(part)
			if err == nil && len(part) < record.HeaderSize {
				t.Errorf("a batch of %d bytes", len(part))
			}
		}
		if total != len(b) {
			t.Errorf("%d bytes of %d accounted for", total, len(b))
		}
	})
}

// Whatever the bytes are, decoding ends, with nothing allocated beyond them.
func FuzzRecords(f *testing.F) {
	f.Add(sample()[record.HeaderSize:], int32(3))
	f.Add([]byte{22, 0, 0, 0, 1, 1, 0x80, 0xa8, 0xd6, 0xb9, 0x07, 0}, int32(1))
	f.Fuzz(func(t *testing.T, b []byte, count int32) {
		seen := int32(0)
		for r, err := range record.Records(b, record.Header{Count: count, LastOffsetDelta: max(0, count-1)}) {
			if err == nil {
				seen++
			}
			if len(r.Key)+len(r.Value) > len(b) || len(r.Headers) > len(b) {
				t.Errorf("more than there is: %+v", r)
			}
		}
		if seen > max(count, 0) {
			t.Errorf("%d records of %d", seen, count)
		}
	})
}
