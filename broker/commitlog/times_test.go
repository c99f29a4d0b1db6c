package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/gzip"
	"pgregory.net/rapid"

	"sidestream/broker/disk"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// gzipped compresses the records of a batch.
func gzipped(b []byte) []byte {
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	_, _ = w.Write(b[record.HeaderSize:])
	_ = w.Close()
	b = append(b[:record.HeaderSize:record.HeaderSize], body.Bytes()...)
	b[22] |= byte(record.Gzip)
	size := len(b) - 12
	b[8], b[9], b[10], b[11] = byte(size>>24), byte(size>>16), byte(size>>8), byte(size)
	recordtest.Seal(b)
	return b
}

func gunzip(codec record.Codec, b []byte) ([]byte, error) {
	if codec != record.Gzip {
		return nil, fmt.Errorf("unexpected codec %v", codec)
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// whole is a decompression whose result is nobody's to give back.
func whole(f func(record.Codec, []byte) ([]byte, error)) func(record.Codec, []byte) ([]byte, func(), error) {
	return func(codec record.Codec, b []byte) ([]byte, func(), error) {
		plain, err := f(codec, b)
		return plain, func() {}, err
	}
}

// Timestamps need not rise. The answer is the first offset at or after the time,
// to the record, before and after a restart.
func TestOffsetByTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := disk.NewMem()
		if err := errors.Join(mem.MkdirAll("/data", 0o755), mem.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		opt := Options{Decompress: whole(gunzip)}
		l, err := Open(mem, testDir, smallConfig(), opt)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		var times []int64
		for range rapid.IntRange(0, 60).Draw(t, "batches") {
			ts := rapid.SliceOfN(rapid.Int64Range(0, 300), 1, 5).Draw(t, "timestamps")
			b := recordtest.Batch(recordtest.Spec{Values: make([]string, len(ts)), Timestamps: ts})
			if rapid.Bool().Draw(t, "compressed") {
				b = gzipped(b)
			}
			if _, _, err := l.Append([][]byte{b}, 4, testStart); err != nil {
				t.Fatal(err)
			}
			times = append(times, ts...)
		}
		start := rapid.Int64Range(0, int64(len(times))).Draw(t, "start")
		if err := l.DeleteBefore(start); err != nil {
			t.Fatal(err)
		}
		check := func() {
			t.Helper()
			highest := int64(-1)
			for _, ts := range times[start:] {
				highest = max(highest, ts)
			}
			for ts := int64(-1); ts <= 301; ts += 7 {
				checkTime(t, ts, times, start, l.OffsetByTime)
			}
			if highest >= 0 {
				checkTime(t, highest, times, start, func(int64) (int64, int64, int32, error) { return l.MaxTimestamp() })
			} else if offset, _, _, err := l.MaxTimestamp(); offset != -1 || err != nil {
				t.Fatalf("highest of nothing: %d, %v", offset, err)
			}
		}
		check()
		if rapid.Bool().Draw(t, "closed") {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if l, err = Open(mem, testDir, smallConfig(), opt); err != nil {
			t.Fatal(err)
		}
		check()
	})
}

func checkTime(t *rapid.T, ts int64, times []int64, start int64, find func(int64) (int64, int64, int32, error)) {
	t.Helper()
	want := found{-1, -1, -1}
	for i := start; i < int64(len(times)); i++ {
		if times[i] >= ts {
			want = found{i, times[i], 4}
			break
		}
	}
	offset, timestamp, epoch, err := find(ts)
	if got := (found{offset, timestamp, epoch}); err != nil || got != want {
		t.Fatalf("time %d: %v (%v), want %v\nof %v from %d on", ts, got, err, want, times, start)
	}
}

func TestOffsetByTimeOfWhatCannotBeDecompressed(t *testing.T) {
	l := open(t, newDisk(t), DefaultConfig()) // without Decompress
	appendTo(t, l, gzipped(recordtest.Batch(recordtest.Spec{Values: []string{"a", "b", "c"}, Timestamps: []int64{10, 20, 30}})))
	for ts, want := range map[int64]int64{5: 0, 10: 0, 15: 0, 30: 0, 31: -1} {
		if offset, _, _, err := l.OffsetByTime(ts); err != nil || offset != want {
			t.Errorf("time %d: offset %d, %v; want %d", ts, offset, err, want)
		}
	}
}

func TestOffsetByTimeOfLogAppendTime(t *testing.T) {
	l := open(t, newDisk(t), DefaultConfig())
	b := recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}, Timestamps: []int64{10, 20}, Attributes: 8})
	appendTo(t, l, b)
	if offset, ts, _, err := l.OffsetByTime(15); err != nil || offset != 0 || ts != 20 {
		t.Errorf("got %d at %d, %v; every record has the batch's time, 20", offset, ts, err)
	}
}
