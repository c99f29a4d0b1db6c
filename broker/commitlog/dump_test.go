package commitlog

import (
	"encoding/binary"
	"errors"
	"testing"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

func TestReadSegment(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, DefaultConfig())
	appendValues(t, l, 10)
	must(t, l.Close())
	name := l.path(0, logSuffix)
	size := int64(len(batch(valueAt(0))))
	collect := func() (offsets []int64, bad []*CorruptError) {
		for e, err := range ReadSegment(m, name) {
			var d *CorruptError
			switch {
			case errors.As(err, &d):
				bad = append(bad, d)
			case err != nil:
				t.Fatal(err)
			default:
				if _, err := record.Check(e.Raw, 0); err != nil || e.Pos != e.BaseOffset*size {
					t.Errorf("batch %d at %d: %v", e.BaseOffset, e.Pos, err)
				}
				offsets = append(offsets, e.BaseOffset)
			}
		}
		return offsets, bad
	}
	if offsets, bad := collect(); len(offsets) != 10 || len(bad) != 0 {
		t.Fatalf("%v, %v", offsets, bad)
	}
	edit(t, m, name, func(b []byte) []byte { return flip(int(3*size) + 80)(b)[:9*size+20] })
	offsets, bad := collect()
	if len(offsets) != 8 || len(bad) != 2 {
		t.Fatalf("%v, %v", offsets, bad)
	}
	if d := bad[0]; d.Pos != 3*size || d.End != 4*size || d.Next != 4 || !errors.Is(d, record.ErrCRC) || !errors.Is(d, ErrCorrupt) {
		t.Errorf("flipped batch: %v", d)
	}
	if d := bad[1]; d.Pos != 9*size || d.End != 9*size+20 || !errors.Is(d, record.ErrTruncated) {
		t.Errorf("cut batch: %v", d)
	}
	for _, err := range ReadSegment(m, testDir+"/nothing.log") {
		if err == nil {
			t.Error("read a file that is not there")
		}
	}
}

// The index files have Kafka's bytes: the entry for a batch once more than the
// interval lies before it, offsets and positions relative to the segment.
func TestIndexFilesByByte(t *testing.T) {
	m := newDisk(t)
	cfg := DefaultConfig()
	size := len(batch(valueAt(0)))
	cfg.IndexInterval = 2*size - 1 // an entry for every second batch
	l := open(t, m, cfg)
	appendValues(t, l, 6)
	must(t, l.Close())
	offsets, err := disk.ReadFile(m, l.path(0, indexSuffix))
	must(t, err)
	var want []byte
	for _, n := range []uint32{2, 4} {
		want = binary.BigEndian.AppendUint32(want, n)
		want = binary.BigEndian.AppendUint32(want, n*uint32(size))
	}
	if string(offsets) != string(want) {
		t.Errorf("offset index %x, want %x", offsets, want)
	}
	times, err := disk.ReadFile(m, l.path(0, timeSuffix))
	must(t, err)
	want = binary.BigEndian.AppendUint64(nil, uint64(testStart.UnixMilli()))
	want = binary.BigEndian.AppendUint32(want, 0) // the first batch has it, none is higher
	if string(times) != string(want) {
		t.Errorf("time index %x, want %x", times, want)
	}
}

func TestCheckpointFile(t *testing.T) {
	c := checkpoint{
		Start: 1, Recovery: 200, Segment: 100, Pos: 5000, OffsetEntries: 3, TimeEntries: 2, LastTime: 7,
		SinceIndex: 11, MaxTimestamp: 13, MaxOffset: 150, Created: 17, Snapshot: noProducers,
	}
	b := c.encode()
	got, err := parseCheckpoint(b)
	if err != nil || got != c {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range b {
		bad := append([]byte{}, b...)
		bad[i] ^= 1
		if _, err := parseCheckpoint(bad); err == nil {
			t.Errorf("a flip of byte %d is not seen", i)
		}
		if _, err := parseCheckpoint(b[:i]); err == nil {
			t.Errorf("%d bytes of %d are taken", i, len(b))
		}
	}
	c.Recovery = 50
	if _, err := parseCheckpoint(c.encode()); err == nil {
		t.Error("a recovery point below its segment is taken")
	}
}

// FuzzRecovery opens a log whose files are anything, and uses it.
func FuzzRecovery(f *testing.F) {
	m := disk.NewMem()
	must(f, m.MkdirAll("/data", 0o755))
	l, err := Open(m, testDir, smallConfig(), Options{})
	must(f, err)
	for i := range 6 {
		_, _, err := l.Append([][]byte{idempotent(3, 0, int32(i), valueAt(int64(i)))}, 1, testStart)
		must(f, err)
	}
	must(f, l.Close())
	seed := map[string][]byte{}
	for _, name := range []string{segmentName(0, logSuffix), segmentName(0, indexSuffix), segmentName(0, timeSuffix), segmentName(6, snapshotSuffix), checkpointFile, epochFile} {
		b, err := disk.ReadFile(m, testDir+"/"+name)
		must(f, err)
		seed[name] = b
	}
	add := func(log []byte, withPoint bool) {
		point := seed[checkpointFile]
		if !withPoint {
			point = nil
		}
		f.Add(log, seed[segmentName(0, indexSuffix)], seed[segmentName(0, timeSuffix)], seed[segmentName(6, snapshotSuffix)], point, seed[epochFile])
	}
	log := seed[segmentName(0, logSuffix)]
	add(log, true)
	add(log, false)
	add(log[:len(log)-5], false)
	add(flip(200)(append([]byte{}, log...)), true)
	add(flip(200)(append([]byte{}, log...)), false)
	add(append(append([]byte{}, log...), log...), false)
	add(nil, false)
	f.Fuzz(func(t *testing.T, log, offsets, times, snapshot, point, epochs []byte) {
		m := newDisk(t)
		must(t, m.MkdirAll(testDir, 0o755))
		for name, b := range map[string][]byte{
			segmentName(0, logSuffix): log, segmentName(0, indexSuffix): offsets, segmentName(0, timeSuffix): times,
			segmentName(6, snapshotSuffix): snapshot, checkpointFile: point, epochFile: epochs,
		} {
			if b != nil {
				must(t, disk.ReplaceFile(m, testDir+"/"+name, b))
			}
		}
		l, err := Open(m, testDir, smallConfig(), Options{})
		must(t, err)
		defer l.Close()
		end := l.EndOffset()
		if _, _, err := l.Append([][]byte{batch("more")}, 1<<31-1, testStart); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		_, _ = l.Verify(t.Context())
		_, _, _, _ = l.OffsetByTime(0)
		for offset := l.StartOffset(); offset <= end; {
			s, err := l.Read(offset, 100, end+1)
			var bad *CorruptError
			switch {
			case errors.As(err, &bad):
				if bad.Next <= offset {
					t.Fatalf("offset %d: go on at %d", offset, bad.Next)
				}
				offset = bad.Next
			case err != nil:
				t.Fatal(err)
			case s.Next <= offset:
				t.Fatalf("offset %d: slice ends at %d", offset, s.Next)
			default:
				offset = s.Next
			}
			s.Release()
		}
	})
}
