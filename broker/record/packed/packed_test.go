package packed_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
	"sidestream/broker/record/packed"
	"sidestream/broker/record/recordtest"
	"sidestream/broker/record/unpack"
)

const maxBytes = 1 << 20

var unpacker = unpack.Unpacker{Limit: unpack.DefaultLimit}

// kind is a way to compress; some codecs have more than one.
type kind struct {
	name  string
	codec record.Codec
	pack  func(t testing.TB, b []byte) []byte
}

var kinds = []kind{
	{"gzip", record.Gzip, func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, err := w.Write(b)
		must(t, errors.Join(err, w.Close()))
		return out.Bytes()
	}},
	{"lz4", record.LZ4, func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		_, err := w.Write(b)
		must(t, errors.Join(err, w.Close()))
		return out.Bytes()
	}},
	{"lz4 with its size", record.LZ4, func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		must(t, w.Apply(lz4.SizeOption(uint64(len(b)))))
		_, err := w.Write(b)
		must(t, errors.Join(err, w.Close()))
		return out.Bytes()
	}},
	{"zstd with its size", record.Zstd, func(t testing.TB, b []byte) []byte {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		must(t, err)
		return w.EncodeAll(b, nil)
	}},
	{"zstd in a stream", record.Zstd, func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		must(t, err)
		for len(b) > 0 { // flushed, so that the size is not known
			n := min(len(b), 1<<16)
			_, err = w.Write(b[:n])
			must(t, errors.Join(err, w.Flush()))
			b = b[n:]
		}
		must(t, w.Close())
		return out.Bytes()
	}},
	{"snappy", record.Snappy, func(_ testing.TB, b []byte) []byte { return s2.EncodeSnappy(nil, b) }},
	{"snappy as Java frames it", record.Snappy, func(_ testing.TB, b []byte) []byte {
		out := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
		for len(b) > 0 {
			n := min(len(b), 1<<15)
			block := s2.EncodeSnappy(nil, b[:n])
			out = append(binary.BigEndian.AppendUint32(out, uint32(len(block))), block...)
			b = b[n:]
		}
		return out
	}},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seal puts a body behind a header that counts n records.
func seal(codec record.Codec, n int32, first, latest int64, body []byte) []byte {
	return record.AppendBatch(nil, record.Header{
		Attributes: int16(codec), LastOffsetDelta: n - 1, Count: n, LeaderEpoch: -1,
		FirstTimestamp: first, MaxTimestamp: latest, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	}, body)
}

func check(t testing.TB, b []byte) (record.Header, error) {
	t.Helper()
	h, err := record.Check(b, 0)
	must(t, err)
	h, err = packed.Check(b, h, maxBytes, unpacker)
	if stored, again := record.Check(b, 0); again != nil || err == nil && stored != h {
		t.Fatalf("the batch has become %+v, %v; said was %+v", stored, again, h)
	}
	return h, err
}

// plain is the records of a batch, all with one value.
func plain(n int, value string) []byte {
	values := make([]string, n)
	for i := range values {
		values[i] = value
	}
	return recordtest.Batch(recordtest.Spec{Values: values})[record.HeaderSize:]
}

// What clients send passes: few records, many, those that compress to nearly
// nothing, and the least records that there are.
func TestHonestBatchesPass(t *testing.T) {
	for _, k := range kinds {
		for _, n := range []int{1, 2, 100, 5000, 20_000} {
			for _, value := range []string{"", "x", strings.Repeat("same ", 40)} {
				if n*len(value) > 2<<20 {
					continue
				}
				b := seal(k.codec, int32(n), 0, 0, k.pack(t, plain(n, value)))
				before := bytes.Clone(b)
				if _, err := check(t, b); err != nil || !bytes.Equal(b, before) {
					t.Errorf("%s: %d records of %q in %d bytes: %v", k.name, n, value, len(b), err)
				}
			}
		}
	}
}

// A batch of a few bytes of garbage that said it was compressed and had 2^31-1
// records was stored: each took as many offsets and a segment of its own, and a
// partition's offsets could be used up.
func TestCountsThatAreLiesAreRefused(t *testing.T) {
	for _, k := range kinds {
		for name, tc := range map[string]struct {
			n    int32
			body []byte
		}{
			"garbage":                     {math.MaxInt32, []byte("no such thing, nor anything like it, whatever the codec")},
			"garbage of one record":       {1, []byte("no such thing")},
			"garbage behind a good start": {math.MaxInt32, append(k.pack(t, plain(3, "v")), "garbage"...)},
			"only the magic":              {math.MaxInt32, k.pack(t, plain(3, "v"))[:4]},
			"more than there are":         {math.MaxInt32, k.pack(t, plain(1000, "v"))},
			"one more than there are":     {20_001, k.pack(t, plain(20_000, ""))},
			"zeros":                       {math.MaxInt32, k.pack(t, make([]byte, 1<<20))},
			"a pattern":                   {50_000, k.pack(t, bytes.Repeat([]byte{12, 0, 0, 0, 1, 1, 0}, 50_000))},
			"cut short":                   {math.MaxInt32, cut(k.pack(t, plain(5000, "v")))},
			"nothing":                     {1000, k.pack(t, nil)},
		} {
			b := seal(k.codec, tc.n, 0, 0, tc.body)
			h, err := record.Check(b, 0)
			must(t, err)
			_, err = packed.Check(b, h, maxBytes, unpacker)
			unseen := k.codec == record.Snappy && name == "garbage of one record" || // it has no magic
				strings.Contains(name, "one") && int(tc.n) <= len(tc.body) // so it is not suspicious
			if !unseen && !errors.Is(err, record.ErrInvalid) {
				t.Errorf("%s: %s: %d records in %d bytes: got %v, want ErrInvalid", k.name, name, tc.n, len(tc.body), err)
			}
		}
	}
}

func cut(b []byte) []byte { return b[:len(b)*3/4] }

// However well it is packed, a suspicious batch is unpacked only as far as the
// largest one that the topic takes unpacked; and what would be taken unpacked is
// taken.
func TestCountingIsBounded(t *testing.T) {
	const n = 17 // of 1 MiB each
	big := plain(n, strings.Repeat("\x00", 1<<20))
	for _, k := range kinds {
		body := k.pack(t, big)
		// Suspicious by hand: more records than bytes cannot be had so quickly.
		b := seal(k.codec, math.MaxInt32, 0, 0, body)
		h, err := record.Check(b, 0)
		must(t, err)
		if _, err := packed.Check(b, h, maxBytes, unpacker); !errors.Is(err, record.ErrTooLarge) && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: got %v", k.name, err)
		}
		// A timestamp is no reason to refuse it.
		b = seal(k.codec, n, 5, -1, body)
		if h, err := check(t, b); err != nil || h.MaxTimestamp != -1 {
			t.Errorf("%s: without a timestamp: %+v, %v", k.name, h, err)
		}
		h, err = record.Check(b, 0)
		must(t, err)
		if h, err = packed.Check(b, h, 64<<20, unpacker); err != nil || h.MaxTimestamp != 5 {
			t.Errorf("%s: of a topic that takes larger ones: %+v, %v", k.name, h, err)
		}
	}
}

// A client that leaves the highest timestamp at -1 does so when it compresses,
// too. Such a batch is unpacked for it, or it could never be found by time.
func TestAMissingHighestTimestampIsFound(t *testing.T) {
	const first = 1_700_000_000_000
	for _, k := range kinds {
		body := k.pack(t, recordtest.Batch(recordtest.Spec{
			Values: []string{"a", "b", "c"}, Timestamps: []int64{first, first + 70_000, first + 5},
		})[record.HeaderSize:])
		for claimed, want := range map[int64]int64{
			-1:             first + 70_000,
			first - 1:      first + 70_000,
			first + 70_000: first + 70_000,
			first:          first, // not suspicious, so it is not looked into
		} {
			h, err := check(t, seal(k.codec, 3, first, claimed, body))
			if err != nil || h.MaxTimestamp != want {
				t.Errorf("%s: %d became %d, %v; want %d", k.name, claimed, h.MaxTimestamp, err, want)
			}
		}
		b := seal(k.codec|8, 3, first, -1, body) // dated by the log's clock
		if h, err := check(t, b); err != nil || h.MaxTimestamp != -1 {
			t.Errorf("%s: append time: %d, %v", k.name, h.MaxTimestamp, err)
		}
	}
}

// What a suspicious batch costs: the most records that may be unpacked.
func BenchmarkCount(b *testing.B) {
	body := plain(1_700_000, "")
	for _, k := range kinds {
		batch := seal(k.codec, 1_700_000, 5, -1, k.pack(b, body))
		h, err := record.Check(batch, 0)
		must(b, err)
		b.Run(k.name, func(b *testing.B) {
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				_, err := packed.Check(batch, h, maxBytes, unpacker)
				must(b, err)
			}
		})
	}
}

// Whatever the body is: no panic; and what is suspicious and passes has as many
// records as it says.
func FuzzCheck(f *testing.F) {
	for _, k := range kinds {
		for _, n := range []int{1, 300} {
			body := k.pack(f, plain(n, "v"))
			f.Add(int8(k.codec), int32(n), int64(0), body)
			f.Add(int8(k.codec), int32(math.MaxInt32), int64(0), body)
			f.Add(int8(k.codec), int32(n), int64(9), body)
		}
		f.Add(int8(k.codec), int32(math.MaxInt32), int64(0), []byte("garbage"))
		f.Add(int8(k.codec), int32(2000), int64(0), k.pack(f, plain(2000, "")))
		f.Add(int8(k.codec), int32(2000), int64(0), k.pack(f, make([]byte, 1<<16)))
	}
	f.Fuzz(func(t *testing.T, codec int8, n int32, first int64, body []byte) {
		if codec < 0 || record.Codec(codec) > record.Zstd || n < 1 {
			return
		}
		b := seal(record.Codec(codec), n, first, 0, body)
		h, err := record.Check(b, 0)
		if err != nil {
			return
		}
		now, err := packed.Check(b, h, maxBytes, unpacker)
		if err != nil {
			if !errors.Is(err, record.ErrInvalid) && !errors.Is(err, record.ErrTooLarge) {
				t.Fatalf("no error of this format: %v", err)
			}
			return
		}
		if stored, err := record.Check(b, 0); err != nil || stored != now {
			t.Fatalf("the batch has become %+v, %v; said was %+v", stored, err, now)
		}
		if int(n) <= len(body) {
			return
		}
		out, err := unpacked(record.Codec(codec), body)
		if err != nil {
			t.Fatalf("passed, and cannot be unpacked: %v", err)
		}
		if least := int(n) * 7; len(out) < least {
			t.Fatalf("%d records in %d bytes passed", n, len(out))
		}
	})
}

func unpacked(codec record.Codec, body []byte) ([]byte, error) {
	var out bytes.Buffer
	var err error
	switch codec {
	case record.Zstd:
		d, _ := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		defer d.Close()
		return d.DecodeAll(body, nil)
	case record.Gzip:
		r, rerr := gzip.NewReader(bytes.NewReader(body))
		if rerr != nil {
			return nil, rerr
		}
		_, err = out.ReadFrom(r)
	case record.LZ4:
		_, err = out.ReadFrom(lz4.NewReader(bytes.NewReader(body)))
	case record.Snappy:
		if !bytes.HasPrefix(body, []byte("\x82SNAPPY\x00")) {
			return s2.Decode(nil, body)
		}
		for body = body[16:]; len(body) > 0 && err == nil; {
			n := binary.BigEndian.Uint32(body)
			var block []byte
			block, err = s2.Decode(nil, body[4:4+n])
			out.Write(block)
			body = body[4+n:]
		}
	default:
		return nil, fmt.Errorf("codec %d", codec)
	}
	return out.Bytes(), err
}
