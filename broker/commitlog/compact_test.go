package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"sidestream/broker/disk"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// gzipOnly is the codec of these tests.
func compactOptions() Options {
	return Options{
		Compress: func(codec record.Codec, b []byte) ([]byte, error) {
			if codec != record.Gzip {
				return nil, fmt.Errorf("codec %v", codec)
			}
			var out bytes.Buffer
			w := gzip.NewWriter(&out)
			_, _ = w.Write(b)
			err := w.Close()
			return out.Bytes(), err
		},
		Decompress: whole(func(codec record.Codec, b []byte) ([]byte, error) {
			if codec != record.Gzip {
				return nil, fmt.Errorf("codec %v", codec)
			}
			r, err := gzip.NewReader(bytes.NewReader(b))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(r)
		}),
	}
}

func compactConfig() Config {
	c := smallConfig()
	c.Cleanup = CleanupCompact
	c.MinCleanableRatio = 0
	c.DeleteRetention = time.Hour
	return c
}

func openCompacted(t testing.TB, fsys disk.FS, cfg Config) *Log {
	t.Helper()
	l, err := Open(fsys, testDir, cfg, compactOptions())
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// kv is a record with a key; an empty value is none.
type kv struct{ key, value string }

func keyed(records ...kv) []byte { return recordtest.Batch(keyedSpec(records)) }

func keyedSpec(records []kv) recordtest.Spec {
	s := recordtest.Spec{Timestamps: []int64{testStart.UnixMilli()}}
	for _, r := range records {
		s.Keys = append(s.Keys, r.key)
		s.Values = append(s.Values, r.value)
		s.Tombstones = append(s.Tombstones, r.value == "")
	}
	return s
}

// zipped compresses a batch as a producer would.
func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	b, err := zip(b)
	must(t, err)
	return b
}

func zip(b []byte) ([]byte, error) {
	h, err := record.Check(b, 0)
	if err != nil {
		return nil, err
	}
	body, err := compactOptions().Compress(record.Gzip, b[record.HeaderSize:])
	h.Attributes |= int16(record.Gzip)
	return record.AppendBatch(nil, h, body), err
}

// stored is a record with its place.
type stored struct {
	offset int64
	kv
}

// contents reads the log whole and checks that its batches follow each other
// without a hole.
func contents(t testing.TB, l *Log) []stored {
	t.Helper()
	list, err := readStored(l)
	must(t, err)
	return list
}

func readStored(l *Log) (list []stored, err error) {
	next := l.StartOffset()
	for {
		end := l.EndOffset()
		s, err := l.Read(next, 500, end)
		if err != nil {
			return list, err
		}
		if s.Empty() {
			if next != end {
				return list, fmt.Errorf("nothing to read at %d, the log ends at %d", next, end)
			}
			return list, nil
		}
		b, err := s.ReadAll()
		s.Release()
		if err != nil {
			return list, err
		}
		for raw, err := range record.Split(b) {
			if err != nil {
				return list, err
			}
			h, err := record.CheckStored(raw, 0)
			if err != nil {
				return list, err
			}
			if h.BaseOffset > next {
				return list, fmt.Errorf("batch at %d, the one before ends at %d", h.BaseOffset, next-1)
			}
			body := raw[record.HeaderSize:]
			if h.Codec() != record.None {
				if body, _, err = compactOptions().Decompress(h.Codec(), body); err != nil {
					return list, err
				}
			}
			for r, err := range record.Records(body, h) {
				if err != nil {
					return list, err
				}
				if r.Offset >= next {
					list = append(list, stored{r.Offset, kv{string(r.Key), string(r.Value)}})
				}
			}
			next = h.NextOffset()
		}
	}
}

func compact(t testing.TB, l *Log, at time.Duration) Compacted {
	t.Helper()
	done, err := l.Compact(t.Context(), testStart.Add(at), CompactOptions{})
	must(t, err)
	return done
}

// closeActive makes a segment of what is there, below the recovery point.
func closeActive(t testing.TB, l *Log) {
	t.Helper()
	l.takeBoth()
	err := l.roll()
	l.leaveBoth()
	must(t, err)
	must(t, l.Checkpoint())
}

// lastOfEach is what compaction must leave of closed segments.
func lastOfEach(all []stored, end int64) (want []stored) {
	last := map[string]int64{}
	for _, r := range all {
		if r.offset < end {
			last[r.key] = r.offset
		}
	}
	for _, r := range all {
		if r.offset >= end || last[r.key] == r.offset {
			want = append(want, r)
		}
	}
	return want
}

func TestCompactionKeepsTheLastOfEachKey(t *testing.T) {
	m := newDisk(t)
	l := openCompacted(t, m, compactConfig())
	for i := range 200 {
		b := keyed(kv{fmt.Sprint("k", i%7), valueAt(int64(i))}, kv{fmt.Sprint("once", i), "x"}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i)})
		if i%3 == 0 {
			b = zipped(t, b)
		}
		appendTo(t, l, b)
	}
	flush(t, l)
	all := contents(t, l)
	l.mu.Lock()
	end := l.saved.base
	l.mu.Unlock()
	want := lastOfEach(all, end)
	size := l.Size()
	done := compact(t, l, 0)
	if got := contents(t, l); !slices.Equal(got, want) {
		t.Fatalf("%d records, want %d\n%v\n%v", len(got), len(want), got, want)
	}
	if done.Passes != 1 || done.Records != int64(len(all)-len(want)) || done.Reclaimed != size-l.Size() || done.Reclaimed <= 0 {
		t.Errorf("%+v, %d records of %d stay, %d bytes of %d", done, len(want), len(all), l.Size(), size)
	}
	if again := compact(t, l, 0); again.Passes != 0 {
		t.Errorf("a second time: %+v", again)
	}
	// Every offset can be asked for, before and after a restart, and is found by
	// an index that is there.
	for range 2 {
		for offset := range l.EndOffset() {
			s, err := l.Read(offset, 1, l.EndOffset())
			must(t, err)
			if s.Base > offset || s.Next <= offset {
				t.Fatalf("offset %d is answered with %d to %d", offset, s.Base, s.Next)
			}
			s.Release()
		}
		if damage, err := l.Verify(t.Context()); err != nil || len(damage) > 0 {
			t.Fatal(damage, err)
		}
		must(t, l.Close())
		l = openCompacted(t, m, compactConfig())
		if got := contents(t, l); !slices.Equal(got, want) {
			t.Fatalf("after a restart %d records, want %d", len(got), len(want))
		}
	}
	for _, name := range files(t, m) {
		if strings.Contains(name, cleanedSuffix) || strings.Contains(name, swapSuffix) {
			t.Errorf("%s is left", name)
		}
	}
}

// Small maps take more passes and come to the same.
func TestCompactionInPasses(t *testing.T) {
	l := openCompacted(t, newDisk(t), compactConfig())
	for i := range 3000 {
		appendTo(t, l, keyed(kv{fmt.Sprint("k", (i*7919)%1000), fmt.Sprint("v", i)}, kv{fmt.Sprint("k", i%1000), ""}))
	}
	closeActive(t, l)
	want := lastOfEach(contents(t, l), l.EndOffset())
	done, err := l.Compact(t.Context(), testStart, CompactOptions{MemoryBytes: 1})
	must(t, err)
	if done.Passes < 5 {
		t.Errorf("%d passes for 1000 keys with room for 192", done.Passes)
	}
	if got := contents(t, l); !slices.Equal(got, want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
}

func TestTombstonesGoAfterTheirTime(t *testing.T) {
	m := newDisk(t)
	l := openCompacted(t, m, compactConfig())
	appendTo(t, l, keyed(kv{"a", "1"}, kv{"b", "1"}))
	appendTo(t, l, keyed(kv{"a", ""}, kv{"c", "1"}))
	closeActive(t, l)
	want := []stored{{1, kv{"b", "1"}}, {2, kv{"a", ""}}, {3, kv{"c", "1"}}}
	check := func(at time.Duration, records int64) {
		t.Helper()
		if done := compact(t, l, at); done.Records != records {
			t.Fatalf("after %v: %+v, want %d records removed", at, done, records)
		}
		if got := contents(t, l); !slices.Equal(got, want) {
			t.Fatalf("after %v: %v, want %v", at, got, want)
		}
	}
	check(0, 1)
	check(59*time.Minute, 0)
	must(t, l.Close())
	l = openCompacted(t, m, compactConfig()) // the time is in the batch, and noted
	check(59*time.Minute, 0)
	offset, ts, _, err := l.OffsetByTime(testStart.UnixMilli())
	if err != nil || offset != 1 || ts != testStart.UnixMilli() {
		t.Errorf("by time: %d at %d, %v", offset, ts, err)
	}
	want = slices.Delete(want, 1, 2)
	check(time.Hour, 1)
	check(2*time.Hour, 0)
	if l.EndOffset() != 4 {
		t.Errorf("ends at %d", l.EndOffset())
	}
	if offset, _, _, err := l.OffsetByTime(testStart.UnixMilli() + 1); err != nil || offset != -1 {
		t.Errorf("by a later time: %d, %v", offset, err)
	}
}

func TestWhenCompactionIsDue(t *testing.T) {
	seg := func(next, size int64, age time.Duration) closedSegment {
		return closedSegment{segment: newSegment(next - 10), next: next, size: size, appended: -age.Milliseconds()}
	}
	list := []closedSegment{seg(10, 60, 3*time.Hour), seg(20, 30, 2*time.Hour), seg(30, 10, time.Hour)}
	for name, c := range map[string]struct {
		clean, horizon int64
		ratio          float64
		maxLag         time.Duration
		want           bool
	}{
		"nothing compacted yet":  {0, -1, 1, 0, true},
		"all compacted":          {30, -1, 0, 0, false},
		"too little is new":      {10, -1, 0.5, 0, false},
		"enough is new":          {10, -1, 0.4, 0, true},
		"in the middle":          {15, -1, 0.4, 0, true},
		"little, but overdue":    {20, -1, 0.5, time.Hour, true},
		"little, not overdue":    {20, -1, 0.5, 2 * time.Hour, false},
		"a tombstone is due":     {30, 0, 0.5, 0, true},
		"a tombstone is not due": {30, 1, 0.5, 0, false},
	} {
		cfg := Config{MinCleanableRatio: c.ratio, MaxCompactionLag: c.maxLag}
		limit, ok := due(list, cleanPoint{c.clean, c.horizon}, cfg, 0)
		if ok != c.want || limit != 30 {
			t.Errorf("%s: %v up to %d, want %v up to 30", name, ok, limit, c.want)
		}
	}
	if _, ok := due(nil, cleanPoint{0, 0}, Config{}, 0); ok {
		t.Error("an empty log is due")
	}
}

func TestCompactionLags(t *testing.T) {
	cfg := compactConfig()
	cfg.MinCompactionLag = time.Hour
	l := openCompacted(t, newDisk(t), cfg)
	for range 3 {
		appendTo(t, l, keyed(kv{"a", "1"}))
		closeActive(t, l)
	}
	if done := compact(t, l, 59*time.Minute); done.Passes != 0 {
		t.Errorf("too early: %+v", done)
	}
	if done := compact(t, l, time.Hour); done.Records != 2 {
		t.Errorf("after the lag: %+v", done)
	}
	cfg.MaxCompactionLag = 2 * time.Hour
	must(t, l.SetConfig(cfg))
	appendTo(t, l, keyed(kv{"a", "2"}))
	if done := compact(t, l, time.Hour); done.Passes != 0 {
		t.Errorf("in the active segment: %+v", done)
	}
	if done := compact(t, l, 2*time.Hour); done.Records != 1 {
		t.Errorf("in the active segment, overdue: %+v", done)
	}
	if got := contents(t, l); len(got) != 1 || got[0] != (stored{3, kv{"a", "2"}}) {
		t.Errorf("left: %v", got)
	}
}

// What cannot be judged stays, and so do tombstones above it.
func TestCompactionKeepsWhatItCannotJudge(t *testing.T) {
	garbled := zipped(t, keyed(kv{"a", "1"}))
	garbled[len(garbled)-1] ^= 1
	garbled[record.HeaderSize] ^= 1
	recordtest.Seal(garbled)
	spec := keyedSpec([]kv{{"a", "1"}})
	spec.Attributes, spec.Producer, spec.ID = 0x10, true, 5
	transactional := recordtest.Batch(spec)
	spec.Attributes = 0x30
	control := recordtest.Batch(spec)
	noKey := batch("no key")
	for name, c := range map[string]struct {
		b      []byte
		hidden bool
	}{"garbled": {garbled, true}, "transactional": {transactional, true}, "control": {control, false}, "no key": {noKey, false}} {
		t.Run(name, func(t *testing.T) {
			m := newDisk(t)
			cfg := compactConfig()
			cfg.DeleteRetention = 0
			l := openCompacted(t, m, cfg)
			want := bytes.Clone(c.b)
			appendTo(t, l, c.b)
			appendTo(t, l, keyed(kv{"a", "2"}))
			appendTo(t, l, keyed(kv{"a", ""}))
			closeActive(t, l)
			compact(t, l, 0)
			done := compact(t, l, time.Minute)
			if (done.Tombstones == 0) != c.hidden {
				t.Errorf("%+v", done)
			}
			if done := compact(t, l, 2*time.Minute); done.Passes > 0 {
				t.Errorf("at it again: %+v", done)
			}
			s, err := l.Read(0, 1, l.EndOffset())
			must(t, err)
			defer s.Release()
			b, err := s.ReadAll()
			record.Stamp(want, 0, 1)
			if err != nil || !bytes.Equal(b, want) {
				t.Errorf("became\n%x, was\n%x (%v)", b, want, err)
			}
		})
	}
}

// A damaged segment is left as it is, reported, and served around; the others
// are compacted, but for tombstones above it.
func TestCompactionAroundDamage(t *testing.T) {
	for _, at := range []int{0, 1, 2} {
		m := newDisk(t)
		cfg := compactConfig()
		cfg.DeleteRetention = 0
		l := openCompacted(t, m, cfg)
		for i := range 3 {
			appendTo(t, l, keyed(kv{"a", fmt.Sprint(i)}))
			appendTo(t, l, keyed(kv{"b", ""}))
			appendTo(t, l, keyed(kv{"c", fmt.Sprint(i)}))
			closeActive(t, l)
		}
		name := l.path(int64(3*at), logSuffix)
		must(t, l.Close())
		edit(t, m, name, func(b []byte) []byte { b[65] ^= 1; return b })
		before, err := disk.ReadFile(m, name)
		must(t, err)
		l = openCompacted(t, m, cfg)
		compact(t, l, 0)
		compact(t, l, time.Hour)
		after, err := disk.ReadFile(m, name)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("segment %d was changed (%v)", at, err)
		}
		if d := l.Damage(); len(d) != 1 || d[0].Offset != int64(3*at) || d[0].Next != int64(3*at+1) {
			t.Errorf("damage %v", d)
		}
		var got []stored
		for offset := l.StartOffset(); offset < l.EndOffset(); offset++ {
			s, err := l.Read(offset, 1, l.EndOffset())
			if errors.Is(err, ErrCorrupt) && offset == int64(3*at) {
				continue
			}
			must(t, err)
			b, err := s.ReadAll()
			must(t, err)
			s.Release()
			h, err := record.CheckStored(b, 0)
			must(t, err)
			for r, err := range record.Records(b[record.HeaderSize:], h) {
				must(t, err)
				if r.Offset == offset {
					got = append(got, stored{r.Offset, kv{string(r.Key), string(r.Value)}})
				}
			}
		}
		last := map[string]string{}
		for _, r := range got {
			last[r.key] = r.value
		}
		want := map[string]string{"a": "2", "b": "", "c": "2"}
		if at == 2 { // its last value of a is gone, and tombstones below the damage went
			want["a"] = "1"
		}
		if !maps.Equal(last, want) {
			t.Errorf("damage in %d: %v, want %v", at, last, want)
		}
	}
}

// The sequence numbers that count survive, also when they must be read from the
// batches.
func TestCompactionKeepsSequences(t *testing.T) {
	for _, snapshots := range []bool{true, false} {
		m := newDisk(t)
		l := openCompacted(t, m, compactConfig())
		send := func(seq int32) []byte {
			s := keyedSpec([]kv{{"a", fmt.Sprint(seq)}, {"b", fmt.Sprint(seq)}})
			s.Producer, s.ID, s.Sequence = true, 7, seq
			return recordtest.Batch(s)
		}
		for i := range int32(20) {
			appendTo(t, l, send(2*i))
		}
		closeActive(t, l)
		appendTo(t, l, keyed(kv{"a", "last"}, kv{"b", "last"}))
		closeActive(t, l)
		if done := compact(t, l, 0); done.Records != 40 {
			t.Fatalf("%+v", done)
		}
		size := l.Size()
		must(t, l.Close())
		if !snapshots {
			removeSuffix(snapshotSuffix)(t, m)
		}
		l = openCompacted(t, m, compactConfig())
		for i := range int32(20) {
			want := Verdict{Kind: OldDuplicate}
			if i >= 15 {
				want = Verdict{Duplicate, int64(2 * i), int64(2*i + 1)}
			}
			if v := l.Producers().Check(header(t, send(2*i))); v != want {
				t.Errorf("snapshots %v: batch %d again: %v, want %v", snapshots, i, v, want)
			}
		}
		if v := l.Producers().Check(header(t, send(40))); v.Kind != New {
			t.Errorf("the next batch: %v", v)
		}
		// Once the producer is forgotten its batches become one.
		l.producers.expire(testStart, time.Hour) // without a snapshot it counts as seen now
		l.producers.expire(testStart.Add(1000*time.Hour), time.Hour)
		appendTo(t, l, keyed(kv{"a", "very last"}))
		closeActive(t, l)
		compact(t, l, 0)
		if l.Size() >= size {
			t.Errorf("%d bytes, with the producer's batches there were %d", l.Size(), size)
		}
	}
}

// Readers that hold a segment finish, and the files are closed.
func TestReaderFinishesInACompactedSegment(t *testing.T) {
	l := openCompacted(t, newDisk(t), compactConfig())
	for i := range 60 {
		appendTo(t, l, keyed(kv{"a", valueAt(int64(i))}))
	}
	closeActive(t, l)
	var held []Slice
	for _, offset := range []int64{0, 10, 30, 50} {
		s, err := l.Read(offset, 300, 60)
		must(t, err)
		held = append(held, s)
	}
	if done := compact(t, l, 0); done.Records != 59 {
		t.Fatalf("%+v", done)
	}
	for i := range held {
		b, err := held[i].ReadAll()
		must(t, err)
		list, err := decodeBatches(b)
		must(t, err)
		wantDense(t, list, held[i].Base, held[i].Next)
		held[i].Release()
	}
	if got := contents(t, l); len(got) != 1 || got[0].offset != 59 {
		t.Errorf("left: %v", got)
	}
}

func TestTruncationIntoWhatWasCompacted(t *testing.T) {
	m := newDisk(t)
	l := openCompacted(t, m, compactConfig())
	for i := range 30 {
		appendTo(t, l, keyed(kv{fmt.Sprint(i % 3), valueAt(int64(i))}))
	}
	closeActive(t, l)
	compact(t, l, 0)
	must(t, l.TruncateTo(28))
	if l.clean.Offset != 0 {
		t.Errorf("compacted up to %d of a log that ends at %d", l.clean.Offset, l.EndOffset())
	}
	for range 2 {
		appendTo(t, l, keyed(kv{"0", "new"}))
	}
	closeActive(t, l)
	compact(t, l, 0)
	want := []stored{{29, kv{"0", "new"}}}
	got := contents(t, l)
	if last := got[len(got)-1:]; !slices.Equal(last, want) || len(got) != 1 {
		// 27 had key 0, which 29 replaces.
		t.Errorf("left: %v", got)
	}
	must(t, l.Close())
	if l = openCompacted(t, m, compactConfig()); l.EndOffset() != 30 {
		t.Errorf("ends at %d", l.EndOffset())
	}
}

func TestCompactionOnAFullDisk(t *testing.T) {
	m := newDisk(t)
	full := false
	fsys := disk.WithFaults(m, func(op disk.Op) error {
		if full && op.Kind == disk.OpWrite {
			return disk.ShortWrite(10, errFull)
		}
		return nil
	})
	l := openCompacted(t, fsys, compactConfig())
	for i := range 60 {
		appendTo(t, l, keyed(kv{fmt.Sprint(i % 3), valueAt(int64(i))}))
	}
	closeActive(t, l)
	all := contents(t, l)
	names := files(t, m)
	full = true
	if _, err := l.Compact(t.Context(), testStart, CompactOptions{}); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	if got := contents(t, l); !slices.Equal(got, all) || !slices.Equal(files(t, m), names) {
		t.Errorf("%d records of %d, files %v", len(got), len(all), files(t, m))
	}
	full = false
	if done := compact(t, l, 0); done.Records != 57 {
		t.Errorf("%+v", done)
	}
}

func TestCompactionErrors(t *testing.T) {
	l := open(t, newDisk(t), compactConfig())
	if _, err := l.Compact(t.Context(), testStart, CompactOptions{}); !errors.Is(err, errCodecs) {
		t.Errorf("without codecs: %v", err)
	}
	l = openCompacted(t, newDisk(t), smallConfig())
	for range 30 {
		appendTo(t, l, keyed(kv{"a", valueAt(0)}))
	}
	closeActive(t, l)
	if done := compact(t, l, 0); done.Passes != 0 || len(contents(t, l)) != 30 {
		t.Errorf("a log that is not compacted: %+v", done)
	}
	must(t, l.SetConfig(compactConfig()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Compact(ctx, testStart, CompactOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, l.Close())
	if _, err := l.Compact(t.Context(), testStart, CompactOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A segment's age outlives its rewriting, or compaction would keep it from
// retention.
func TestCompactionKeepsTheAge(t *testing.T) {
	m := newDisk(t)
	cfg := compactConfig()
	cfg.Cleanup, cfg.Retention = CleanupBoth, time.Hour
	l := openCompacted(t, m, cfg)
	spec := keyedSpec([]kv{{"a", "1"}, {"a", "2"}})
	spec.Timestamps = []int64{4102444800000} // a producer's clock that is in 2100
	_, _, err := l.Append([][]byte{recordtest.Batch(spec)}, 1, testStart.Add(-50*time.Minute))
	must(t, err)
	closeActive(t, l)
	if done := compact(t, l, 0); done.Records != 1 {
		t.Fatalf("%+v", done)
	}
	must(t, l.Close())
	l = openCompacted(t, m, cfg)
	_, err = l.Retain(testStart.Add(9 * time.Minute))
	must(t, err)
	if l.StartOffset() != 0 {
		t.Errorf("too early it starts at %d", l.StartOffset())
	}
	_, err = l.Retain(testStart.Add(11 * time.Minute))
	must(t, err)
	if l.StartOffset() != 2 {
		t.Errorf("it starts at %d, want 2", l.StartOffset())
	}
}
