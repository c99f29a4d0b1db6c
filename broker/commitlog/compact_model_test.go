package commitlog

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/broker/disk"
)

// TestCompactionModel holds a compacted log against the list of what was written,
// through compactions of any memory and time, truncations, deletions, restarts and
// power cuts: an offset has what was written there or nothing, and each key its
// last value.
func TestCompactionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := disk.NewMem()
		if err := errors.Join(mem.MkdirAll("/data", 0o755), mem.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		cfg := compactConfig()
		cfg.SegmentBytes = rapid.Int64Range(1024, 2000).Draw(t, "segment")
		cfg.MinCleanableRatio = rapid.Float64Range(0, 0.6).Draw(t, "ratio")
		cfg.DeleteRetention = time.Duration(rapid.IntRange(0, 3).Draw(t, "tombstones stay")) * time.Hour
		cfg.MaxCompactionLag = time.Duration(rapid.IntRange(0, 3).Draw(t, "lag")) * time.Hour
		fail := func(err error) {
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
		}
		l, err := Open(mem, testDir, cfg, compactOptions())
		fail(err)
		defer func() { _ = l.Close() }()
		var written []kv
		start, now, serial := int64(0), testStart, 0
		check := func() {
			t.Helper()
			if l.StartOffset() != start || l.EndOffset() != int64(len(written)) {
				t.Fatalf("the log has %d to %d, want %d to %d", l.StartOffset(), l.EndOffset(), start, len(written))
			}
			list, err := readStored(l)
			fail(err)
			var all []stored
			for offset := start; offset < int64(len(written)); offset++ {
				all = append(all, stored{offset, written[offset]})
			}
			for _, s := range list {
				if s.kv != written[s.offset] {
					t.Fatalf("offset %d has %v, written was %v", s.offset, s.kv, written[s.offset])
				}
			}
			if got, want := lastValues(list), lastValues(all); !maps.Equal(got, want) {
				t.Fatalf("the log says %v, written was %v", got, want)
			}
		}
		compacted := false
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"append": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "batches") {
					var records []kv
					for range rapid.IntRange(1, 4).Draw(t, "records") {
						serial++
						r := kv{fmt.Sprint("k", rapid.IntRange(0, 9).Draw(t, "key")), fmt.Sprintf("%d-%0*d", serial, rapid.IntRange(1, 60).Draw(t, "length"), 0)}
						if rapid.IntRange(0, 4).Draw(t, "tombstone") == 0 {
							r.value = ""
						}
						records = append(records, r)
					}
					b := keyed(records...)
					if rapid.Bool().Draw(t, "zipped") {
						b, err = zip(b)
						fail(err)
					}
					_, _, err := l.Append([][]byte{b}, 1, now)
					fail(err)
					written = append(written, records...)
				}
			},
			"checkpoint": func(*rapid.T) { fail(l.Checkpoint()) },
			"compact": func(t *rapid.T) {
				_, err := l.Compact(t.Context(), now, CompactOptions{MemoryBytes: 1})
				fail(err)
				compacted = true
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "minutes")) * time.Minute)
			},
			"truncate": func(t *rapid.T) {
				if compacted { // a replaced value would not come back, which is as it is
					t.Skip("after a compaction the values below are not those of the list")
				}
				to := rapid.Int64Range(start, int64(len(written))).Draw(t, "to")
				fail(l.TruncateTo(to))
				written = written[:l.EndOffset()]
				start = l.StartOffset()
			},
			"delete before": func(t *rapid.T) {
				to := rapid.Int64Range(start, int64(len(written))).Draw(t, "to")
				fail(l.DeleteBefore(to))
				start = to
			},
			"close and open": func(*rapid.T) {
				fail(l.Close())
				l, err = Open(mem, testDir, cfg, compactOptions())
				fail(err)
			},
			"power cut": func(t *rapid.T) {
				flushed := l.FlushedOffset()
				mem = mem.Crash(rapid.Uint64().Draw(t, "seed"))
				l, err = Open(mem, testDir, cfg, compactOptions())
				fail(err)
				if l.EndOffset() < flushed || l.EndOffset() > int64(len(written)) {
					t.Fatalf("ends at %d, flushed was %d of %d", l.EndOffset(), flushed, len(written))
				}
				written = written[:l.EndOffset()]
			},
			"verify": func(t *rapid.T) {
				if damage, err := l.Verify(t.Context()); err != nil || len(damage) > 0 {
					t.Fatal(damage, err)
				}
			},
		})
	})
}
