package window

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/sidecar/offsets"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

const lease30 = 30 * time.Second

// open makes a window at offset low with messages of 10 bytes at offsets.
func newWindow(t *testing.T, p offsets.Position, next int64, offs ...int64) *Window[string] {
	t.Helper()
	w, err := New[string](p, Config{MaxMessages: 100, MaxBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	add(t, w, next, offs...)
	return w
}

func add(t *testing.T, w *Window[string], next int64, offs ...int64) {
	t.Helper()
	f := Fetched[string]{Next: next, LeaderEpoch: 3}
	for _, o := range offs {
		f.Records = append(f.Records, Record[string]{Offset: o, Size: 10, Ref: fmt.Sprint("m", o)})
	}
	if err := w.Add(f); err != nil {
		t.Fatal(err)
	}
}

// show writes hand-outs as offset:attempt.
func show(hs []Handout[string]) string {
	var s []string
	for _, h := range hs {
		s = append(s, fmt.Sprintf("%d:%d", h.Offset, h.Attempt))
	}
	return strings.Join(s, " ")
}

func take(t *testing.T, w *Window[string], second int, max int, want string) uint64 {
	t.Helper()
	hs := w.Take(at(second), max, 0, lease30)
	if got := show(hs); got != want {
		t.Fatalf("at %d s Take(%d) gave %q, want %q", second, max, got, want)
	}
	if len(hs) == 0 {
		return 0
	}
	for _, h := range hs {
		if h.LeaseNo != hs[0].LeaseNo || !h.LeaseUntil.Equal(at(second).Add(lease30)) || h.Ref != fmt.Sprint("m", h.Offset) {
			t.Fatalf("hand-out %+v", h)
		}
	}
	return hs[0].LeaseNo
}

func ack(t *testing.T, w *Window[string], no uint64, offs ...int64) {
	t.Helper()
	for _, o := range offs {
		if added, err := w.Ack(no, o); !added || err != nil {
			t.Fatalf("ack of %d: %v, %v", o, added, err)
		}
	}
}

func upTo(from, to int64) (offs []int64) {
	for o := from; o < to; o++ {
		offs = append(offs, o)
	}
	return offs
}

func TestOneLeaseAtATime(t *testing.T) {
	w := newWindow(t, offsets.Position{Low: 5}, 10, upTo(5, 10)...)
	no := take(t, w, 0, 3, "5:1 6:1 7:1")
	if why := w.Why(at(1)); why != InFlightFull {
		t.Errorf("why %v", why)
	}
	take(t, w, 1, 3, "")
	ack(t, w, no, 6, 7) // out of order
	if p := w.Position(); p.Low != 5 || !slices.Equal(p.Acked, []offsets.Range{{From: 6, To: 8}}) || p.HandOut != 8 {
		t.Errorf("position %+v", p)
	}
	take(t, w, 1, 3, "")
	ack(t, w, no, 5)
	if added, err := w.Ack(no, 5); added || err != nil {
		t.Errorf("acknowledging twice: %v, %v", added, err)
	}
	no = take(t, w, 2, 9, "8:1 9:1")
	ack(t, w, no, 8, 9)
	if why := w.Why(at(2)); why != AtEnd || w.Position().Low != 10 {
		t.Errorf("why %v, position %+v", why, w.Position())
	}
	take(t, w, 2, 9, "")
	if m, b := w.Room(); m != 100 || b != 1000 || w.Next() != 10 {
		t.Errorf("room for %d messages, %d bytes; next %d", m, b, w.Next())
	}
}

func TestGapsCountAsAcked(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 20, 3, 4, 9) // nothing at 0-2, 5-8, 10-19
	if p := w.Position(); p.Low != 3 || w.Next() != 20 || p.LeaderEpoch != 3 {
		t.Errorf("position %+v, next %d", p, w.Next())
	}
	no := take(t, w, 0, 9, "3:1 4:1 9:1")
	ack(t, w, no, 9, 4)
	if p := w.Position(); p.Low != 3 || len(p.Acked) != 1 || p.Acked[0] != (offsets.Range{From: 4, To: 20}) {
		t.Errorf("position %+v", p)
	}
	ack(t, w, no, 3)
	if p := w.Position(); p.Low != 20 || p.Acked != nil {
		t.Errorf("position %+v", p)
	}
	add(t, w, 30) // a tail without records
	if w.Position().Low != 30 || w.Next() != 30 {
		t.Errorf("position %+v", w.Position())
	}
	add(t, w, 32, 28, 29, 30, 31) // a whole batch that begins before
	take(t, w, 1, 9, "30:1 31:1")
}

func TestAddRefusesWhatDoesNotFit(t *testing.T) {
	w := newWindow(t, offsets.Position{Low: 5}, 7, 5, 6)
	for _, f := range []Fetched[string]{
		{Next: 6},
		{Next: 9, Records: []Record[string]{{Offset: 8}, {Offset: 7}}},
		{Next: 9, Records: []Record[string]{{Offset: 8}, {Offset: 8}}},
		{Next: 9, Records: []Record[string]{{Offset: 9}}},
	} {
		if err := w.Add(f); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
	if w.Next() != 7 || w.Waiting() != 2 {
		t.Errorf("a refused fetch changed the window: next %d, %d waiting", w.Next(), w.Waiting())
	}
}

func TestNackReturnsAllAbove(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 20, upTo(0, 20)...)
	first := take(t, w, 0, 10, "0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1")
	back, errs := w.Nack(at(1), first, []int64{2}, 10*time.Second, "")
	if !slices.Equal(back, upTo(2, 10)) || errs[0] != nil {
		t.Fatalf("nack of 2 returned %v, %v", back, errs)
	}
	take(t, w, 2, 10, "") // 0 and 1 are still out
	ack(t, w, first, 0, 1)
	take(t, w, 2, 10, "")
	if why := w.Why(at(2)); why != Delayed {
		t.Errorf("why %v", why)
	}
	if wake, ok := w.NextWake(at(2)); !ok || !wake.Equal(at(11)) {
		t.Errorf("wakes at %v, %v", wake, ok)
	}
	// The rest of the ten is acknowledged late: the lease is over, they count.
	ack(t, w, first, 4, 5, 6, 7, 8, 9)
	if _, errs := w.Nack(at(3), first, []int64{3, 4, 17}, 0, ""); !errors.Is(errs[0], ErrLeaseLost) || !errors.Is(errs[1], ErrAcked) || !errors.Is(errs[2], ErrUnknown) {
		t.Errorf("nack after the lease: %v", errs)
	}
	if _, errs := w.Extend(at(3), first, []int64{3}, lease30); !errors.Is(errs[0], ErrLeaseLost) {
		t.Errorf("extend after the lease: %v", errs)
	}
	// 2 and 3 come again, nothing new with them.
	second := take(t, w, 11, 10, "2:2 3:2")
	if _, errs := w.Nack(at(12), second, []int64{2}, 0, ""); errs[0] != nil {
		t.Fatal(errs)
	}
	// 2 failed twice: now nothing comes behind it, and it costs 3 nothing.
	third := take(t, w, 12, 10, "2:3")
	take(t, w, 12, 10, "")
	ack(t, w, third, 2)
	fourth := take(t, w, 12, 10, "3:3")
	ack(t, w, fourth, 3)
	take(t, w, 13, 3, "10:1 11:1 12:1")
}

func TestNackOfAWholeBatch(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 5, upTo(0, 5)...)
	no := take(t, w, 0, 3, "0:1 1:1 2:1")
	back, errs := w.Nack(at(0), no, []int64{2, 0, 1, 4}, 0, "")
	if !slices.Equal(back, upTo(0, 3)) || errs[0] != nil || errs[1] != nil || errs[2] != nil || !errors.Is(errs[3], ErrUnknown) {
		t.Fatalf("returned %v, %v", back, errs)
	}
	take(t, w, 0, 5, "0:2 1:2 2:2")
}

func TestExpiryRepeatsTheBatchThenNarrowsIt(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 40, upTo(0, 40)...)
	first := take(t, w, 0, 16, "0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:1 11:1 12:1 13:1 14:1 15:1")
	if wake, ok := w.NextWake(at(1)); !ok || !wake.Equal(at(30)) {
		t.Errorf("wakes at %v, %v", wake, ok)
	}
	if back := w.Expire(at(29)); back != nil {
		t.Errorf("expired early: %v", back)
	}
	ack(t, w, first, 0, 3)
	if why := w.Why(at(30)); why != Ready {
		t.Errorf("why %v when the lease is over", why)
	}
	if back := w.Expire(at(30)); len(back) != 14 || back[0] != 1 || back[1] != 2 || back[2] != 4 {
		t.Errorf("expired %v", back)
	}
	take(t, w, 30, 20, "1:2 2:2 4:2 5:2 6:2 7:2 8:2 9:2 10:2 11:2 12:2 13:2 14:2 15:2")
	// It is over again, so the next is a quarter, and after it comes more.
	third := take(t, w, 60, 20, "1:3 2:3 4:3")
	ack(t, w, third, 1, 2, 4)
	fourth := take(t, w, 61, 20, "5:3 6:3 7:3 8:3 9:3 10:3 11:3 12:3 13:3 14:3 15:3")
	ack(t, w, first, 5) // by the lease of the first hand-out: it counts
	ack(t, w, fourth, upTo(6, 16)...)
	take(t, w, 62, 2, "16:1 17:1")
}

func TestExtend(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 5, upTo(0, 5)...)
	no := take(t, w, 0, 3, "0:1 1:1 2:1")
	until, errs := w.Extend(at(20), no, []int64{1, 4}, lease30)
	if !until.Equal(at(50)) || errs[0] != nil || !errors.Is(errs[1], ErrUnknown) {
		t.Fatalf("extended to %v, %v", until, errs)
	}
	if until, _ := w.Extend(at(20), no, []int64{1}, time.Second); !until.Equal(at(50)) {
		t.Errorf("an extension shortened the lease to %v", until)
	}
	take(t, w, 49, 3, "")
	take(t, w, 50, 3, "0:2 1:2 2:2")
}

func TestReturnSpendsNoAttempt(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 6, upTo(0, 6)...)
	no := take(t, w, 0, 2, "0:1 1:1")
	ack(t, w, no, 0)
	w.Expire(at(30))
	no = take(t, w, 30, 4, "1:2")
	if back := w.Return(no); !slices.Equal(back, []int64{1}) {
		t.Fatalf("returned %v", back)
	}
	no = take(t, w, 31, 4, "1:2")
	ack(t, w, no, 1)
	no = take(t, w, 31, 3, "2:1 3:1 4:1")
	ack(t, w, no, 2)
	if back := w.Return(no); !slices.Equal(back, []int64{3, 4}) {
		t.Fatalf("returned %v", back)
	}
	if w.Return(no) != nil {
		t.Error("returned twice")
	}
	if p := w.Position(); p.HandOut != 3 || len(p.Retries) != 0 {
		t.Errorf("position after the return: %+v", p)
	}
	take(t, w, 32, 9, "3:1 4:1 5:1") // and it holds nothing back
}

func TestUnknownReceipts(t *testing.T) {
	w := newWindow(t, offsets.Position{Low: 2}, 5, upTo(2, 5)...)
	no := take(t, w, 0, 1, "2:1")
	for _, c := range []struct {
		no     uint64
		offset int64
	}{{0, 2}, {no + 1, 2}, {no, 3}, {no, 99}, {no, -1}, {no + 1, 1}} {
		if added, err := w.Ack(c.no, c.offset); added || !errors.Is(err, ErrUnknown) {
			t.Errorf("ack of %d under lease %d: %v, %v", c.offset, c.no, added, err)
		}
	}
	if _, errs := w.Nack(at(0), no+1, []int64{2}, 0, ""); !errors.Is(errs[0], ErrUnknown) {
		t.Errorf("nack under a lease to come: %v", errs)
	}
}

func TestRestore(t *testing.T) {
	w := newWindow(t, offsets.Position{
		Topic: "A", SeekEpoch: 4, Low: 3, Acked: []offsets.Range{{From: 5, To: 7}}, HandOut: 9,
		Retries: []offsets.Retry{{Offset: 4, Attempt: 1, NotBefore: at(50)}, {Offset: 7, Attempt: 6, NotBefore: at(-9)}},
	}, 12, upTo(3, 12)...)
	// 3 was handed out before, 4 was put off, 5 and 6 are acknowledged.
	no := take(t, w, 0, 9, "3:2")
	p := w.Position()
	if p.Topic != "A" || p.SeekEpoch != 4 || p.HandOut != 9 {
		t.Errorf("position %+v", p)
	}
	want := []offsets.Retry{{Offset: 3, Attempt: 2}, {Offset: 4, Attempt: 1, NotBefore: at(50)}, {Offset: 7, Attempt: 6, NotBefore: at(-9)}}
	if !slices.Equal(p.Retries, want) {
		t.Errorf("retries %+v, want %+v", p.Retries, want)
	}
	ack(t, w, no, 3)
	take(t, w, 49, 9, "")
	no = take(t, w, 50, 9, "4:2 7:7") // 7 failed often: nothing behind it
	ack(t, w, no, 4, 7)
	no = take(t, w, 50, 9, "8:2") // to the hand-out edge
	ack(t, w, no, 8)
	take(t, w, 50, 9, "9:1 10:1 11:1")

	// Retries above what was fetched are kept.
	w = newWindow(t, offsets.Position{Low: 1, HandOut: 9, Retries: []offsets.Retry{{Offset: 6, Attempt: 3}}}, 3, 1, 2)
	if p := w.Position(); len(p.Retries) != 1 || p.Retries[0].Offset != 6 {
		t.Errorf("position %+v", p)
	}
}

func TestLimits(t *testing.T) {
	w := newWindow(t, offsets.Position{}, 60, upTo(0, 60)...)
	if m, b := w.Room(); m != 40 || b != 400 {
		t.Errorf("room for %d messages, %d bytes", m, b)
	}
	if hs := w.Take(at(0), 9, 35, lease30); len(hs) != 3 {
		t.Errorf("35 bytes hold %s", show(hs))
	} else if w.Return(hs[0].LeaseNo); w.InFlight() != 0 {
		t.Error("still out")
	}
	if hs := w.Take(at(0), 9, 1, lease30); len(hs) != 1 {
		t.Errorf("the first always comes: %s", show(hs))
	}
	if hs := w.Take(at(40), 0, 0, lease30); hs != nil {
		t.Errorf("Take(0) gave %s", show(hs))
	}
	add(t, w, 200, upTo(60, 200)...)
	if m, b := w.Room(); m != 0 || b != 0 || w.Bytes() != 2000 {
		t.Errorf("room for %d messages, %d bytes of %d", m, b, w.Bytes())
	}
}

func TestSkip(t *testing.T) {
	w := newWindow(t, offsets.Position{Acked: []offsets.Range{{From: 12, To: 14}}}, 8, upTo(0, 8)...)
	no := take(t, w, 0, 4, "0:1 1:1 2:1 3:1")
	if n, ref, ok := w.Message(2); n != 1 || ref != "m2" || !ok {
		t.Errorf("message 2: %d, %q, %v", n, ref, ok)
	}
	if !w.Skip(2) || w.Skip(2) || w.Skip(30) {
		t.Error("skip of 2, again, and of what is not there")
	}
	if _, _, ok := w.Message(2); ok || w.InFlight() != 3 {
		t.Error("a skipped message is still there")
	}
	// The log's start moved to 20: 7 messages go, and of 8–19 ten that may exist.
	if held, unfetched := w.SkipTo(20); held != 7 || unfetched != 10 {
		t.Errorf("skipped %d held, %d not fetched", held, unfetched)
	}
	if p := w.Position(); p.Low != 20 || w.Next() != 20 || w.InFlight() != 0 || w.Bytes() != 0 {
		t.Errorf("position %+v, next %d", p, w.Next())
	}
	if added, err := w.Ack(no, 1); added || err != nil {
		t.Errorf("a late ack: %v, %v", added, err)
	}
	if held, unfetched := w.SkipTo(10); held != 0 || unfetched != 0 || w.Next() != 20 {
		t.Error("skipping back")
	}
	add(t, w, 21, 20)
	take(t, w, 1, 9, "20:1")
}

func TestOrder(t *testing.T) {
	for _, o := range []Order{"", OrderPartition, OrderKey, OrderNone} {
		if err := CheckOrder(o); err != nil {
			t.Error(err)
		}
	}
	for o, says := range map[Order]string{"fifo": "unknown"} {
		if err := CheckOrder(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", o, err)
		}
		if _, err := New[int](offsets.Position{}, Config{Order: o}); err == nil {
			t.Errorf("a window with order %s", o)
		}
	}
	if Delayed.String() != "delayed" {
		t.Error(Delayed.String())
	}
}

func TestPositionKeepsTheLowestRetries(t *testing.T) {
	w, err := New[string](offsets.Position{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 2 * offsets.MaxRetries
	add(t, w, n, upTo(0, n)...)
	no := take(t, w, 0, n, show(w.peek(n)))
	if _, errs := w.Nack(at(0), no, upTo(0, n), time.Second, ""); errs[n-1] != nil {
		t.Fatal(errs)
	}
	p := w.Position()
	if len(p.Retries) != offsets.MaxRetries || p.Retries[63].Offset != 63 {
		t.Errorf("%d retries, the last %+v", len(p.Retries), p.Retries[len(p.Retries)-1])
	}
}

// peek is what a fresh window hands out at first.
func (w *Window[R]) peek(n int64) (hs []Handout[string]) {
	for o := range n {
		hs = append(hs, Handout[string]{Offset: o, Attempt: 1})
	}
	return hs
}

func TestExhausted(t *testing.T) {
	w, err := New[string](offsets.Position{}, Config{MaxAttempts: 2})
	if err != nil {
		t.Fatal(err)
	}
	add(t, w, 3, 0, 1, 2)
	for range 2 {
		no := w.Take(at(0), 1, 0, lease30)[0].LeaseNo
		if list := w.Exhausted(at(0)); list != nil {
			t.Fatalf("out under a lease, and listed: %v", list)
		}
		if _, errs := w.Nack(at(0), no, []int64{0}, 0, ""); errs[0] != nil {
			t.Fatal(errs)
		}
	}
	take(t, w, 1, 9, "")
	if why := w.Why(at(1)); why != Delayed {
		t.Errorf("why %v before anybody tried", why)
	}
	want := []Exhausted[string]{{Offset: 0, Attempt: 2, Reason: ReasonMaxAttempts, Ref: "m0"}}
	if list := w.Exhausted(at(1)); !slices.Equal(list, want) || w.Exhausted(at(1)) != nil {
		t.Fatalf("listed %+v, want %+v once", list, want)
	}
	w.Retain(0)
	if why := w.Why(at(1)); why != DeadBlocked {
		t.Errorf("why %v", why)
	}
	take(t, w, 1, 9, "")
	if list := w.Exhausted(at(2)); !slices.Equal(list, want) || !w.Skip(0) {
		t.Fatalf("listed again %+v, want %+v", list, want)
	}
	w.Retain(0)
	take(t, w, 2, 9, "1:1 2:1")
}

// What a message did that follows a failed one in its order is not known: it comes
// back with it and again with the next failure, and is not given up for that. Once
// a poisoned message took all that was pulled behind it to the dead letters.
func TestFollowersAreNotGivenUp(t *testing.T) {
	fail := map[string]func(w *Window[string], now time.Time, no uint64) time.Time{
		"nack": func(w *Window[string], now time.Time, no uint64) time.Time {
			w.Nack(now, no, []int64{0}, 0, "bad")
			return now
		},
		"expiry": func(w *Window[string], now time.Time, no uint64) time.Time {
			now = now.Add(lease30)
			w.Expire(now)
			return now
		},
	}
	for name, fails := range fail {
		for _, restart := range []bool{false, true} {
			cfg := Config{MaxMessages: 64, MaxAttempts: 2}
			w, err := New[string](offsets.Position{Topic: "T"}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			now := t0
			add(t, w, 4, 0, 1, 2, 3)
			for range 2 {
				hs := w.Take(now, 10, 0, lease30)
				if len(hs) != 4 {
					t.Fatalf("%s: %d were handed out", name, len(hs))
				}
				now = fails(w, now, hs[0].LeaseNo)
			}
			if restart {
				b, _ := w.Position().Encode()
				p, err := offsets.Decode(b)
				if err != nil {
					t.Fatal(err)
				}
				if w, err = New[string](p, cfg); err != nil {
					t.Fatal(err)
				}
				add(t, w, 4, 0, 1, 2, 3)
			}
			for range 2 { // what follows is looked at when the first is gone
				for _, e := range w.Exhausted(now) {
					if e.Offset != 0 {
						t.Errorf("%s, restart %v: %d is given up after %d attempts", name, restart, e.Offset, e.Attempt)
					}
					w.Skip(e.Offset)
				}
			}
			hs := w.Take(now, 10, 0, lease30)
			if len(hs) == 0 || hs[0].Offset != 1 {
				t.Fatalf("%s, restart %v: %v follows", name, restart, hs)
			}
			// It fails by itself now.
			w.Nack(now, hs[0].LeaseNo, []int64{1}, 0, "bad too")
			if es := w.Exhausted(now); len(es) != 1 || es[0].Offset != 1 {
				t.Errorf("%s, restart %v: %v are given up", name, restart, es)
			}
		}
	}
}
