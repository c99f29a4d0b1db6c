package window

import (
	"slices"
	"testing"
	"time"

	"sidestream/sidecar/offsets"
)

// TestReturnOfTheRest: what of a batch never reached the application comes
// again as if it had never been handed out; what did stays out.
func TestReturnOfTheRest(t *testing.T) {
	w, err := New[int64](offsets.Position{Topic: "T"}, Config{MaxMessages: 64})
	if err != nil {
		t.Fatal(err)
	}
	f := Fetched[int64]{Next: 6}
	for o := range int64(6) {
		f.Records = append(f.Records, Record[int64]{Offset: o, Size: 7, Ref: o})
	}
	if err := w.Add(f); err != nil {
		t.Fatal(err)
	}
	hs := w.Take(t0, 6, 0, lease30)
	no := hs[0].LeaseNo
	if w.Out(no) != 6 || w.Out(no+1) != 0 {
		t.Fatalf("out %d, want 6", w.Out(no))
	}
	if back := w.ReturnFrom(no, 2); !slices.Equal(back, []int64{2, 3, 4, 5}) {
		t.Fatalf("returned %v", back)
	}
	if w.Out(no) != 2 || w.Position().HandOut != 2 {
		t.Fatalf("out %d, edge %d; want 2 and 2", w.Out(no), w.Position().HandOut)
	}
	if !w.Prolong(no, t0.Add(2*lease30)) || w.Prolong(no+1, t0.Add(2*lease30)) {
		t.Fatal("a lease that is out was not prolonged, or one that is not was")
	}
	w.Prolong(no, t0.Add(time.Second)) // never earlier
	if back := w.Expire(t0.Add(2*lease30 - 1)); len(back) > 0 {
		t.Fatalf("%v expired before the end that the lease was prolonged to", back)
	}
	for _, o := range []int64{0, 1} {
		if _, err := w.Ack(no, o); err != nil {
			t.Fatal(err)
		}
	}
	if w.Out(no) != 0 || w.ReturnFrom(no, 0) != nil {
		t.Fatal("an acknowledged batch is out still")
	}
	again := w.Take(t0, 6, 0, lease30)
	if len(again) != 4 || again[0].Offset != 2 || again[0].Attempt != 1 {
		t.Fatalf("then %+v", again)
	}
}

// TestMoreUnderOneLease: what follows under a lease comes in order, goes back
// with what is before it, and does not make the lease last.
func TestMoreUnderOneLease(t *testing.T) {
	w, err := New[int64](offsets.Position{Topic: "T"}, Config{MaxMessages: 64})
	if err != nil {
		t.Fatal(err)
	}
	add := func(from, to int64) {
		f := Fetched[int64]{Next: to}
		for o := from; o < to; o++ {
			f.Records = append(f.Records, Record[int64]{Offset: o, Size: 7, Ref: o})
		}
		if err := w.Add(f); err != nil {
			t.Fatal(err)
		}
	}
	offs := func(hs []Handout[int64]) (offs []int64) {
		for _, h := range hs {
			offs = append(offs, h.Offset)
		}
		return offs
	}
	want := func(what string, got []Handout[int64], want ...int64) {
		t.Helper()
		if !slices.Equal(offs(got), want) {
			t.Fatalf("%s: %v, want %v", what, offs(got), want)
		}
	}
	add(0, 5)
	first := w.Take(t0, 2, 0, lease30)
	no := first[0].LeaseNo
	want("others get", w.Take(t0, 9, 0, lease30))
	want("more", w.More(t0, no, 2, 0, 0), 2, 3)
	if _, err := w.Ack(no, 1); err != nil {
		t.Fatal(err)
	}
	want("more after an ack in the middle", w.More(t0, no, 9, 0, 0), 4)
	want("more than there is", w.More(t0, no, 9, 0, 0))
	add(5, 8)
	want("under another lease", w.More(t0, no+1, 9, 0, 0))
	want("with little left of the lease", w.More(t0.Add(lease30/2+1), no, 9, 0, lease30/2))
	want("by bytes", w.More(t0, no, 9, 14, 0), 5, 6)
	if n := w.Out(no); n != 6 {
		t.Fatalf("%d are out, want 0 and 2 to 6", n)
	}
	back, _ := w.Nack(t0, no, []int64{3}, 0, "")
	if !slices.Equal(back, []int64{3, 4, 5, 6}) {
		t.Fatalf("a nack of 3 returns %v", back)
	}
	want("after a nack nothing follows before it", w.More(t0, no, 1, 0, 0), 3)
	again := w.More(t0, no, 9, 0, 0)
	if len(again) == 0 || again[0].Offset != 4 || again[0].Attempt != 2 || slices.Contains(offs(again), 7) {
		t.Fatalf("what came back is repeated as %+v", again)
	}
	if back := w.Expire(t0.Add(lease30)); len(back) != w.Waiting()-1 || back[0] != 0 {
		t.Fatalf("the end of the lease returns %v", back)
	}
	if w.More(t0.Add(lease30), no, 9, 0, 0) != nil {
		t.Fatal("more under a lease that is over")
	}
}
