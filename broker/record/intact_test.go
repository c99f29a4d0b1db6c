package record_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// one encodes a record by hand, so that every field can lie.
func one(delta int64, fields ...any) []byte {
	r := []byte{0}
	r = binary.AppendVarint(r, 0)
	r = binary.AppendVarint(r, delta)
	for _, f := range fields {
		switch f := f.(type) {
		case int:
			r = binary.AppendVarint(r, int64(f))
		case string:
			r = append(r, f...)
		}
	}
	return append(binary.AppendVarint(nil, int64(len(r))), r...)
}

// batchOf puts records behind a sound header that counts n of them.
func batchOf(n int, records ...[]byte) []byte {
	b := recordtest.Batch(recordtest.Spec{})[:record.HeaderSize]
	for _, r := range records {
		b = append(b, r...)
	}
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	recordtest.Seal(b)
	return b
}

// A producer once sent batches with a good checksum and a header without
// contradiction, but other records inside: readers then skipped messages of
// other producers, or took offsets that were nobody's for acknowledged.
func TestCheckRecords(t *testing.T) {
	plain := func(delta int64) []byte { return one(delta, -1, 1, "v", 0) }
	for name, tc := range map[string]struct {
		batch []byte
		good  bool
	}{
		"as clients send it":             {recordtest.Batch(recordtest.Spec{Values: []string{"a", "", "c"}, Keys: []string{"k"}, Tombstones: []bool{false, true}}), true},
		"headers":                        {batchOf(1, one(0, -1, 1, "v", 2, 1, "h", 1, "x", 2, "hh", -1)), true},
		"an empty header name":           {batchOf(1, one(0, -1, 1, "v", 1, 0, -1)), true},
		"two of the same delta":          {batchOf(2, plain(5), plain(5)), false},
		"a delta past the batch":         {batchOf(2, plain(0), plain(40)), false},
		"a negative delta":               {batchOf(2, plain(-3), plain(1)), false},
		"a gap":                          {batchOf(3, plain(0), plain(2), plain(3)), false},
		"fewer than counted":             {batchOf(3, plain(0)), false},
		"more than counted":              {batchOf(1, plain(0), plain(1)), false},
		"no bytes":                       {batchOf(1), false},
		"a record length past the end":   {batchOf(1, binary.AppendVarint(nil, 1_000_000)), false},
		"a negative record length":       {batchOf(1, binary.AppendVarint(nil, -2)), false},
		"garbage":                        {batchOf(1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), false},
		"a record that is only a length": {batchOf(1, []byte{0}), false},
		"a key past the record":          {batchOf(1, one(0, 50, "k", 1, "v", 0)), false},
		"a value past the record":        {batchOf(1, one(0, -1, 50, "v", 0)), false},
		"a key of length -2":             {batchOf(1, one(0, -2, 1, "v", 0)), false},
		"no header count":                {batchOf(1, one(0, -1, 1, "v")), false},
		"more headers than bytes":        {batchOf(1, one(0, -1, 1, "v", 1_000_000)), false},
		"a header without a name":        {batchOf(1, one(0, -1, 1, "v", 1, -1, 1, "x")), false},
		"bytes after the last field":     {batchOf(1, one(0, -1, 1, "v", 0, "rest")), false},
	} {
		h, err := record.Check(tc.batch, 0)
		if err != nil {
			t.Errorf("%s: the header must be sound for this test: %v", name, err)
			continue
		}
		err = record.CheckRecords(tc.batch, h)
		if tc.good && err != nil {
			t.Errorf("%s: refused: %v", name, err)
		}
		if !tc.good && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	// The contents of a compressed batch are not looked into.
	b := recordtest.Batch(recordtest.Spec{Attributes: int16(record.Gzip)})
	if err := record.CheckRecords(b, record.Header{Attributes: int16(record.Gzip)}); err != nil {
		t.Errorf("compressed: %v", err)
	}
}

// What the check lets pass, the decoder reads, with the offsets in order; it
// never panics.
func FuzzCheckRecords(f *testing.F) {
	f.Add(recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Keys: []string{"k"}})[record.HeaderSize:], int32(2))
	f.Add(one(0, -1, 1, "v", 1, 1, "h", -1), int32(1))
	f.Fuzz(func(t *testing.T, records []byte, count int32) {
		if count < 1 || count > 1000 {
			return
		}
		b := batchOf(int(count), records)
		h, err := record.Check(b, 0)
		if err != nil {
			return
		}
		if record.CheckRecords(b, h) != nil {
			return
		}
		next := int64(0)
		for r, err := range record.Records(b[record.HeaderSize:], h) {
			if err != nil {
				t.Fatalf("passed the check and cannot be decoded: %v", err)
			}
			if r.Offset != next {
				t.Fatalf("offset %d where %d was due", r.Offset, next)
			}
			next++
		}
		if next != int64(count) {
			t.Fatalf("%d records of %d", next, count)
		}
	})
}

func BenchmarkCheckRecords(b *testing.B) {
	values := make([]string, 1000)
	for i := range values {
		values[i] = string(make([]byte, 100))
	}
	batch := recordtest.Batch(recordtest.Spec{Values: values})
	h, err := record.Check(batch, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		if err := record.CheckRecords(batch, h); err != nil {
			b.Fatal(err)
		}
	}
}
