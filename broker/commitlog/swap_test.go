package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"sidestream/broker/disk"
)

// swapLeft makes a folder as a crash leaves it between the moment from which a
// compacted segment counts and its last rename, with the old segments there.
func swapLeft(t testing.TB) (m *disk.Mem, old, now []stored) {
	m = newDisk(t)
	l := openCompacted(t, m, compactConfig())
	for i := range 3 {
		appendTo(t, l, keyed(kv{"a", valueAt(int64(2 * i))}, kv{"b", valueAt(int64(2*i + 1))}))
		closeActive(t, l)
	}
	appendTo(t, l, keyed(kv{"c", "1"}))
	must(t, l.Checkpoint())
	old = contents(t, l)
	stop := errors.New("stop")
	swapping := false
	l.fs = disk.WithFaults(m, func(op disk.Op) error {
		swapping = swapping || op.Kind == disk.OpRename && op.To == l.path(0, logSuffix+swapSuffix)
		if swapping && op.Kind == disk.OpRemove {
			return stop
		}
		return nil
	})
	if _, err := l.Compact(t.Context(), testStart, CompactOptions{}); !errors.Is(err, stop) || !errors.Is(err, ErrOffline) {
		t.Fatal(err)
	}
	now = contents(t, l) // it is served under its name for swapping
	if _, _, err := l.Append([][]byte{keyed(kv{"d", "1"})}, 1, testStart); !errors.Is(err, ErrOffline) {
		t.Fatal(err)
	}
	l.closeFiles()
	return m, old, now
}

func TestStartFinishesACompaction(t *testing.T) {
	m, old, now := swapLeft(t)
	if len(now) >= len(old) || slices.Contains(files(t, m), segmentName(0, logSuffix+cleanedSuffix)) {
		t.Fatalf("%v, before %v", now, old)
	}
	l := openCompacted(t, m, compactConfig())
	if got := contents(t, l); !slices.Equal(got, now) || len(l.segments) != 2 {
		t.Errorf("%v in %d segments, want %v", got, len(l.segments), now)
	}
	appendTo(t, l, keyed(kv{"d", "1"}))
}

// A segment on its way in the place of others is damaged: they stay.
func TestDamagedSwapIsSetAside(t *testing.T) {
	m, old, _ := swapLeft(t)
	name := testDir + "/" + segmentName(0, logSuffix+swapSuffix)
	whole, err := disk.ReadFile(m, name)
	must(t, err)
	damages := map[string][]byte{"empty": nil, "cut": whole[:len(whole)-1], "twice": append(bytes.Clone(whole), whole...)}
	for i := range whole {
		if i < 12 || i > 20 && i%7 == 0 { // the leader epoch lies outside the checksum
			b := bytes.Clone(whole)
			b[i] ^= 1
			damages[fmt.Sprint("flipped at ", i)] = b
		}
	}
	for what, b := range damages {
		image := m.Crash(0)
		edit(t, image, name, func([]byte) []byte { return b })
		l, err := Open(image, testDir, compactConfig(), compactOptions())
		must(t, err)
		if got, err := readStored(l); err != nil || !slices.Equal(got, old) {
			t.Errorf("%s: %v, want %v (%v)", what, got, old, err)
		}
		if _, err := image.Stat(testDir + "/" + segmentName(0, logSuffix+setAsideSuffix)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		must(t, l.Close())
	}
}

// FuzzSwapRecovery opens a log with a closed segment, its indexes, what is to
// replace it and the note of how far it is compacted, which are anything, and
// compacts and reads it.
func FuzzSwapRecovery(f *testing.F) {
	m, _, _ := swapLeft(f)
	seed := map[string][]byte{}
	for _, name := range files(f, m) {
		b, err := disk.ReadFile(m, testDir+"/"+name)
		must(f, err)
		seed[name] = b
	}
	log, swap := seed[segmentName(0, logSuffix)], seed[segmentName(0, logSuffix+swapSuffix)]
	offsets, times := seed[segmentName(0, indexSuffix)], seed[segmentName(0, timeSuffix)]
	clean := cleanPoint{4, -1}.encode()
	f.Add(log, offsets, times, swap, clean)
	f.Add(log, offsets, times, []byte(nil), []byte(nil))
	f.Add(swap, offsets, times, log, cleanPoint{1 << 40, 5}.encode())
	f.Add(log, offsets[:0], times[:0], swap[:len(swap)-3], clean)
	f.Add(log[:0], offsets, times, swap, clean[:3])
	f.Fuzz(func(t *testing.T, log, offsets, times, swap, clean []byte) {
		m := newDisk(t)
		must(t, m.MkdirAll(testDir, 0o755))
		for name, b := range seed {
			must(t, disk.ReplaceFile(m, testDir+"/"+name, b))
		}
		for name, b := range map[string][]byte{
			segmentName(0, logSuffix): log, segmentName(0, indexSuffix): offsets, segmentName(0, timeSuffix): times,
			segmentName(0, logSuffix+swapSuffix): swap, cleanFile: clean,
		} {
			if b == nil {
				if err := m.Remove(testDir + "/" + name); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				continue
			}
			must(t, disk.ReplaceFile(m, testDir+"/"+name, b))
		}
		l, err := Open(m, testDir, compactConfig(), compactOptions())
		must(t, err)
		defer l.Close()
		for range 2 {
			readAround(t, l)
			if _, _, err := l.Append([][]byte{keyed(kv{"a", "more"})}, 1, testStart); err != nil {
				t.Fatal(err)
			}
			closeActive(t, l)
			if _, err := l.Compact(t.Context(), testStart, CompactOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		readAround(t, l)
		if l.EndOffset() < 9 {
			t.Fatalf("ends at %d, there were 7 records and 2 were added", l.EndOffset())
		}
	})
}

// readAround reads all that can be read.
func readAround(t *testing.T, l *Log) {
	t.Helper()
	for offset := l.StartOffset(); offset < l.EndOffset(); {
		s, err := l.Read(offset, 100, l.EndOffset())
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
}
