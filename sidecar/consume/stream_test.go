package consume

import (
	"testing"
	"time"

	"sidestream/sdk/api"
)

// stream opens a stream and gives its next messages, however they come.
func (h *host) stream(r StreamRequest) *Stream {
	h.lab.t.Helper()
	st, err := h.m.OpenStream(h.lab.t.Context(), r)
	if err != nil {
		h.lab.t.Fatal(err)
	}
	return st
}

// nextSome waits for messages on a stream.
func nextSome(t *testing.T, st *Stream) StreamBatch {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		b, err := st.Next(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Messages) > 0 {
			return b
		}
	}
	t.Fatal("nothing comes on the stream")
	return StreamBatch{}
}

// nothing checks that a stream gives no messages now, for a reason.
func nothing(t *testing.T, st *Stream, want api.Reason) {
	t.Helper()
	b, err := st.Next(t.Context(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Messages) > 0 || b.Reason == nil || *b.Reason != want {
		t.Fatalf("%d messages, reason %v; want none, %s", len(b.Messages), b.Reason, want)
	}
}

// counter is a counter's sum over its labels.
func (h *host) counter(name string) (sum float64) {
	h.lab.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.lab.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func receiptsIn(b StreamBatch) []string { return receiptsOf(&Delivery{Pulled: b.Pulled}) }

func TestStreamWindow(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 1})
	h := l.host("a")
	l.produce("t", 0, 0, 10)
	st := h.stream(StreamRequest{Group: "g", Topic: "t", Window: 4})
	defer st.Close(1 << 62)
	b := nextSome(t, st)
	if offsetsOf(b.Messages) != "[0 1 2 3]" || b.First != 1 || b.Held != 4 {
		t.Fatalf("first %s from number %d, %d held", offsetsOf(b.Messages), b.First, b.Held)
	}
	nothing(t, st, api.ReasonInFlightFull)
	h.ack("g", "t", receiptsIn(b)...)
	b = nextSome(t, st)
	if offsetsOf(b.Messages) != "[4 5 6 7]" || b.First != 5 {
		t.Fatalf("then %s from number %d", offsetsOf(b.Messages), b.First)
	}
	// The window moves on with each message, though the partition's order allows
	// one lease at a time.
	h.ack("g", "t", receiptsIn(b)[0])
	if c := nextSome(t, st); offsetsOf(c.Messages) != "[8]" || c.First != 9 || c.Held != 4 {
		t.Fatalf("after one ack %s from number %d, %d held", offsetsOf(c.Messages), c.First, c.Held)
	}
	// A nack settles too; what it brings back comes again.
	if _, err := h.m.Nack(t.Context(), "g", "t", api.Receipts{Receipts: receiptsIn(b)[1:2]}); err != nil {
		t.Fatal(err)
	}
	var again []api.Message
	for len(again) < 4 {
		again = append(again, nextSome(t, st).Messages...)
	}
	if offsetsOf(again) != "[5 6 7 8]" || again[0].Attempt != 2 {
		t.Fatalf("after the nack %s, attempt %d", offsetsOf(again), again[0].Attempt)
	}
}

// TestStreamOfWhatComesLater: what is written while messages are out comes
// without waiting for their acknowledgement, and goes back with the rest.
func TestStreamOfWhatComesLater(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 1})
	h := l.host("a")
	l.produce("t", 0, 0, 1)
	st := h.stream(StreamRequest{Group: "g", Topic: "t", Window: 10})
	nextSome(t, st)
	for i := 1; i < 5; i++ {
		l.produce("t", 0, i, 1)
		if b := nextSome(t, st); b.Messages[0].Offset != int64(i) || b.Held != i+1 {
			t.Fatalf("then %s, %d held", offsetsOf(b.Messages), b.Held)
		}
	}
	if d := h.pull(PullRequest{Group: "g", Topic: "t"}); len(d.Messages) > 0 {
		t.Fatalf("another puller gets %s past what is out", offsetsOf(d.Messages))
	}
	st.Close(2)
	if h.counter("sidestream_consume_messages_returned_total") != 3 {
		t.Fatal("what never arrived did not come back")
	}
}

// TestStreamOfAHangingReader: its leases end, others get the messages, and it
// is given no more until it shows a sign of life.
func TestStreamOfAHangingReader(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 1})
	h := l.host("a")
	l.produce("t", 0, 0, 8)
	st := h.stream(StreamRequest{Group: "g", Topic: "t", Window: 4, Lease: 300 * time.Millisecond})
	defer st.Close(1 << 62)
	b := nextSome(t, st)
	d := h.pullSome(PullRequest{Group: "g", Topic: "t", Max: 4})
	if offsetsOf(d.Messages) != "[0 1 2 3]" || d.Messages[0].Attempt != 2 {
		t.Fatalf("another puller gets %s, attempt %d", offsetsOf(d.Messages), d.Messages[0].Attempt)
	}
	h.ackAll("g", "t", d)
	nothing(t, st, api.ReasonInFlightFull)
	h.ack("g", "t", receiptsIn(b)[0]) // late, and no error
	if b = nextSome(t, st); offsetsOf(b.Messages) != "[4 5 6 7]" {
		t.Fatalf("after a sign of life %s", offsetsOf(b.Messages))
	}
}

// TestStreamSignsOfLife: an application that settles one message after the
// other keeps those that wait behind.
func TestStreamSignsOfLife(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 2})
	h := l.host("a")
	l.produce("t", 0, 0, 3)
	l.produce("t", 1, 0, 3)
	st := h.stream(StreamRequest{Group: "g", Topic: "t", Window: 6, Lease: 2 * time.Second})
	defer st.Close(1 << 62)
	var rs []string
	for len(rs) < 6 {
		rs = append(rs, receiptsIn(nextSome(t, st))...)
	}
	began := time.Now()
	for _, r := range rs {
		time.Sleep(500 * time.Millisecond)
		if a := h.ack("g", "t", r); a.Failed > 0 {
			t.Fatalf("%v: %+v", time.Since(began), a.Results[0].Error)
		}
	}
	if n := h.counter("sidestream_consume_leases_expired_total"); n > 0 {
		t.Fatalf("%v messages expired in %s", n, time.Since(began))
	}
}

func TestStreamReturnsWhatNeverArrived(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 1})
	h := l.host("a")
	l.produce("t", 0, 0, 6)
	st := h.stream(StreamRequest{Group: "g", Topic: "t"})
	b := nextSome(t, st)
	if len(b.Messages) != 6 {
		t.Fatalf("%d messages", len(b.Messages))
	}
	st.Close(2)
	h.ack("g", "t", receiptsIn(b)[:2]...)
	d := h.pullSome(PullRequest{Group: "g", Topic: "t"})
	if offsetsOf(d.Messages) != "[2 3 4 5]" || d.Messages[0].Attempt != 1 {
		t.Fatalf("then %s, attempt %d; want 2 to 5 with no attempt spent", offsetsOf(d.Messages), d.Messages[0].Attempt)
	}
}

func TestStreamThatAcknowledgesItself(t *testing.T) {
	l := newLab(t, map[string]int32{"t": 1})
	h := l.host("a")
	l.produce("t", 0, 0, 6)
	st := h.stream(StreamRequest{Group: "g", Topic: "t", Window: 3, AutoAck: true})
	b := nextSome(t, st)
	if offsetsOf(b.Messages) != "[0 1 2]" || b.Messages[0].Receipt != "" {
		t.Fatalf("%s, receipt %q", offsetsOf(b.Messages), b.Messages[0].Receipt)
	}
	nothing(t, st, api.ReasonInFlightFull)
	if err := st.Left(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if b = nextSome(t, st); offsetsOf(b.Messages) != "[3 4 5]" {
		t.Fatalf("then %s", offsetsOf(b.Messages))
	}
	st.Close(3)
	if d := h.pullSome(PullRequest{Group: "g", Topic: "t"}); offsetsOf(d.Messages) != "[3 4 5]" || d.Messages[0].Attempt != 1 {
		t.Fatalf("what never left comes as %s, attempt %d", offsetsOf(d.Messages), d.Messages[0].Attempt)
	}
}

func TestStreamOfSeveralTopics(t *testing.T) {
	l := newLab(t, map[string]int32{"orders.eu": 1, "orders.us": 1, "other": 1})
	h := l.host("a")
	st := h.stream(StreamRequest{Group: "g", Topic: "orders.*", Window: 4})
	defer st.Close(1 << 62)
	seen := map[string]int{}
	var receipts []string
	for round := range 3 {
		for _, topic := range []string{"orders.eu", "orders.us", "other"} {
			l.produce(topic, 0, round, 1)
		}
		for len(receipts) < 2 {
			b := nextSome(t, st)
			for _, m := range b.Messages {
				seen[m.ID]++
			}
			receipts = append(receipts, receiptsIn(b)...)
		}
		if round == 0 {
			receipts = receipts[:0] // these stay out
			continue
		}
		if r := h.ack("g", "orders.*", receipts...); r.Failed > 0 {
			t.Fatalf("%+v", r)
		}
		receipts = receipts[:0]
	}
	if len(seen) != 6 || seen["orders.eu/0/2"] != 1 || seen["orders.us/0/2"] != 1 {
		t.Fatalf("seen %v", seen)
	}
}
