package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// A killed process leaves everything in the page cache. What the next one serves
// of it must not be lost to a power cut afterwards.
func TestKilledThenPowerCut(t *testing.T) {
	for n := range 30 {
		m := newDisk(t)
		l := open(t, m, smallConfig())
		appendValues(t, l, n)
		must(t, l.Checkpoint())
		appendValues(t, l, 17) // never flushed
		next := open(t, m, smallConfig())
		end := next.EndOffset()
		if end != int64(n+17) || next.FlushedOffset() != end {
			t.Fatalf("after a kill the log ends at %d, flushed to %d; want %d", end, next.FlushedOffset(), n+17)
		}
		for seed := range uint64(5) {
			wantDense(t, readAll(t, open(t, m.Crash(seed), smallConfig()), 0), 0, end)
		}
	}
}

// reads counts what is read of the logs.
func reads(m *disk.Mem, bytes *int64, ops *int) disk.FS {
	return disk.WithFaults(m, func(op disk.Op) error {
		if op.Kind == disk.OpRead && strings.HasSuffix(op.Name, logSuffix) {
			*bytes += op.Size
			*ops++
		}
		return nil
	})
}

func TestCleanStartReadsNothingOfTheLog(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	appendValues(t, l, 100)
	must(t, l.Close())
	var bytes int64
	var ops int
	writes := 0
	fsys := disk.WithFaults(reads(m, &bytes, &ops), func(op disk.Op) error {
		if op.Kind.Mutates() && op.Kind != disk.OpMkdir {
			writes++
		}
		return nil
	})
	again, err := Open(fsys, testDir, smallConfig(), Options{Clean: true})
	must(t, err)
	defer again.Close()
	if ops != 0 || writes != 0 {
		t.Errorf("%d reads of logs and %d changes, want none", ops, writes)
	}
	wantDense(t, readAll(t, again, 0), 0, 100)
	if again.LastEpoch() != 1 {
		t.Error("the epoch is", again.LastEpoch())
	}
}

func TestCrashStartReadsFromTheRecoveryPoint(t *testing.T) {
	m := newDisk(t)
	cfg := DefaultConfig()
	l := open(t, m, cfg)
	appendValues(t, l, 1000)
	must(t, l.Checkpoint())
	before := l.Size()
	appendValues(t, l, 10)
	flush(t, l)
	tail := l.Size() - before
	var bytes int64
	var ops int
	again, err := Open(reads(m.Crash(1), &bytes, &ops), testDir, cfg, Options{})
	must(t, err)
	defer again.Close()
	if bytes > 2*tail || ops == 0 {
		t.Errorf("read %d bytes of the log, beyond the recovery point there are %d", bytes, tail)
	}
	wantDense(t, readAll(t, again, 0), 0, 1010)
}

// damaged is one way to spoil a log's folder, and what must hold afterwards.
type damaged struct {
	spoil func(t *testing.T, m *disk.Mem)
	end   int64 // where the log ends; 0: at 100, as before
	bad   int   // damaged stretches that a look at everything finds
}

func remove(names ...string) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) {
		for _, n := range names {
			must(t, m.Remove(testDir+"/"+n))
		}
	}
}

func spoil(name string, change func(b []byte) []byte) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) { edit(t, m, testDir+"/"+name, change) }
}

func flip(at int) func(b []byte) []byte {
	return func(b []byte) []byte { b[at] ^= 0x40; return b }
}

func cutTo(n int) func(b []byte) []byte { return func(b []byte) []byte { return b[:n] } }

func grow(n int) func(b []byte) []byte {
	return func(b []byte) []byte { return append(b, make([]byte, n)...) }
}

// The log has 100 records of 121 bytes, 8 a segment: bases 0, 8, 16, … 96.
func TestDamageByName(t *testing.T) {
	const closed, active = "00000000000000000016", "00000000000000000096"
	size := len(batch(valueAt(0)))
	for name, c := range map[string]damaged{
		"nothing":                              {spoil: func(*testing.T, *disk.Mem) {}},
		"closed index missing":                 {spoil: remove(closed + ".index")},
		"closed time index missing":            {spoil: remove(closed + ".timeindex")},
		"all closed indexes missing":           {spoil: remove(closed+".index", closed+".timeindex")},
		"closed index empty":                   {spoil: spoil(closed+".index", cutTo(0))},
		"closed index short":                   {spoil: spoil(closed+".index", cutTo(8))},
		"closed index of broken length":        {spoil: spoil(closed+".index", cutTo(13))},
		"closed index long with zeros":         {spoil: spoil(closed+".index", grow(80))},
		"closed index wrong offset":            {spoil: spoil(closed+".index", flip(3))},
		"closed index wrong position":          {spoil: spoil(closed+".index", flip(7))},
		"closed index last entry wrong":        {spoil: spoil(closed+".index", func(b []byte) []byte { b[len(b)-1]++; return b })},
		"closed time index empty":              {spoil: spoil(closed+".timeindex", cutTo(0))},
		"closed time index wrong time":         {spoil: spoil(closed+".timeindex", flip(7))},
		"closed time index wrong offset":       {spoil: spoil(closed+".timeindex", flip(11))},
		"active index missing":                 {spoil: remove(active + ".index")},
		"active time index missing":            {spoil: remove(active + ".timeindex")},
		"active index short":                   {spoil: spoil(active+".index", cutTo(0))},
		"active index long":                    {spoil: spoil(active+".index", grow(16))},
		"active index wrong":                   {spoil: spoil(active+".index", flip(3))},
		"recovery point missing":               {spoil: remove(checkpointFile)},
		"recovery point unreadable":            {spoil: spoil(checkpointFile, flip(20))},
		"recovery point empty":                 {spoil: spoil(checkpointFile, cutTo(0))},
		"epochs missing":                       {spoil: remove(epochFile)},
		"epochs unreadable":                    {spoil: spoil(epochFile, flip(0))},
		"snapshots missing":                    {spoil: removeSuffix(snapshotSuffix)},
		"snapshots unreadable":                 {spoil: spoilSuffix(snapshotSuffix, flip(12))},
		"only logs left":                       {spoil: removeSuffix(indexSuffix, timeSuffix, snapshotSuffix, checkpointFile, epochFile)},
		"temporary files left":                 {spoil: leave("recovery-point.tmp", closed+".index.tmp", "00000000000000000024.snapshot.tmp")},
		"index without a log":                  {spoil: leave("00000000000000000999.index")},
		"somebody else's file":                 {spoil: leave("partition.metadata", "notes.txt")},
		"closed log: record flipped":           {spoil: spoil(closed+".log", flip(3*size+90)), bad: 1},
		"closed log: length flipped":           {spoil: spoil(closed+".log", flip(3*size+11)), bad: 1},
		"closed log: length huge":              {spoil: spoil(closed+".log", flip(3*size+8)), bad: 1},
		"closed log: magic flipped":            {spoil: spoil(closed+".log", flip(3*size+16)), bad: 1},
		"closed log: crc flipped":              {spoil: spoil(closed+".log", flip(3*size+17)), bad: 1},
		"closed log: offset flipped up":        {spoil: spoil(closed+".log", func(b []byte) []byte { b[3*size+7] += 2; return b }), bad: 1},
		"closed log: offset flipped down":      {spoil: spoil(closed+".log", func(b []byte) []byte { b[3*size+7]--; return b }), bad: 1},
		"closed log: first batch zero":         {spoil: spoil(closed+".log", func(b []byte) []byte { clear(b[:size]); return b }), bad: 1},
		"closed log: last batch zero":          {spoil: spoil(closed+".log", func(b []byte) []byte { clear(b[7*size:]); return b }), bad: 1},
		"closed log: two batches zero":         {spoil: spoil(closed+".log", func(b []byte) []byte { clear(b[2*size+5 : 3*size+70]); return b }), bad: 1},
		"closed log: two places":               {spoil: spoil(closed+".log", func(b []byte) []byte { return flip(5*size + 100)(flip(size + 100)(b)) }), bad: 2},
		"closed log: all zero":                 {spoil: spoil(closed+".log", func(b []byte) []byte { clear(b); return b }), bad: 1},
		"closed log: cut in a batch":           {spoil: spoil(closed+".log", cutTo(5*size+30)), bad: 1},
		"closed log: cut between batches":      {spoil: spoil(closed+".log", cutTo(5*size)), bad: 1},
		"closed log: empty":                    {spoil: spoil(closed+".log", cutTo(0)), bad: 1},
		"closed log: longer":                   {spoil: spoil(closed+".log", grow(33)), bad: 1},
		"closed log: first of all flipped":     {spoil: spoil("00000000000000000000.log", flip(70)), bad: 1},
		"active log: flipped below the point":  {spoil: spoil(active+".log", flip(size+90)), bad: 1},
		"active log: shorter than the point":   {spoil: spoil(active+".log", cutTo(2*size)), bad: 1},
		"active log: torn below the point":     {spoil: spoil(active+".log", cutTo(2*size+9)), bad: 1},
		"active log: garbage behind":           {spoil: spoil(active+".log", grow(500))},
		"active log: gone with the point":      {spoil: remove(active+".log", checkpointFile), bad: 1}, // its snapshot knows
		"active log: record flipped, no point": {spoil: both(spoil(active+".log", flip(size+90)), remove(checkpointFile)), bad: 1},
		"active log: last flipped, no point":   {spoil: both(spoil(active+".log", flip(3*size+90)), remove(checkpointFile)), bad: 1},
		"closed log: record flipped, no point": {spoil: both(spoil(closed+".log", flip(3*size+90)), remove(checkpointFile)), bad: 1},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func both(a, b func(*testing.T, *disk.Mem)) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) { a(t, m); b(t, m) }
}

func removeSuffix(suffixes ...string) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) {
		for _, name := range files(t, m) {
			if slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
				remove(name)(t, m)
			}
		}
	}
}

func spoilSuffix(suffix string, change func([]byte) []byte) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) {
		for _, name := range files(t, m) {
			if strings.HasSuffix(name, suffix) {
				spoil(name, change)(t, m)
			}
		}
	}
}

func leave(names ...string) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) {
		for _, name := range names {
			must(t, disk.ReplaceFile(m, testDir+"/"+name, []byte("left over")))
		}
	}
}

// run spoils a log of 100 records and holds against each other what was there
// and what is served.
func (c damaged) run(t *testing.T) {
	m := newDisk(t)
	cfg := smallConfig()
	l := open(t, m, cfg)
	for i := range 100 {
		appendTo(t, l, idempotent(5, 0, int32(i), valueAt(int64(i))))
	}
	must(t, l.Close())
	c.spoil(t, m)
	spoilt := logBytes(t, m)
	end := c.end
	if end == 0 {
		end = 100
	}
	for _, clean := range []bool{false, true} {
		l, err := Open(m, testDir, cfg, Options{Clean: clean})
		must(t, err)
		c.serve(t, l, end)
		must(t, l.Close())
		for name, b := range spoilt { // a closed log is never touched, whatever is in it
			if after, err := disk.ReadFile(m, testDir+"/"+name); !strings.Contains(name, "096") && (err != nil || !bytes.Equal(after, b)) {
				t.Errorf("%s was changed from %d to %d bytes (%v)", name, len(b), len(after), err)
			}
		}
	}
	if slices.Contains(files(t, m), "notes.txt") != strings.Contains(t.Name(), "somebody") {
		t.Error("a file that is not ours is gone")
	}
}

func logBytes(t *testing.T, m *disk.Mem) map[string][]byte {
	list := map[string][]byte{}
	for _, name := range files(t, m) {
		if strings.HasSuffix(name, logSuffix) {
			b, err := disk.ReadFile(m, testDir+"/"+name)
			must(t, err)
			list[name] = b
		}
	}
	return list
}

// serve reads everything from everywhere: what is sound is served, what is not
// is ErrCorrupt and names the next sound offset.
func (c damaged) serve(t *testing.T, l *Log, end int64) {
	t.Helper()
	if l.EndOffset() != end {
		t.Fatalf("the log ends at %d, want %d", l.EndOffset(), end)
	}
	if offset, _, _, err := l.OffsetByTime(testStart.UnixMilli()); err != nil && !errors.Is(err, ErrCorrupt) || err == nil && offset < 0 {
		t.Errorf("by time: %d, %v", offset, err)
	}
	// Whoever reads first finds the damage too: nothing is passed over in silence,
	// as an emptied segment once was.
	for from := l.StartOffset(); from < end; {
		s, err := l.Read(from, 300, end)
		var bad *CorruptError
		switch {
		case errors.As(err, &bad) && bad.Next > from:
			from = bad.Next
			continue
		case err != nil || s.Empty() || s.Base > from:
			t.Fatalf("reading at %d: %+v, %v", from, s, err)
		}
		from = s.Next
		s.Release()
	}
	damage, err := l.Verify(t.Context())
	must(t, err)
	if len(damage) != c.bad {
		t.Fatalf("%d damaged stretches, want %d: %v", len(damage), c.bad, damage)
	}
	lost := func(offset int64) *CorruptError {
		for _, d := range damage {
			if offset >= d.Offset && offset < d.Next {
				return d
			}
		}
		return nil
	}
	for offset := range end {
		s, err := l.Read(offset, 400, end)
		if d := lost(offset); d != nil {
			var got *CorruptError
			if !errors.As(err, &got) || got.Next != d.Next || !errors.Is(err, ErrCorrupt) {
				t.Fatalf("offset %d, which is damaged: %v", offset, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("offset %d: %v", offset, err)
		}
		b, err := s.ReadAll()
		must(t, err)
		s.Release()
		list, err := decodeBatches(b)
		if err != nil || len(list) == 0 || list[0] != (got{offset, valueAt(offset)}) {
			t.Fatalf("offset %d has %v (%v)", offset, list, err)
		}
		wantDense(t, list, offset, offset+int64(len(list)))
	}
	last := idempotent(5, 0, int32(end-1), valueAt(end-1))
	h, _ := record.ParseHeader(last)
	if lost(end-1) != nil {
		return
	}
	if v := l.Producers().Check(h); v != (Verdict{Duplicate, end - 1, end - 1}) {
		t.Errorf("the last batch again: %v", v)
	}
	if epoch, at := l.EpochEnd(1); epoch != 1 || at != end {
		t.Errorf("epoch 1 ends at %d, %d", epoch, at)
	}
}

func TestOpenErrors(t *testing.T) {
	cfg := smallConfig()
	cfg.SegmentBytes = 3
	if _, err := Open(newDisk(t), testDir, cfg, Options{}); err == nil || !strings.Contains(err.Error(), "segment_bytes: got 3") {
		t.Errorf("bad config: %v", err)
	}
	for _, kind := range []disk.OpKind{disk.OpMkdir, disk.OpReadDir, disk.OpOpen, disk.OpDatasync, disk.OpRename, disk.OpSyncDir} {
		failing := true
		m := newDisk(t)
		fsys := disk.WithFaults(m, func(op disk.Op) error {
			if failing && op.Kind == kind {
				return fs.ErrPermission
			}
			return nil
		})
		if _, err := Open(fsys, testDir, smallConfig(), Options{}); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: %v", kind, err)
		}
		failing = false
		l := open(t, fsys, smallConfig())
		appendValues(t, l, 3)
	}
}

// An unreadable disk is no reason to cut anything.
func TestReadErrorDuringRecoveryCutsNothing(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, DefaultConfig())
	appendValues(t, l, 10)
	flush(t, l)
	image := m.Crash(0)
	fsys := disk.WithFaults(image, func(op disk.Op) error {
		if op.Kind == disk.OpRead && strings.HasSuffix(op.Name, logSuffix) {
			return fmt.Errorf("unreadable sector")
		}
		return nil
	})
	if _, err := Open(fsys, testDir, DefaultConfig(), Options{}); err == nil {
		t.Fatal("opened a log that cannot be read")
	}
	wantDense(t, readAll(t, open(t, image, DefaultConfig()), 0), 0, 10)
}
