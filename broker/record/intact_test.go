package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// one encodes a record by hand, so that every field can lie.
func one(delta int64, fields ...any) []byte { return timed(0, delta, fields...) }

// dated encodes a record with a timestamp delta.
func dated(delta, timestamp int64) []byte { return timed(timestamp, delta, -1, 1, "v", 0) }

func timed(timestamp, delta int64, fields ...any) []byte {
	r := []byte{0}
	r = binary.AppendVarint(r, timestamp)
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
		_, err = record.CheckRecords(tc.batch, h)
		if tc.good && err != nil {
			t.Errorf("%s: refused: %v", name, err)
		}
		if !tc.good && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	// The contents of a compressed batch are not looked into.
	b := recordtest.Batch(recordtest.Spec{Attributes: int16(record.Gzip)})
	if _, err := record.CheckRecords(b, record.Header{Attributes: int16(record.Gzip)}); err != nil {
		t.Errorf("compressed: %v", err)
	}
}

// A batch whose header says another highest timestamp than its records have was
// believed: the search for the highest timestamp and by time answered wrong, and
// retention kept or removed by a time that no record has. Some clients leave the
// field at -1. It is corrected, as Kafka's broker does; a batch that is right is
// left alone to the byte.
func TestCheckRecordsCorrectsTheHighestTimestamp(t *testing.T) {
	const first = 1_700_000_000_000
	for name, tc := range map[string]struct {
		records    [][]byte
		first, max int64
		attributes int16
		want       int64
	}{
		"right":                    {[][]byte{dated(0, 0), dated(1, 5), dated(2, 3)}, first, first + 5, 0, first + 5},
		"none":                     {[][]byte{dated(0, 0), dated(1, 5)}, first, -1, 0, first + 5},
		"the first one's":          {[][]byte{dated(0, 0), dated(1, 86_400_000)}, first, first, 0, first + 86_400_000},
		"a time of no record":      {[][]byte{dated(0, 0)}, first, 4_102_444_800_000, 0, first},
		"all before the first":     {[][]byte{dated(0, -10), dated(1, -9000)}, first, first, 0, first - 10},
		"a record with a header":   {[][]byte{timed(7, 0, -1, 1, "v", 1, 1, "h", -1)}, first, 0, 0, first + 7},
		"records without a time":   {[][]byte{dated(0, 0), dated(1, 0)}, -1, -1, 0, -1},
		"before 1970":              {[][]byte{dated(0, 0)}, -5000, -5000, 0, -1},
		"dated by the log's clock": {[][]byte{dated(0, 0), dated(1, 5)}, first, first + 60_000, 0x08, first + 60_000},
	} {
		b := batchOf(len(tc.records), tc.records...)
		binary.BigEndian.PutUint16(b[21:], uint16(tc.attributes))
		binary.BigEndian.PutUint64(b[27:], uint64(tc.first))
		binary.BigEndian.PutUint64(b[35:], uint64(tc.max))
		recordtest.Seal(b)
		before := bytes.Clone(b)
		h, err := record.Check(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		h, err = record.CheckRecords(b, h)
		if err != nil || h.MaxTimestamp != tc.want {
			t.Errorf("%s: highest timestamp %d, %v; want %d", name, h.MaxTimestamp, err, tc.want)
		}
		if stored, err := record.Check(b, 0); err != nil || stored != h {
			t.Errorf("%s: the batch has become %+v, %v; said was %+v", name, stored, err, h)
		}
		if tc.max == tc.want && !bytes.Equal(b, before) {
			t.Errorf("%s: it was right and was changed", name)
		}
	}
	for name, tc := range map[string]struct{ first, delta int64 }{
		"a sum beyond the end of time":    {first, math.MaxInt64 - 1},
		"a sum before its beginning":      {-first, math.MinInt64 + 1},
		"a first one at the end of time":  {math.MaxInt64, 1},
		"a first one at its beginning":    {math.MinInt64, -1},
		"a first one close to its ending": {math.MaxInt64 - 100, 200},
	} {
		b := batchOf(1, dated(0, tc.delta))
		binary.BigEndian.PutUint64(b[27:], uint64(tc.first))
		recordtest.Seal(b)
		h, err := record.Check(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := record.CheckRecords(b, h); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

// What the check lets pass, the decoder reads, with the offsets in order; it
// never panics.
func FuzzCheckRecords(f *testing.F) {
	f.Add(recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Keys: []string{"k"}})[record.HeaderSize:], int32(2))
	f.Add(one(0, -1, 1, "v", 1, 1, "h", -1), int32(1))
	f.Add(append(dated(0, -3), dated(1, 1<<40)...), int32(2))
	f.Add(dated(0, math.MaxInt64), int32(1))
	f.Fuzz(func(t *testing.T, records []byte, count int32) {
		if count < 1 || count > 1000 {
			return
		}
		b := batchOf(int(count), records)
		h, err := record.Check(b, 0)
		if err != nil {
			return
		}
		h, err = record.CheckRecords(b, h)
		if err != nil {
			return
		}
		if now, err := record.Check(b, 0); err != nil || now != h {
			t.Fatalf("the batch has become %+v, %v; said was %+v", now, err, h)
		}
		next, latest := int64(0), int64(-1)
		for r, err := range record.Records(b[record.HeaderSize:], h) {
			if err != nil {
				t.Fatalf("passed the check and cannot be decoded: %v", err)
			}
			if r.Offset != next {
				t.Fatalf("offset %d where %d was due", r.Offset, next)
			}
			next++
			latest = max(latest, r.Timestamp)
		}
		if latest != h.MaxTimestamp {
			t.Fatalf("highest timestamp %d, the records have %d", h.MaxTimestamp, latest)
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
		if _, err := record.CheckRecords(batch, h); err != nil {
			b.Fatal(err)
		}
	}
}
