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
