package window

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/sidecar/offsets"
)

// model is the naive opposite: a list of all messages of the log, each with
// what happened to it, and rules written as loops over it.
type model struct {
	exists  []bool // by offset: a gap otherwise
	acked   []bool // or known to be a gap
	tries   []int
	due     []time.Time
	lease   []uint64 // out under; 0: not
	last    []uint64
	fetched int64
	until   time.Time // of the lease that is out
	no      uint64
	blocks  int64 // messages at or above wait until all below that were handed out are acknowledged
	edge    int64 // one past the highest hand-out
}

func (m *model) out() (offs []int64) {
	for o := range m.exists {
		if m.lease[o] != 0 {
			offs = append(offs, int64(o))
		}
	}
	return offs
}

func (m *model) unacked() (offs []int64) {
	for o := range m.fetched {
		if m.exists[o] && !m.acked[o] {
			offs = append(offs, o)
		}
	}
	return offs
}

// giveBack returns what is out from an offset on.
func (m *model) giveBack(from int64) (offs []int64) {
	for _, o := range m.out() {
		if o >= from {
			m.lease[o] = 0
			m.blocks = max(m.blocks, o+1)
			offs = append(offs, o)
		}
	}
	return offs
}

// check compares all that can be seen of the window.
func (m *model) check(t *rapid.T, w *Window[int64], now time.Time) {
	unacked, out := m.unacked(), m.out()
	if w.InFlight() != len(out) || w.Waiting() != len(unacked)-len(out) || w.Bytes() != 7*len(unacked) || w.Next() != m.fetched {
		t.Fatalf("in flight %d, waiting %d, %d bytes, next %d; want %d out of %d, next %d",
			w.InFlight(), w.Waiting(), w.Bytes(), w.Next(), len(out), len(unacked), m.fetched)
	}
	p := w.Position()
	low := m.fetched
	if len(unacked) > 0 {
		low = unacked[0]
	}
	if p.Low < low || len(unacked) > 0 && p.Low != low {
		t.Fatalf("low %d, want %d", p.Low, low)
	}
	if p.HandOut < p.Low || p.HandOut != max(m.edge, p.Low) {
		t.Fatalf("hand-out edge %d, want %d", p.HandOut, max(m.edge, p.Low))
	}
	for o := range int64(len(m.exists)) {
		if o >= low && p.IsAcked(o) != m.acked[o] {
			t.Fatalf("offset %d in %+v: acked %v, want %v", o, p, p.IsAcked(o), m.acked[o])
		}
		if o < m.edge && o < m.fetched && m.exists[o] && !m.acked[o] && len(p.Retries) < offsets.MaxRetries {
			r, ok := p.Retry(o)
			if got := max(1, r.Attempt); ok && r.Attempt != m.tries[o] || got != max(1, m.tries[o]) {
				t.Fatalf("offset %d was handed out %d times, its retry is %+v", o, m.tries[o], r)
			}
		}
	}
	why := AtEnd
	switch {
	case len(out) > 0 && m.until.After(now):
		why = InFlightFull
	case len(unacked) > 0 && m.due[unacked[0]].After(now):
		why = Delayed
	case len(unacked) > 0:
		why = Ready
	}
	if got := w.Why(now); got != why {
		t.Fatalf("why %v, want %v", got, why)
	}
	wake, ok := w.NextWake(now)
	switch {
	case len(out) > 0 && (!ok || !wake.Equal(m.until)):
		t.Fatalf("wakes at %v, %v; the lease ends at %v", wake, ok, m.until)
	case len(out) == 0 && ok != (why == Delayed):
		t.Fatalf("wakes at %v, %v, and why is %v", wake, ok, why)
	}
}

// took checks a batch against the rules and notes it.
func (m *model) took(t *rapid.T, hs []Handout[int64], now time.Time, limit, bytes int, lease time.Duration) {
	if m.until.After(now) && len(m.out()) > 0 {
		if len(hs) > 0 {
			t.Fatalf("%v handed out while %v are", hs, m.out())
		}
		return
	}
	unacked := m.unacked()
	if len(hs) == 0 {
		if len(unacked) > 0 && !m.due[unacked[0]].After(now) && limit > 0 {
			t.Fatalf("nothing was handed out, and %d is due", unacked[0])
		}
		return
	}
	if len(hs) > limit || bytes > 0 && len(hs) > 1 && 7*len(hs) > bytes {
		t.Fatalf("%d messages for a limit of %d and %d bytes", len(hs), limit, bytes)
	}
	m.no, m.until = hs[0].LeaseNo, now.Add(lease)
	for i, h := range hs {
		// In order from the lowest, none left out: so none skipped.
		if h.Offset != unacked[i] || h.Ref != h.Offset {
			t.Fatalf("hand-out %d is offset %d (%d), want %d", i, h.Offset, h.Ref, unacked[i])
		}
		if m.acked[h.Offset] || m.due[h.Offset].After(now) {
			t.Fatalf("offset %d is acked or not due", h.Offset)
		}
		if hs[0].Offset < m.blocks && h.Offset >= m.blocks {
			t.Fatalf("offset %d follows a failed %d", h.Offset, hs[0].Offset)
		}
		m.tries[h.Offset]++
		if h.Attempt != m.tries[h.Offset] || h.LeaseNo != m.no || !h.LeaseUntil.Equal(m.until) {
			t.Fatalf("%+v: want attempt %d under lease %d to %v", h, m.tries[h.Offset], m.no, m.until)
		}
		m.lease[h.Offset], m.last[h.Offset] = m.no, m.no
		m.edge = max(m.edge, h.Offset+1)
	}
}

// wantAck is what an acknowledgement must give.
func (m *model) wantAck(no uint64, o int64) (added bool, err error) {
	switch {
	case no == 0 || no > m.no:
		return false, ErrUnknown
	case m.acked[o]:
		return false, nil
	case o >= m.fetched || no > m.last[o]:
		return false, ErrUnknown
	}
	return true, nil
}

func (m *model) wantLeased(no uint64, o int64) error {
	switch {
	case no == 0 || no > m.no:
		return ErrUnknown
	case m.acked[o]:
		return ErrAcked
	case m.lease[o] == no:
		return nil
	case o >= m.fetched || no > m.last[o]:
		return ErrUnknown
	}
	return ErrLeaseLost
}

// TestPropertyAgainstTheModel: whatever comes in whatever order, nothing that
// was acknowledged is delivered, nothing is skipped, order holds, one lease is
// out, and in the end all is delivered and acknowledged.
func TestPropertyAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 40).Draw(t, "log")
		m := &model{
			exists: make([]bool, size), acked: make([]bool, size), tries: make([]int, size), due: make([]time.Time, size),
			lease: make([]uint64, size), last: make([]uint64, size),
		}
		for o := range m.exists {
			m.exists[o] = rapid.IntRange(0, 4).Draw(t, "gap") > 0
		}
		w, err := New[int64](offsets.Position{Topic: "T"}, Config{MaxMessages: 64})
		if err != nil {
			t.Fatal(err)
		}
		now := t0
		fetch := func(to int64) {
			// A fetch may begin before what was asked for.
			from := max(0, m.fetched-int64(rapid.IntRange(0, 2).Draw(t, "before")))
			f := Fetched[int64]{Next: to}
			for o := from; o < to; o++ {
				if m.exists[o] {
					f.Records = append(f.Records, Record[int64]{Offset: o, Size: 7, Ref: o})
				}
			}
			if err := w.Add(f); err != nil {
				t.Fatal(err)
			}
			m.fetched = to
			for o := range to {
				m.acked[o] = m.acked[o] || !m.exists[o]
			}
		}
		offset := func() int64 { return rapid.Int64Range(0, size-1).Draw(t, "offset") }
		number := func() uint64 {
			return uint64(max(0, int64(m.no)-int64(rapid.IntRange(-1, 2).Draw(t, "older lease"))))
		}
		expired := func() {
			if len(m.out()) > 0 && !m.until.After(now) {
				m.giveBack(0)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{
				"fetch", "fetch", "take", "take", "take", "ack", "ack", "ack", "ackall", "nack", "extend", "wait", "expire", "return", "skip", "restart",
			}).Draw(t, "do") {
			case "fetch":
				fetch(rapid.Int64Range(m.fetched, size).Draw(t, "to"))
			case "take":
				limit := rapid.IntRange(0, 12).Draw(t, "max")
				bytes := rapid.SampledFrom([]int{0, 0, 1, 20, 50}).Draw(t, "bytes")
				hs := w.Take(now, limit, bytes, lease30)
				expired()
				m.took(t, hs, now, limit, bytes, lease30)
			case "ack":
				no, o := number(), offset()
				wantAdded, wantErr := m.wantAck(no, o)
				added, err := w.Ack(no, o)
				if added != wantAdded || !errors.Is(err, wantErr) {
					t.Fatalf("ack of %d under %d: %v, %v; want %v, %v", o, no, added, err, wantAdded, wantErr)
				}
				if added {
					m.acked[o], m.lease[o] = true, 0
				}
			case "ackall":
				for _, o := range m.out() {
					if added, err := w.Ack(m.no, o); !added || err != nil {
						t.Fatalf("ack of %d: %v, %v", o, added, err)
					}
					m.acked[o], m.lease[o] = true, 0
				}
			case "nack":
				no := number()
				offs := []int64{offset(), offset(), offset()}[:rapid.IntRange(1, 3).Draw(t, "nacks")]
				if out := m.out(); len(out) > 0 && rapid.Bool().Draw(t, "real") {
					no, offs[0] = m.no, rapid.SampledFrom(out).Draw(t, "nacked")
				}
				delay := time.Duration(rapid.IntRange(-1, 3).Draw(t, "delay")) * 10 * time.Second
				var want []error
				lowest := size
				for _, o := range offs {
					err := m.wantLeased(no, o)
					if want = append(want, err); err == nil {
						lowest = min(lowest, o)
						m.due[o] = now.Add(max(0, delay))
					}
				}
				back, errs := w.Nack(now, no, offs, delay)
				if !slices.Equal(errs, want) || !slices.Equal(back, m.giveBack(lowest)) {
					t.Fatalf("nack of %v under %d: %v, %v; want %v", offs, no, back, errs, want)
				}
			case "extend":
				no, o := number(), offset()
				want := m.wantLeased(no, o)
				longer := time.Duration(rapid.IntRange(0, 6).Draw(t, "lease")) * 10 * time.Second
				until, errs := w.Extend(now, no, []int64{o}, longer)
				if want == nil && now.Add(longer).After(m.until) {
					m.until = now.Add(longer)
				}
				if !errors.Is(errs[0], want) || want == nil && !until.Equal(m.until) {
					t.Fatalf("extend of %d under %d: %v, %v; want %v", o, no, until, errs, want)
				}
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			case "expire":
				var want []int64
				if !m.until.After(now) {
					want = m.giveBack(0)
				}
				if back := w.Expire(now); !slices.Equal(back, want) {
					t.Fatalf("expired %v, want %v", back, want)
				}
			case "return":
				no := number()
				var want []int64
				if no == m.no {
					blocks := m.blocks
					want = m.giveBack(0)
					m.blocks = blocks
					for _, o := range want {
						m.tries[o]--
					}
					// Of a message that was never handed out otherwise the edge
					// is none.
					if len(want) > 0 {
						m.edge = 0
						for o := range m.exists {
							if m.tries[o] > 0 {
								m.edge = int64(o) + 1
							}
						}
					}
				}
				if back := w.Return(no); !slices.Equal(back, want) {
					t.Fatalf("returned %v, want %v", back, want)
				}
			case "skip":
				if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
					break
				}
				to := min(size, m.fetched+rapid.Int64Range(-3, 3).Draw(t, "to"))
				for o := range to {
					m.acked[o], m.lease[o] = true, 0
				}
				w.SkipTo(to)
				m.fetched = max(m.fetched, to)
			case "restart":
				// Another owner takes over from the position as it is stored.
				b, dropped := w.Position().Encode()
				p, err := offsets.Decode(b)
				if err != nil || dropped > 0 {
					t.Fatalf("%d dropped, %v", dropped, err)
				}
				if w, err = New[int64](p, Config{MaxMessages: 64}); err != nil {
					t.Fatal(err)
				}
				m.no, m.fetched, m.blocks = 0, p.Low, max(m.edge, p.Low)
				m.edge = max(m.edge, p.Low)
				clear(m.lease)
				clear(m.last)
				for o := range m.exists {
					if int64(o) < m.edge {
						m.tries[o] = max(1, m.tries[o])
					}
				}
			}
			m.check(t, w, now)
		}
		// A well-behaved application gets everything that is left.
		for rounds := 0; ; rounds++ {
			if m.fetched < size {
				fetch(size)
			}
			if len(m.unacked()) == 0 {
				break
			}
			if rounds > 200 {
				t.Fatalf("no progress: %v are left", m.unacked())
			}
			if wake, ok := w.NextWake(now); ok && wake.After(now) {
				now = wake
			}
			hs := w.Take(now, 10, 0, lease30)
			expired()
			m.took(t, hs, now, 10, 0, lease30)
			for _, h := range hs {
				if added, err := w.Ack(h.LeaseNo, h.Offset); !added || err != nil {
					t.Fatalf("ack of %d: %v, %v", h.Offset, added, err)
				}
				m.acked[h.Offset], m.lease[h.Offset] = true, 0
			}
			m.check(t, w, now)
		}
		if p := w.Position(); p.Low != size || len(p.Acked) != 0 || len(p.Retries) != 0 {
			t.Fatalf("in the end the position is %+v", p)
		}
	})
}
