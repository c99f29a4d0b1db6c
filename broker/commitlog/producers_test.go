package commitlog

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"sidestream/broker/record"
)

func header(t testing.TB, b []byte) record.Header {
	t.Helper()
	h, err := record.Check(b, 0)
	must(t, err)
	return h
}

func TestSequenceCheck(t *testing.T) {
	// Producer 1, epoch 2, wrote batches of two records: sequences 0 to 13, at
	// offsets 0 to 13; the last five begin with 4.
	var p Producers
	for seq := int32(0); seq < 14; seq += 2 {
		h := header(t, idempotent(1, 2, seq, "a", "b"))
		h.BaseOffset = int64(seq)
		p.add(h, 0)
	}
	for name, c := range map[string]struct {
		b    []byte
		want Verdict
	}{
		"no producer":              {batch("a"), Verdict{Kind: New}},
		"next":                     {idempotent(1, 2, 14, "a"), Verdict{Kind: New}},
		"last again":               {idempotent(1, 2, 12, "a", "b"), Verdict{Duplicate, 12, 13}},
		"fifth last again":         {idempotent(1, 2, 4, "a", "b"), Verdict{Duplicate, 4, 5}},
		"sixth last again":         {idempotent(1, 2, 2, "a", "b"), Verdict{Kind: OldDuplicate}},
		"first again":              {idempotent(1, 2, 0, "a", "b"), Verdict{Kind: OldDuplicate}},
		"one missing":              {idempotent(1, 2, 15, "a"), Verdict{Kind: OutOfOrder}},
		"half of the last":         {idempotent(1, 2, 13, "a"), Verdict{Kind: OutOfOrder}},
		"overlaps":                 {idempotent(1, 2, 13, "a", "b"), Verdict{Kind: OutOfOrder}},
		"older epoch":              {idempotent(1, 1, 14, "a"), Verdict{Kind: StaleEpoch}},
		"newer epoch from 0":       {idempotent(1, 3, 0, "a"), Verdict{Kind: New}},
		"newer epoch from later":   {idempotent(1, 3, 14, "a"), Verdict{Kind: OutOfOrder}},
		"unknown producer from 0":  {idempotent(7, 0, 0, "a"), Verdict{Kind: UnknownProducer}},
		"unknown producer, later":  {idempotent(7, 0, 99, "a"), Verdict{Kind: UnknownProducer}},
		"other producer unchanged": {idempotent(1, 2, 14, "a", "b", "c"), Verdict{Kind: New}},
	} {
		if v := p.Check(header(t, c.b)); v != c.want {
			t.Errorf("%s: %v, want %v", name, v, c.want)
		}
	}
}

func TestSequenceWrapsAround(t *testing.T) {
	var p Producers
	h := header(t, idempotent(1, 0, math.MaxInt32-1, "a", "b", "c")) // …646, …647, 0
	h.BaseOffset = 10
	p.add(h, 0)
	for seq, want := range map[int32]Verdict{
		1:                 {Kind: New},
		0:                 {Kind: OutOfOrder},
		2:                 {Kind: OutOfOrder},
		math.MaxInt32 - 2: {Kind: OldDuplicate},
	} {
		if v := p.Check(header(t, idempotent(1, 0, seq, "a"))); v != want {
			t.Errorf("sequence %d: %v, want %v", seq, v, want)
		}
	}
	if v := p.Check(header(t, idempotent(1, 0, math.MaxInt32-1, "a", "b", "c"))); v != (Verdict{Duplicate, 10, 12}) {
		t.Errorf("the same again: %v", v)
	}
}

func TestStageCountsWhatItLetThrough(t *testing.T) {
	l := open(t, newDisk(t), DefaultConfig())
	appendTo(t, l, idempotent(1, 0, 0, "a"))
	s := l.Producers().Stage()
	var batches [][]byte
	for i, c := range []struct {
		b    []byte
		want Verdict
	}{
		{idempotent(1, 0, 1, "b", "c"), Verdict{Kind: New}},
		{batch("d"), Verdict{Kind: New}},
		{idempotent(1, 0, 1, "b", "c"), Verdict{Duplicate, 1, 2}}, // of one that is staged
		{idempotent(1, 0, 0, "a"), Verdict{Duplicate, 0, 0}},      // of one in the log
		{idempotent(1, 0, 5, "x"), Verdict{Kind: OutOfOrder}},
		{idempotent(1, 0, 3, "e"), Verdict{Kind: New}},
		{idempotent(2, 0, 0, "f"), Verdict{Kind: UnknownProducer}},
		{idempotent(2, 0, 0, "f"), Verdict{Duplicate, 5, 5}},
	} {
		v := s.Check(header(t, c.b))
		if v != c.want {
			t.Errorf("batch %d: %v, want %v", i, v, c.want)
		}
		if v.Kind.Append() {
			batches = append(batches, c.b)
		}
	}
	appendTo(t, l, batches...)
	for b, want := range map[string]Verdict{
		string(idempotent(1, 0, 1, "b", "c")): {Duplicate, 1, 2},
		string(idempotent(1, 0, 3, "e")):      {Duplicate, 4, 4},
		string(idempotent(2, 0, 0, "f")):      {Duplicate, 5, 5},
	} {
		if v := l.Producers().Check(header(t, []byte(b))); v != want {
			t.Errorf("after the append: %v, want %v", v, want)
		}
	}
}

// All five batches are known again after every kind of restart.
func TestDuplicatesAcrossRestarts(t *testing.T) {
	for name, stop := range map[string]func(t *testing.T, l *Log){
		"closed":             func(t *testing.T, l *Log) { must(t, l.Close()) },
		"killed":             func(*testing.T, *Log) {},
		"killed, checkpoint": func(t *testing.T, l *Log) { must(t, l.Checkpoint()) },
	} {
		for batches := range 40 {
			m := newDisk(t)
			l := open(t, m, smallConfig())
			for i := range batches {
				if i%7 == 6 {
					must(t, l.Checkpoint())
				}
				appendTo(t, l, idempotent(1, 0, int32(2*i), valueAt(1), valueAt(2)), idempotent(2, int16(i/10), int32(i%10), valueAt(3)))
			}
			flush(t, l)
			stop(t, l)
			l = open(t, m, smallConfig())
			for i := max(0, batches-keptBatches); i < batches; i++ {
				want := Verdict{Duplicate, int64(3 * i), int64(3*i + 1)}
				if v := l.Producers().Check(header(t, idempotent(1, 0, int32(2*i), valueAt(1), valueAt(2)))); v != want {
					t.Fatalf("%s after %d batches: batch %d is %v, want %v", name, batches, i, v, want)
				}
			}
			if batches == 0 {
				continue
			}
			if v := l.Producers().Check(header(t, idempotent(1, 0, int32(2*batches), "next"))); v.Kind != New {
				t.Fatalf("%s: the next batch is %v", name, v)
			}
			if last := (batches - 1) / 10; last > 0 {
				if v := l.Producers().Check(header(t, idempotent(2, int16(last-1), 10, "old"))); v.Kind != StaleEpoch {
					t.Fatalf("%s: an old epoch is %v", name, v)
				}
			}
		}
	}
}

func TestTruncationTakesSequencesBack(t *testing.T) {
	l := open(t, newDisk(t), smallConfig())
	for i := range 40 {
		appendTo(t, l, idempotent(1, 0, int32(i), valueAt(int64(i))))
	}
	must(t, l.TruncateTo(21))
	for seq, want := range map[int32]Verdict{
		21: {Kind: New}, 20: {Duplicate, 20, 20}, 16: {Duplicate, 16, 16}, 15: {Kind: OldDuplicate}, 22: {Kind: OutOfOrder},
	} {
		if v := l.Producers().Check(header(t, idempotent(1, 0, seq, valueAt(int64(seq))))); v != want {
			t.Errorf("sequence %d: %v, want %v", seq, v, want)
		}
	}
}

func TestSilentProducersAreForgotten(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ProducerExpiration = time.Hour
	l := open(t, newDisk(t), cfg)
	// What the producer's clock says does not count.
	old := idempotent(1, 0, 0, "a")
	if _, _, err := l.Append([][]byte{old}, 1, testStart.Add(-59*time.Minute)); err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, idempotent(2, 0, 0, "b"))
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{0, 2}, {time.Minute, 1}, {59 * time.Minute, 1}, {time.Hour, 0}} {
		_, err := l.Retain(testStart.Add(c.at))
		must(t, err)
		if n := l.Producers().Len(); n != c.want {
			t.Errorf("after %v there are %d producers, want %d", c.at, n, c.want)
		}
	}
}

// When a producer was last seen outlives a restart, however the log was left.
func TestExpirationAcrossRestarts(t *testing.T) {
	for name, stop := range map[string]func(l *Log){
		"closed": func(l *Log) { must(t, l.Close()) },
		"killed": func(l *Log) { must(t, l.Checkpoint()) },
	} {
		m := newDisk(t)
		cfg := DefaultConfig()
		cfg.ProducerExpiration = time.Hour
		l := open(t, m, cfg)
		_, _, err := l.Append([][]byte{idempotent(1, 0, 0, "a")}, 1, testStart.Add(-59*time.Minute))
		must(t, err)
		appendTo(t, l, idempotent(2, 0, 0, "b"))
		stop(l)
		l = open(t, m, cfg)
		for _, c := range []struct {
			at   time.Duration
			want int
		}{{0, 2}, {time.Minute, 1}, {time.Hour, 0}} {
			_, err := l.Retain(testStart.Add(c.at))
			must(t, err)
			if n := l.Producers().Len(); n != c.want {
				t.Errorf("%s, after %v: %d producers, want %d", name, c.at, n, c.want)
			}
		}
		if v := l.Producers().Check(header(t, idempotent(1, 0, 7, "later"))); v.Kind != UnknownProducer {
			t.Errorf("%s: a forgotten producer goes on: %v", name, v)
		}
	}
}

func TestSnapshotFiles(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	for i := range 100 {
		appendTo(t, l, idempotent(1, 0, int32(i), valueAt(int64(i))))
		if i%3 == 0 {
			flush(t, l)
		}
	}
	must(t, l.Close())
	l = open(t, m, smallConfig())
	var want []string
	for _, s := range l.segments[1:] { // the first begins before any producer
		want = append(want, segmentName(s.base, snapshotSuffix))
	}
	want = append(want, segmentName(100, snapshotSuffix))
	var have []string
	for _, name := range files(t, m) {
		if _, suffix, ok := parseName(name); ok && suffix == snapshotSuffix {
			have = append(have, name)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("snapshots %v, want one for each segment and the end: %v", have, want)
	}
	must(t, l.DeleteBefore(60))
	for _, name := range files(t, m) {
		if base, _, ok := parseName(name); ok && base < l.segments[0].base {
			t.Errorf("%s is left of a removed segment", name)
		}
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	var p Producers
	for id := range int64(20) {
		for i := range int32(id % 8) {
			h := header(t, idempotent(id, int16(id), 3*i, "a", "b", "c"))
			h.BaseOffset = id*100 + int64(3*i)
			p.add(h, 1000+id)
		}
	}
	b := p.encode()
	byID, err := decodeSnapshot(b)
	must(t, err)
	if got, want := fmt.Sprint(dump(byID)), fmt.Sprint(dump(p.byID)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for i := range b { // every byte counts
		bad := slices.Clone(b)
		bad[i] ^= 1
		if _, err := decodeSnapshot(bad); err == nil {
			t.Errorf("a flip of byte %d is not seen", i)
		}
		if _, err := decodeSnapshot(b[:i]); err == nil {
			t.Errorf("%d bytes of %d are taken", i, len(b))
		}
	}
	if (&Producers{}).encode() != nil {
		t.Error("no producers need no snapshot")
	}
}

func dump(byID map[int64]*producer) map[int64]producer {
	flat := map[int64]producer{}
	for id, p := range byID {
		flat[id] = *p
	}
	return flat
}

// A snapshot as Kafka's ProducerStateManager writes it: one entry a producer.
func TestSnapshotOfKafka(t *testing.T) {
	b := []byte{
		0, 1, // version
		0, 0, 0, 0, // checksum, below
		0, 0, 0, 1, // entries
		0, 0, 0, 0, 0, 0, 3, 232, // producer 1000
		0, 4, // epoch 4
		0, 0, 0, 9, // last sequence
		0, 0, 0, 0, 0, 0, 0, 109, // last offset
		0, 0, 0, 2, // offset delta
		0, 0, 1, 0x8b, 0xcf, 0xe5, 0x68, 0, // timestamp
		0xff, 0xff, 0xff, 0xff, // coordinator epoch
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // no transaction
	}
	crc := record.UpdateCRC(0, b[6:])
	b[2], b[3], b[4], b[5] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
	byID, err := decodeSnapshot(b)
	must(t, err)
	p := byID[1000]
	if p == nil || p.epoch != 4 || p.n != 1 || p.seen != 1700000000000 ||
		p.batches[0] != (batchRef{firstSeq: 7, lastSeq: 9, last: 109, delta: 2}) {
		t.Fatalf("got %+v", p)
	}
}
