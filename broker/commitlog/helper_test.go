package commitlog

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sidestream/broker/disk"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testDir is where the tests that use a disk in memory keep their log.
const testDir = "/data/orders-0"

// start is when the tests' clock begins: now, so that file times fit.
var testStart = time.Now().Truncate(time.Millisecond)

func newDisk(t testing.TB) *disk.Mem {
	t.Helper()
	m := disk.NewMem()
	must(t, m.MkdirAll("/data", 0o755))
	must(t, m.SyncDir("/"))
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// smallConfig makes everything happen soon: segments of 1 KiB, an index entry
// for about every second batch.
func smallConfig() Config {
	c := DefaultConfig()
	c.SegmentBytes = 1024
	c.IndexInterval = 150
	c.CheckpointBytes = 400
	return c
}

func open(t testing.TB, fsys disk.FS, cfg Config) *Log {
	t.Helper()
	l, err := Open(fsys, testDir, cfg, Options{})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// batch is an uncompressed batch of the given records.
func batch(values ...string) []byte {
	return recordtest.Batch(recordtest.Spec{Values: values, Timestamps: []int64{testStart.UnixMilli()}})
}

func idempotent(id int64, epoch int16, seq int32, values ...string) []byte {
	return recordtest.Batch(recordtest.Spec{
		Values: values, Timestamps: []int64{testStart.UnixMilli()},
		Producer: true, ID: id, Epoch: epoch, Sequence: seq,
	})
}

func appendTo(t testing.TB, l *Log, batches ...[]byte) (first, last int64) {
	t.Helper()
	first, last, err := l.Append(batches, 1, testStart)
	must(t, err)
	return first, last
}

// appendValues appends n batches of one record, each of its own append.
func appendValues(t testing.TB, l *Log, n int) {
	t.Helper()
	for range n {
		appendTo(t, l, batch(valueAt(l.EndOffset())))
	}
}

// valueAt is what the tests write at an offset, so that a wrong one is seen.
func valueAt(offset int64) string {
	return fmt.Sprintf("value-%06d-%s", offset, strings.Repeat("x", 40))
}

func flush(t testing.TB, l *Log) {
	t.Helper()
	durable, err := l.Flush()
	must(t, err)
	if end := l.EndOffset(); durable != end {
		t.Fatalf("flushed to %d, the log ends at %d", durable, end)
	}
}

// got is one record as a reader sees it.
type got struct {
	offset int64
	value  string
}

// readAll reads the log from an offset to its end, checking every batch, through
// reads of a few bytes, so that every boundary is crossed.
func readAll(t testing.TB, l *Log, from int64) []got {
	t.Helper()
	list, err := readFrom(l, from, 300)
	must(t, err)
	return list
}

func readFrom(l *Log, from int64, maxBytes int) ([]got, error) {
	var list []got
	for {
		s, err := l.Read(from, maxBytes, l.EndOffset())
		if err != nil {
			return list, err
		}
		if s.Empty() {
			return list, nil
		}
		b, err := s.ReadAll()
		next := s.Next
		base := s.Base
		s.Release()
		if err != nil {
			return list, err
		}
		some, err := decodeBatches(b)
		if err != nil {
			return list, err
		}
		if len(some) == 0 || some[0].offset != base || some[len(some)-1].offset+1 != next {
			return list, fmt.Errorf("slice says %d to %d, has %v", base, next, some)
		}
		for _, g := range some {
			if g.offset >= from {
				list = append(list, g)
			}
		}
		from = next
	}
}

func decodeBatches(b []byte) (list []got, err error) {
	for raw, err := range record.Split(b) {
		if err != nil {
			return nil, err
		}
		h, err := record.Check(raw, 0)
		if err != nil {
			return nil, err
		}
		for r, err := range record.Records(raw[record.HeaderSize:], h) {
			if err != nil {
				return nil, err
			}
			list = append(list, got{r.Offset, string(r.Value)})
		}
	}
	return list, nil
}

// wantDense checks that the records are those of appendValues, from an offset on.
func wantDense(t testing.TB, list []got, from, end int64) {
	t.Helper()
	if int64(len(list)) != end-from {
		t.Fatalf("%d records, want %d (offsets %d to %d)", len(list), end-from, from, end-1)
	}
	for i, g := range list {
		if want := from + int64(i); g.offset != want || g.value != valueAt(want) {
			t.Fatalf("record %d is %d %q, want %d %q", i, g.offset, g.value, want, valueAt(want))
		}
	}
}

// edit changes a file in place.
func edit(t testing.TB, fsys disk.FS, name string, change func(b []byte) []byte) {
	t.Helper()
	b, err := disk.ReadFile(fsys, name)
	must(t, err)
	b = change(bytes.Clone(b))
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	must(t, err)
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Datasync())
	must(t, f.Close())
}

// files lists the log's folder.
func files(t testing.TB, fsys disk.FS) []string {
	t.Helper()
	entries, err := fsys.ReadDir(testDir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
