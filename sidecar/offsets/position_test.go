package offsets

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAckMovesTheLowEdge(t *testing.T) {
	p := Position{Low: 10}
	steps := []struct {
		ack   int64
		added bool
		low   int64
		acked []Range
	}{
		{9, false, 10, nil}, // below the low edge
		{12, true, 10, []Range{{12, 13}}},
		{12, false, 10, []Range{{12, 13}}},
		{14, true, 10, []Range{{12, 13}, {14, 15}}},
		{13, true, 10, []Range{{12, 15}}}, // joins two
		{20, true, 10, []Range{{12, 15}, {20, 21}}},
		{10, true, 11, []Range{{12, 15}, {20, 21}}},
		{11, true, 15, []Range{{20, 21}}}, // reaches a range
		{-1, false, 15, []Range{{20, 21}}},
	}
	for _, s := range steps {
		if added := p.Ack(s.ack); added != s.added || p.Low != s.low || !slices.Equal(p.Acked, s.acked) {
			t.Fatalf("after ack of %d: added %v, low %d, acked %v; want %v, %d, %v", s.ack, added, p.Low, p.Acked, s.added, s.low, s.acked)
		}
	}
	if p.HandOut < p.Low {
		t.Errorf("hand-out edge %d is below the low edge %d", p.HandOut, p.Low)
	}
	p.AckRange(15, 20)
	if p.Low != 21 || p.Acked != nil {
		t.Errorf("a gap closed: low %d, acked %v", p.Low, p.Acked)
	}
	if p.AckRange(30, 30); p.Acked != nil {
		t.Errorf("an empty range acked %v", p.Acked)
	}
}

func TestNextUnacked(t *testing.T) {
	p := Position{Low: 5, Acked: []Range{{7, 9}, {12, 20}}}
	for from, want := range map[int64]int64{0: 5, 5: 5, 6: 6, 7: 9, 8: 9, 9: 9, 12: 20, 19: 20, 25: 25} {
		if got := p.NextUnacked(from); got != want {
			t.Errorf("NextUnacked(%d) = %d, want %d", from, got, want)
		}
	}
	if n := p.AckedBetween(4, 14); n != 1+2+2 {
		t.Errorf("AckedBetween(4, 14) = %d, want 5", n)
	}
}

func TestAckForgetsRetries(t *testing.T) {
	p := Position{Low: 1}
	p.SetRetries([]Retry{{Offset: 5, Attempt: 2}, {Offset: 3, Attempt: 4}, {Offset: 0, Attempt: 9}})
	if len(p.Retries) != 2 || p.Retries[0].Offset != 3 {
		t.Fatalf("retries %v: want those of 3 and 5, in order", p.Retries)
	}
	p.Ack(3)
	if _, ok := p.Retry(3); ok || len(p.Retries) != 1 {
		t.Errorf("retries %v after 3 was acknowledged", p.Retries)
	}
	if r, ok := p.Retry(5); !ok || r.Attempt != 2 {
		t.Errorf("Retry(5) = %v, %v", r, ok)
	}
}

func TestMergeVerdicts(t *testing.T) {
	own := Position{Topic: "A", SeekEpoch: 2, Low: 10, HandOut: 12, Acked: []Range{{15, 16}}}
	for _, c := range []struct {
		name    string
		q       Position
		want    Position
		verdict Verdict
	}{
		{"union", Position{Topic: "A", SeekEpoch: 2, Low: 11, Acked: []Range{{13, 15}}, HandOut: 20, LeaderEpoch: 3},
			Position{Topic: "A", SeekEpoch: 2, Low: 11, Acked: []Range{{13, 16}}, HandOut: 20, LeaderEpoch: 3}, Merged},
		{"older seek", Position{Topic: "A", SeekEpoch: 1, Low: 100}, own, OlderSeek},
		{"newer seek rewinds", Position{Topic: "A", SeekEpoch: 3, Low: 1, HandOut: 1}, Position{Topic: "A", SeekEpoch: 3, Low: 1, HandOut: 1}, NewerSeek},
		{"other topic", Position{Topic: "B", SeekEpoch: 9, Low: 100}, own, OtherTopic},
		{"unknown topic", Position{SeekEpoch: 2, Low: 16}, Position{Topic: "A", SeekEpoch: 2, Low: 16, HandOut: 16}, Merged},
	} {
		got, v := own.Merge(c.q)
		if !got.Equal(c.want) || v != c.verdict {
			t.Errorf("%s: got %+v, %v; want %+v, %v", c.name, got, v, c.want, c.verdict)
		}
	}
	late := Position{Topic: "A", SeekEpoch: 2, Low: 11, Acked: []Range{{15, 17}}, HandOut: 99, Retries: []Retry{{Offset: 40, Attempt: 3}}, LeaderEpoch: 7}
	got, _ := own.MergeAcks(late)
	if want := (Position{Topic: "A", SeekEpoch: 2, Low: 11, HandOut: 12, Acked: []Range{{15, 17}}}); !got.Equal(want) {
		t.Errorf("MergeAcks took more than acks: %+v", got)
	}
}

func TestMergeKeepsTheHarderRetry(t *testing.T) {
	at := time.Unix(1000, 0)
	a := Position{Retries: []Retry{{1, 2, at}, {2, 5, time.Time{}}, {3, 1, at}}}
	b := Position{Retries: []Retry{{1, 2, at.Add(time.Second)}, {2, 4, at}, {4, 1, at}}, Acked: []Range{{3, 4}}}
	want := []Retry{{1, 2, at.Add(time.Second)}, {2, 5, time.Time{}}, {4, 1, at}}
	ab, _ := a.Merge(b)
	ba, _ := b.Merge(a)
	if !reflect.DeepEqual(ab.Retries, want) || !reflect.DeepEqual(ba.Retries, want) {
		t.Errorf("got %v and %v, want %v", ab.Retries, ba.Retries, want)
	}
}

func TestEncodeStaysSmall(t *testing.T) {
	p := Position{Topic: "01234567-89ab-cdef-0123-456789abcdef", SeekEpoch: math.MaxUint64, Low: 3, HandOut: math.MaxInt64, LeaderEpoch: math.MaxInt32}
	var rs []Retry
	for i := range int64(MaxRetries) {
		rs = append(rs, Retry{Offset: math.MaxInt64 - 800 + 2*i, Attempt: math.MaxInt32, NotBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)})
	}
	p.SetRetries(rs)
	for i := range int64(2000) {
		p.AckRange(10+1000*i, 10+1000*i+500)
	}
	b, dropped := p.Encode()
	if len(b) > MaxEncoded || dropped == 0 || dropped == 2000 {
		t.Fatalf("%d bytes, %d of 2,000 ranges dropped", len(b), dropped)
	}
	q, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(q.Acked, p.Acked[:2000-dropped]) || len(q.Retries) != storedRetries || q.HandOut != p.HandOut {
		t.Errorf("the lowest ranges must stay, and all retries: %d ranges, %d retries", len(q.Acked), len(q.Retries))
	}
	if all, err := Decode(p.EncodeAll()); err != nil || !slices.Equal(all.Acked, p.Acked) || len(all.Retries) != MaxRetries {
		t.Errorf("EncodeAll lost ranges: %v", err)
	}
	// What was passed over gives way to what was acknowledged.
	var over []Range
	for i := range int64(100) {
		over = append(over, Range{10 + 1000*i + 600, 10 + 1000*i + 700})
	}
	p.SetPassed(over)
	if b, again := p.Encode(); len(b) > MaxEncoded || again != dropped {
		t.Errorf("%d bytes, %d ranges dropped with ranges that were passed over, %d without", len(b), again, dropped)
	}
	if all, err := Decode(p.EncodeAll()); err != nil || !slices.Equal(all.Passed, over) {
		t.Errorf("EncodeAll lost what was passed over: %v", err)
	}
	few := Position{Low: 1, HandOut: 100_000_000}
	few.SetPassed(over)
	b, _ = few.Encode()
	if got, err := Decode(b); err != nil || !slices.Equal(got.Passed, over[:maxPassed]) {
		t.Errorf("passed over %v, %v", got.Passed, err)
	}
	// Without retries there is room for hundreds of ranges.
	p.Retries = nil
	if _, dropped := p.Encode(); 2000-dropped < 400 {
		t.Errorf("only %d ranges fit", 2000-dropped)
	}
}

func TestEncodeRoundsTimesUp(t *testing.T) {
	at := time.Unix(5, 1500).UTC()
	p := Position{Retries: []Retry{{Offset: 1, Attempt: 1, NotBefore: at}}}
	b, _ := p.Encode()
	q, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Retries[0].NotBefore; got.Before(at) || got.Sub(at) > time.Millisecond {
		t.Errorf("not before %v came back as %v", at, got)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ in, says string }{
		{`{"low":`, "unexpected end"},
		{`{"low":-1}`, "must not be negative"},
		{`{"low":1,"acked":[1]}`, "pairs"},
		{`{"low":1,"acked":[0,5]}`, "at least 1"},
		{`{"low":1,"acked":[9223372036854775807,1]}`, "below 2^63"},
		{`{"low":1,"acked":[1,9223372036854775806]}`, "below 2^63"},
		{`{"low":1,"passed":[0,0]}`, "passed range 0"},
		{`{"low":1,"passed":[0,2,0,1]}`, "passed range 1"},
		{`{"low":1,"retries":[[-1,1,0]]}`, "retry 0"},
		{`{"low":1,"retries":[[1,-1,0]]}`, "retry 0"},
	} {
		if p, err := Decode([]byte(c.in)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Decode(%s) = %+v, %v; want an error with %q", c.in, p, err, c.says)
		}
	}
	p, err := Decode([]byte(`{"low":7,"added_later":true}`))
	if err != nil || p.Low != 7 || p.HandOut != 7 {
		t.Errorf("an unknown field: %+v, %v", p, err)
	}
	var s Stored
	if err := json.Unmarshal([]byte(`{"generation":1,"position":{"low":-3}}`), &s); err == nil {
		t.Error("a bad position inside a stored value was taken")
	}
}

const span = 60 // offsets in the properties

// draw makes a position and the plain set of what it acknowledges.
func draw(t *rapid.T, epochs uint64) Position {
	p := Position{
		Topic:       rapid.SampledFrom([]string{"T", "T", "T", ""}).Draw(t, "topic"),
		SeekEpoch:   rapid.Uint64Range(0, epochs).Draw(t, "seek"),
		LeaderEpoch: rapid.Int32Range(0, 3).Draw(t, "leader epoch"),
	}
	for range rapid.IntRange(0, 10).Draw(t, "ranges") {
		from := rapid.Int64Range(0, span-1).Draw(t, "from")
		p.AckRange(from, from+rapid.Int64Range(0, 8).Draw(t, "run"))
	}
	p.HandOut = max(p.Low, rapid.Int64Range(0, span).Draw(t, "hand-out"))
	var passed []Range
	for from := range rapid.Int64Range(0, 8).Draw(t, "passed") {
		passed = append(passed, Range{from * 7, from*7 + rapid.Int64Range(1, 6).Draw(t, "run")})
	}
	p.SetPassed(passed)
	var rs []Retry
	for o := range rapid.Int64Range(0, 10).Draw(t, "retries") {
		rs = append(rs, Retry{Offset: o * 6, Attempt: rapid.IntRange(0, 3).Draw(t, "attempt"), NotBefore: time.UnixMilli(rapid.Int64Range(1, 3).Draw(t, "at")).UTC()})
	}
	p.SetRetries(rs)
	return p
}

// handed is what the position says was handed out.
func handed(p Position) (s [span + 20]bool) {
	for o := range s {
		s[o] = int64(o) < p.HandOut && !p.WasPassed(int64(o))
	}
	return s
}

func set(p Position) (s [span + 20]bool) {
	for o := range s {
		s[o] = p.IsAcked(int64(o))
	}
	return s
}

// checkShape fails unless the position is in its normal form.
func checkShape(t *rapid.T, p Position) {
	at := p.Low
	for _, r := range p.Acked {
		if r.From <= at || r.To <= r.From {
			t.Fatalf("ranges %v above %d are not sorted, disjoint and apart", p.Acked, p.Low)
		}
		at = r.To
	}
	if p.HandOut < p.Low || len(p.Retries) > MaxRetries {
		t.Fatalf("hand-out %d, low %d, %d retries", p.HandOut, p.Low, len(p.Retries))
	}
	at = -1
	for _, r := range p.Passed {
		if r.From <= at || r.To <= r.From || r.To > p.HandOut {
			t.Fatalf("passed %v below %d are not sorted, disjoint, apart and below", p.Passed, p.HandOut)
		}
		for o := r.From; o < r.To; o++ {
			if p.IsAcked(o) {
				t.Fatalf("passed over %d, which is acked in %+v", o, p)
			}
		}
		at = r.To
	}
	for i, r := range p.Retries {
		if p.IsAcked(r.Offset) || i > 0 && p.Retries[i-1].Offset >= r.Offset {
			t.Fatalf("retries %v: acked or not sorted", p.Retries)
		}
	}
}

func TestPropertyMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := draw(t, 0), draw(t, 0), draw(t, 0)
		sa, sb := set(a), set(b)
		merge := func(p, q Position) Position {
			out, v := p.Merge(q)
			if v != Merged {
				t.Fatalf("verdict %v", v)
			}
			checkShape(t, out)
			return out
		}
		ab := merge(a, b)
		var union [span + 20]bool
		for o := range union {
			union[o] = sa[o] || sb[o]
		}
		if set(ab) != union {
			t.Fatalf("%+v and %+v merge to %+v, which is not their union", a, b, ab)
		}
		ha, hb, hab := handed(a), handed(b), handed(ab)
		for o := range union {
			// Of what is acknowledged it does not matter.
			if !union[o] && hab[o] != (ha[o] || hb[o]) {
				t.Fatalf("%+v and %+v merge to %+v: was %d handed out?", a, b, ab, o)
			}
		}
		if ab.Low < max(a.Low, b.Low) {
			t.Fatalf("low fell to %d", ab.Low)
		}
		if ba := merge(b, a); !ab.Equal(ba) {
			t.Fatalf("not commutative: %+v, %+v", ab, ba)
		}
		if l, r := merge(ab, c), merge(a, merge(b, c)); !l.Equal(r) {
			t.Fatalf("not associative: %+v, %+v", l, r)
		}
		if again := merge(ab, b); !again.Equal(ab) {
			t.Fatalf("not idempotent: %+v, %+v", ab, again)
		}
		if set(a) != sa || set(b) != sb {
			t.Fatal("a merge changed what it merged")
		}
		acks, _ := a.MergeAcks(b)
		checkShape(t, acks)
		if set(acks) != union || acks.HandOut != max(a.HandOut, acks.Low) {
			t.Fatalf("MergeAcks: %+v", acks)
		}
	})
}

// TestPropertyNothingRewinds keeps a naive set for each seek epoch of what was
// acknowledged by anyone, and lets copies of a position be acked, merged, sought
// and stored lossily in any order.
func TestPropertyNothingRewinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies := make([]Position, rapid.IntRange(2, 4).Draw(t, "copies"))
		byAnyone := map[uint64]map[int64]bool{0: {}}
		start := map[uint64]int64{0: 0}
		for i := range copies {
			copies[i] = Position{Topic: "T"}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(copies)-1).Draw(t, "copy")
			p := &copies[i]
			before := p.Clone()
			switch rapid.SampledFrom([]string{"ack", "ack", "ack", "merge", "merge", "seek", "store"}).Draw(t, "do") {
			case "ack":
				o := rapid.Int64Range(0, span).Draw(t, "offset")
				added := p.Ack(o)
				if added == before.IsAcked(o) || !p.IsAcked(o) {
					t.Fatalf("ack of %d: added %v", o, added)
				}
				byAnyone[p.SeekEpoch][o] = true
			case "merge":
				q := copies[rapid.IntRange(0, len(copies)-1).Draw(t, "other")]
				*p, _ = p.Merge(q)
			case "seek":
				e := uint64(len(start))
				start[e] = rapid.Int64Range(0, span).Draw(t, "target")
				byAnyone[e] = map[int64]bool{}
				*p = Position{Topic: "T", SeekEpoch: e, Low: start[e], HandOut: start[e]}
			case "store":
				b, dropped := p.Encode()
				q, err := Decode(b)
				if err != nil || dropped != 0 || !q.Equal(*p) {
					t.Fatalf("stored %+v (%d dropped), read %+v: %v", *p, dropped, q, err)
				}
			}
			checkShape(t, *p)
			if p.SeekEpoch < before.SeekEpoch {
				t.Fatalf("seek epoch fell from %d to %d", before.SeekEpoch, p.SeekEpoch)
			}
			for o := range int64(span + 20) {
				if p.SeekEpoch == before.SeekEpoch && before.IsAcked(o) && !p.IsAcked(o) {
					t.Fatalf("offset %d rewound", o)
				}
				if p.IsAcked(o) && o >= start[p.SeekEpoch] && !byAnyone[p.SeekEpoch][o] {
					t.Fatalf("offset %d is acked in %+v, and nobody acked it", o, *p)
				}
			}
		}
	})
}

func TestPropertyDroppingOnlyForgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Position{Topic: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "topic")), Low: rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "low")}
		at := p.Low
		for range rapid.IntRange(0, 3000).Draw(t, "ranges") {
			from := at + 1 + int64(len(p.Acked)%7)
			at = from + 1 + int64(len(p.Acked)%1000)
			p.Acked = append(p.Acked, Range{from, at})
		}
		p.HandOut = at + 5
		b, dropped := p.Encode()
		if len(b) > MaxEncoded {
			t.Fatalf("%d bytes", len(b))
		}
		q, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		checkShape(t, q)
		if q.Low != p.Low || q.HandOut != p.HandOut || !slices.Equal(q.Acked, p.Acked[:len(p.Acked)-dropped]) {
			t.Fatalf("dropping %d ranges changed something else", dropped)
		}
		if dropped > 0 {
			// One more range would not have fit.
			if more := p.encode(len(q.Acked)+1, 0, 0); len(more) <= MaxEncoded {
				t.Fatalf("a range was dropped that fits: %d bytes", len(more))
			}
		}
		if back, _ := q.Merge(p); !back.Equal(p) {
			t.Fatal("merging the whole position back does not restore it")
		}
	})
}
