package window

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/sidecar/offsets"
)

// newKeyed makes a window with order=key and a message for each letter, from
// offset 0 on: its key, or none for a dot.
func newKeyed(t *testing.T, keys string, change ...func(*Config)) *Window[string] {
	t.Helper()
	cfg := Config{Order: OrderKey}
	for _, f := range change {
		f(&cfg)
	}
	w, err := New[string](offsets.Position{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	addKeyed(t, w, keys)
	return w
}

func addKeyed(t *testing.T, w *Window[string], keys string) {
	t.Helper()
	f := Fetched[string]{Next: w.Next() + int64(len(keys))}
	for i, k := range keys {
		o := w.Next() + int64(i)
		f.Records = append(f.Records, Record[string]{Offset: o, Size: 10, Ref: fmt.Sprint("m", o), Key: uint64(k), Keyed: k != '.'})
	}
	if err := w.Add(f); err != nil {
		t.Fatal(err)
	}
}

func nack(t *testing.T, w *Window[string], second int, no uint64, delay time.Duration, offs ...int64) {
	t.Helper()
	_, errs := w.Nack(at(second), no, offs, delay, "no luck")
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	w := newKeyed(t, "aabbab..")
	first := take(t, w, 0, 3, "0:1 1:1 2:1")
	// Both keys are out, so only what has none comes.
	none := take(t, w, 1, 9, "6:1 7:1")
	if why := w.Why(at(1)); why != InFlightFull {
		t.Errorf("why %v", why)
	}
	// A slow message of a holds up a alone.
	ack(t, w, first, 2)
	take(t, w, 2, 9, "3:1 5:1")
	// A nack of 0 returns 1 too; the rest of a stays behind them.
	nack(t, w, 3, first, 10*time.Second, 0)
	take(t, w, 4, 9, "")
	addKeyed(t, w, "ca.")
	take(t, w, 5, 9, "8:1 10:1")
	// A message without a key that comes back brings nothing else back.
	nack(t, w, 6, none, 0, 6)
	take(t, w, 6, 9, "6:2")
	again := take(t, w, 13, 9, "0:2 1:2")
	ack(t, w, again, 0, 1)
	take(t, w, 14, 9, "4:1 9:1")
}

func TestKeysInOneBatchComeByOffset(t *testing.T) {
	w := newKeyed(t, "abcabcabc")
	no := take(t, w, 0, 5, "0:1 1:1 2:1 3:1 4:1")
	take(t, w, 0, 9, "")
	ack(t, w, no, 2)
	take(t, w, 0, 9, "5:1 8:1")
}

func TestExtendIsOfTheKey(t *testing.T) {
	w := newKeyed(t, "aab.")
	no := take(t, w, 0, 9, "0:1 1:1 2:1 3:1")
	if until, errs := w.Extend(at(20), no, []int64{0}, lease30); !until.Equal(at(50)) || errs[0] != nil {
		t.Fatalf("extended to %v, %v", until, errs)
	}
	// The lease of b and of the one without a key ends, that of a goes on.
	take(t, w, 30, 9, "2:2 3:2")
	take(t, w, 50, 9, "0:2 1:2")
}

func TestOrderNone(t *testing.T) {
	w, err := New[string](offsets.Position{}, Config{Order: OrderNone})
	if err != nil {
		t.Fatal(err)
	}
	add(t, w, 6, upTo(0, 6)...)
	first := take(t, w, 0, 3, "0:1 1:1 2:1")
	take(t, w, 0, 1, "3:1")
	nack(t, w, 1, first, 5*time.Second, 1)
	take(t, w, 2, 9, "4:1 5:1")
	if why := w.Why(at(2)); why != InFlightFull {
		t.Errorf("why %v", why)
	}
	take(t, w, 6, 9, "1:2")
	ack(t, w, first, 1) // late, and it counts
	if why := w.Why(at(6)); why != AtEnd {
		t.Errorf("why %v", why)
	}
}

// What is put off and how often it failed outlives the owner; what an earlier
// owner may have handed out uses up no attempt that is not certain.
func TestRestoreOfKeys(t *testing.T) {
	w := newKeyed(t, "aab.", func(c *Config) { c.MaxAttempts = 1 })
	first := take(t, w, 0, 1, "0:1")
	take(t, w, 0, 1, "2:1")
	nack(t, w, 0, first, 20*time.Second, 0) // which was its only attempt
	p := w.Position()
	restored, err := New[string](p, Config{Order: OrderKey, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	addKeyed(t, restored, "aab.")
	list := restored.Exhausted(at(1))
	if len(list) != 1 || list[0].Offset != 0 || list[0].Attempt != 1 {
		t.Errorf("exhausted %+v", list)
	}
	take(t, restored, 1, 9, "2:2 3:1")
	restored.Skip(0)
	take(t, restored, 1, 9, "1:1") // it was below the edge, and never out
}

func TestExhaustedSaysWhatTheApplicationSaid(t *testing.T) {
	w := newKeyed(t, "ab", func(c *Config) { c.MaxAttempts = 3 })
	for i, why := range []string{"first", "", "last"} {
		no := w.Take(at(i), 1, 0, lease30)[0].LeaseNo
		if _, errs := w.Nack(at(i), no, []int64{0}, 0, why); errs[0] != nil {
			t.Fatal(errs)
		}
	}
	list := w.Exhausted(at(3))
	if len(list) != 1 || list[0].FirstError != "first" || list[0].LastError != "last" || list[0].Attempt != 3 {
		t.Fatalf("exhausted %+v", list)
	}
	// A higher limit gives it back, a lower one takes the other.
	w.SetMaxAttempts(4)
	take(t, w, 3, 1, "0:4")
	take(t, w, 3, 1, "1:1")
	w.SetMaxAttempts(1)
	w.Expire(at(40))
	if list := w.Exhausted(at(40)); len(list) != 2 {
		t.Fatalf("exhausted %+v", list)
	}
	w.Retain(1)
	if why := w.Why(at(40)); why != DeadBlocked {
		t.Errorf("why %v", why)
	}
}

// A message that is put off for long, and fills the window with those of its
// key, is given up so that the other keys go on.
func TestFullBecauseOfOneKey(t *testing.T) {
	w := newKeyed(t, "a"+strings.Repeat("a", 60)+strings.Repeat("b", 39), func(c *Config) { c.MaxMessages, c.FullPatience = 100, time.Minute })
	no := take(t, w, 0, 1, "0:1")
	nack(t, w, 0, no, time.Hour, 0)
	for {
		hs := w.Take(at(1), 50, 0, lease30)
		if len(hs) == 0 {
			break
		}
		for _, h := range hs {
			ack(t, w, h.LeaseNo, h.Offset)
		}
	}
	if w.Full() || w.Exhausted(at(2)) != nil {
		t.Fatal("full with 61 of 100")
	}
	addKeyed(t, w, strings.Repeat("a", 30))
	if why := w.Why(at(2)); !w.Full() || why != Delayed {
		t.Fatalf("full %v, why %v", w.Full(), why)
	}
	for _, s := range []int{3, 40, 62} {
		if list := w.Exhausted(at(s)); list != nil {
			t.Fatalf("given up after %d s: %+v", s-3, list)
		}
	}
	list := w.Exhausted(at(63))
	if len(list) != 1 || list[0].Offset != 0 || list[0].Reason != ReasonWindowFull || list[0].LastError != "no luck" {
		t.Fatalf("given up %+v", list)
	}
	// It cannot be written: it goes on waiting for its time, and is tried again.
	w.Retain(0)
	if list := w.Exhausted(at(64)); list != nil {
		t.Fatalf("listed again %+v", list)
	}
	if list := w.Exhausted(at(124)); len(list) != 1 || !w.Skip(0) {
		t.Fatalf("given up %+v", list)
	}
	hs := w.Take(at(124), 100, 0, lease30)
	if len(hs) != 90 || hs[0].Offset != 1 {
		t.Fatalf("%d go on", len(hs))
	}
}

// With many gaps below what is out, new messages wait for it, so that what was
// acknowledged fits into what is stored; but never for what is not out.
func TestGapsAreBounded(t *testing.T) {
	w, err := New[string](offsets.Position{}, Config{Order: OrderNone})
	if err != nil {
		t.Fatal(err)
	}
	add(t, w, 2000, upTo(0, 2000)...)
	hs := w.Take(at(0), 2*maxRanges+2, 0, lease30)
	no := hs[0].LeaseNo
	for o := int64(1); o < int64(len(hs)); o += 2 {
		ack(t, w, no, o)
	}
	if got := len(w.Position().Acked); got <= maxRanges {
		t.Fatalf("%d ranges", got)
	}
	take(t, w, 1, 1, "")
	if why := w.Why(at(1)); why != InFlightFull {
		t.Errorf("why %v", why)
	}
	_, errs := w.Nack(at(1), no, upTo(0, int64(len(hs))), time.Hour, "")
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil && err != ErrAcked }) {
		t.Fatal(errs)
	}
	take(t, w, 2, 2, "514:1 515:1")
	take(t, w, 2, 2, "")
}

// Handing out costs no more when thousands of messages wait than when few do.
func BenchmarkTakeOfKeys(b *testing.B) {
	for _, held := range []int{200, 20_000} {
		b.Run(fmt.Sprint(held), func(b *testing.B) {
			w, err := New[int](offsets.Position{}, Config{Order: OrderKey, MaxMessages: 2 * held})
			if err != nil {
				b.Fatal(err)
			}
			fill := func() {
				f := Fetched[int]{Next: w.Next() + int64(held)}
				for o := w.Next(); o < f.Next; o++ {
					f.Records = append(f.Records, Record[int]{Offset: o, Key: uint64(o % 50), Keyed: true})
				}
				if err := w.Add(f); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for n := 0; n < b.N; {
				if w.Waiting() < held {
					b.StopTimer()
					fill()
					b.StartTimer()
				}
				for _, h := range w.Take(t0, 10, 0, lease30) {
					n++
					if _, err := w.Ack(h.LeaseNo, h.Offset); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
