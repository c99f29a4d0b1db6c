package commitlog

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/broker/disk"
)

// model is a log as a slice.
type model struct {
	start, flushed int64
	ends           []int64 // offset after each batch
	values         []string
}

func (m *model) end() int64 { return int64(len(m.values)) }

// TestModel holds a log against a plain slice through appends, rolls, flushes,
// truncations, deletions, clean restarts and power cuts.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := disk.NewMem()
		if err := errors.Join(mem.MkdirAll("/data", 0o755), mem.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		cfg := smallConfig()
		cfg.IndexInterval = rapid.IntRange(1, 600).Draw(t, "interval")
		cfg.SegmentBytes = rapid.Int64Range(1024, 3000).Draw(t, "segment")
		fail := func(err error) {
			if err != nil {
				t.Helper()
				t.Fatal(err)
			}
		}
		l, err := Open(mem, testDir, cfg, Options{})
		fail(err)
		defer func() { _ = l.Close() }()
		var m model
		check := func() {
			t.Helper()
			if l.StartOffset() != m.start || l.EndOffset() != m.end() || l.FlushedOffset() != m.flushed {
				t.Fatalf("log %d to %d, flushed %d; model %d to %d, flushed %d",
					l.StartOffset(), l.EndOffset(), l.FlushedOffset(), m.start, m.end(), m.flushed)
			}
		}
		flushedMeanwhile := func() { // what removes segments flushes as it needs
			if now := l.FlushedOffset(); now == m.end() {
				m.flushed = now
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { check() },
			"append": func(t *rapid.T) {
				var batches [][]byte
				for range rapid.IntRange(1, 4).Draw(t, "batches") {
					var values []string
					for range rapid.IntRange(1, 4).Draw(t, "records") {
						values = append(values, rapid.StringN(0, 60, 120).Draw(t, "value"))
					}
					batches = append(batches, batch(values...))
					m.values = append(m.values, values...)
					m.ends = append(m.ends, m.end())
				}
				_, last, err := l.Append(batches, 1, testStart)
				fail(err)
				if last != m.end()-1 {
					t.Fatalf("last offset %d, want %d", last, m.end()-1)
				}
			},
			"flush": func(t *rapid.T) {
				_, err := l.Flush()
				fail(err)
				m.flushed = m.end()
			},
			"read": func(t *rapid.T) {
				from := rapid.Int64Range(m.start, m.end()).Draw(t, "from")
				upTo := m.end()
				if i := rapid.IntRange(-1, len(m.ends)-1).Draw(t, "up to batch"); i >= 0 {
					upTo = m.ends[i]
				}
				limit := rapid.IntRange(0, 2000).Draw(t, "max bytes")
				checkRead(t, l, &m, from, upTo, limit)
			},
			"read all": func(t *rapid.T) {
				list, err := readFrom(l, m.start, rapid.IntRange(1, 5000).Draw(t, "max bytes"))
				fail(err)
				for i, g := range list {
					if want := m.start + int64(i); g.offset != want || g.value != m.values[want] {
						t.Fatalf("offset %d has %q, want %d %q", g.offset, g.value, want, m.values[want])
					}
				}
				if int64(len(list)) != m.end()-m.start {
					t.Fatalf("%d records, want %d", len(list), m.end()-m.start)
				}
			},
			"out of range": func(t *rapid.T) {
				for _, offset := range []int64{m.start - 1, m.end() + 1} {
					if _, err := l.Read(offset, 10, m.end()); !errors.Is(err, ErrOutOfRange) {
						t.Fatalf("read at %d: %v", offset, err)
					}
				}
			},
			"truncate": func(t *rapid.T) {
				to := rapid.Int64Range(m.start, m.end()).Draw(t, "to")
				fail(l.TruncateTo(to))
				if to < m.end() {
					m.truncate(to)
				}
			},
			"delete before": func(t *rapid.T) {
				to := rapid.Int64Range(0, m.end()).Draw(t, "to")
				fail(l.DeleteBefore(to))
				m.start = max(m.start, to)
				flushedMeanwhile()
			},
			"retain by size": func(t *rapid.T) {
				cfg := cfg
				cfg.RetentionBytes = rapid.Int64Range(0, 6000).Draw(t, "bytes")
				fail(l.SetConfig(cfg))
				_, err := l.Retain(testStart)
				fail(err)
				flushedMeanwhile()
				if l.StartOffset() < m.start {
					t.Fatalf("the start went back to %d", l.StartOffset())
				}
				m.start = l.StartOffset()
				if size := l.Size(); len(l.segments) > 1 && size-l.segments[0].size >= cfg.RetentionBytes {
					t.Fatalf("%d bytes kept, retention is %d", size, cfg.RetentionBytes)
				}
			},
			"retain by age": func(t *rapid.T) {
				_, err := l.Retain(testStart) // dates what a power cut has left without
				fail(err)
				_, err = l.Retain(testStart.Add(8 * 24 * time.Hour))
				fail(err)
				m.start = m.end()
				flushedMeanwhile()
				if l.Size() != 0 {
					t.Fatalf("%d bytes kept", l.Size())
				}
			},
			"close and open": func(t *rapid.T) {
				fail(l.Close())
				l, err = Open(mem, testDir, cfg, Options{Clean: true})
				fail(err)
				m.flushed = m.end()
			},
			"verify": func(t *rapid.T) {
				if damage, err := l.Verify(t.Context()); err != nil || len(damage) > 0 {
					t.Fatal(damage, err)
				}
			},
			"power cut": func(t *rapid.T) {
				mem = mem.Crash(rapid.Uint64().Draw(t, "seed"))
				l, err = Open(mem, testDir, cfg, Options{})
				fail(err)
				end := l.EndOffset()
				if end < m.flushed || end > m.end() || end != 0 && !slices.Contains(m.ends, end) && end != m.start {
					t.Fatalf("after a power cut the log ends at %d, flushed was %d of %d", end, m.flushed, m.end())
				}
				if end < m.end() {
					m.truncate(end)
				}
				m.flushed = end
			},
		})
	})
}

// truncate cuts from the batch on that contains the offset.
func (m *model) truncate(to int64) {
	end := int64(0)
	n := 0
	for n < len(m.ends) && m.ends[n] <= to {
		end = m.ends[n]
		n++
	}
	m.ends, m.values = m.ends[:n], m.values[:end]
	m.flushed = end
	m.start = min(m.start, end)
}

// checkRead holds one read against the model.
func checkRead(t *rapid.T, l *Log, m *model, from, upTo int64, limit int) {
	s, err := l.Read(from, limit, upTo)
	if err != nil {
		t.Fatalf("read at %d: %v", from, err)
	}
	defer s.Release()
	if from >= upTo {
		if !s.Empty() {
			t.Fatalf("read at %d up to %d has %d bytes", from, upTo, s.Size)
		}
		return
	}
	b, err := s.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	list, err := decodeBatches(b)
	if err != nil {
		t.Fatal(err)
	}
	first := slices.IndexFunc(m.ends, func(end int64) bool { return end > from })
	base := int64(0)
	if first > 0 {
		base = m.ends[first-1]
	}
	if len(list) == 0 || list[0].offset != base || s.Base != base || s.Next > upTo || s.Next != list[len(list)-1].offset+1 {
		t.Fatalf("read at %d up to %d: %d to %d with %v, want from %d on", from, upTo, s.Base, s.Next, list, base)
	}
	for i, g := range list {
		if g.offset != base+int64(i) || g.value != m.values[g.offset] {
			t.Fatalf("offset %d has %q, want %q", g.offset, g.value, m.values[g.offset])
		}
	}
	if s.Size > limit && s.Next != m.ends[first] {
		t.Fatalf("%d bytes and more than one batch, the limit was %d", s.Size, limit)
	}
	// What was left out would not have fitted, or lies in another segment.
	next := slices.Index(m.ends, s.Next)
	if s.Next < upTo && l.segmentBase(s.Next) == l.segmentBase(s.Base) {
		more, err := l.Read(s.Next, 0, upTo)
		if err != nil {
			t.Fatal(err)
		}
		defer more.Release()
		if s.Size+more.Size <= limit {
			t.Fatalf("read %d bytes to batch %d, the next has %d, the limit is %d", s.Size, next, more.Size, limit)
		}
	}
}

// segmentBase is the base of the segment that holds an offset.
func (l *Log) segmentBase(offset int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segments[l.find(offset)].base
}
