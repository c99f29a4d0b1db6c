package window

import (
	"errors"
	"slices"
	"testing"
)

// What was declined comes again at once as if it had never been handed out,
// also when it had failed before; what is out below it stays out.
func TestDeclinedSpendsNoAttempt(t *testing.T) {
	w := newKeyed(t, "aab.a")
	first := take(t, w, 0, 9, "0:1 1:1 2:1 3:1 4:1")
	nack(t, w, 0, first, 0, 2)
	second := take(t, w, 0, 9, "2:2")
	for _, c := range []struct {
		lease    uint64
		declined []int64
		back     []int64
	}{{first, []int64{4, 1}, []int64{1, 4}}, {second, []int64{2}, []int64{2}}} {
		back, errs := w.Decline(c.lease, c.declined)
		if !slices.Equal(back, c.back) || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
			t.Fatalf("%v came back, %v", back, errs)
		}
	}
	// 0 and 3 are out.
	if p := w.Position(); p.HandOut != 4 {
		t.Errorf("the hand-out edge is %d", p.HandOut)
	}
	take(t, w, 0, 9, "2:2")
	ack(t, w, first, 0)
	fourth := take(t, w, 0, 9, "1:1 4:1")
	// Again, with one between that is not named: that was an attempt.
	if back, _ := w.Decline(fourth, []int64{1}); !slices.Equal(back, []int64{1, 4}) {
		t.Errorf("%v came back", back)
	}
	take(t, w, 0, 9, "1:1 4:2")
	for offset, want := range map[int64]error{0: ErrAcked, 1: ErrLeaseLost, 2: ErrUnknown} {
		if back, errs := w.Decline(fourth, []int64{offset}); len(back) > 0 || !errors.Is(errs[0], want) {
			t.Errorf("offset %d: %v, %v; want %v", offset, back, errs, want)
		}
	}
}
