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
	order    Order
	attempts int // most that are allowed; 0: any number

	exists    []bool // by offset: a gap otherwise
	lane      []int  // that the message stands in
	acked     []bool // or known to be a gap
	tries     []int
	excused   []bool // its last hand-out was no failure of its own
	due       []time.Time
	lease     []uint64 // out under; 0: not
	last      []uint64
	diverting []bool
	blocked   []bool

	until  map[int]time.Time // by lane: end of the lease that is out
	blocks map[int]int64     // by lane: messages at or above wait until all below that were handed out are acknowledged

	fetched int64
	no      uint64
	edge    int64 // one past the highest hand-out
	restore int64 // the edge that this owner began with
}

func newModel(t *rapid.T, order Order) *model {
	size := rapid.IntRange(1, 40).Draw(t, "log")
	m := &model{
		order: order, attempts: rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "most attempts"),
		exists: make([]bool, size), lane: make([]int, size), acked: make([]bool, size), tries: make([]int, size),
		excused: make([]bool, size), due: make([]time.Time, size), lease: make([]uint64, size), last: make([]uint64, size),
		diverting: make([]bool, size), blocked: make([]bool, size),
		until: map[int]time.Time{}, blocks: map[int]int64{},
	}
	for o := range size {
		m.exists[o] = rapid.IntRange(0, 4).Draw(t, "gap") > 0
		switch order {
		case OrderKey:
			// Keys are 1 to 3; a lane of its own, for a message without one, is
			// negative.
			if m.lane[o] = rapid.IntRange(0, 3).Draw(t, "key"); m.lane[o] == 0 {
				m.lane[o] = -1 - o
			}
		case OrderNone:
			m.lane[o] = -1 - o
		}
	}
	return m
}

func (m *model) window(t *rapid.T, p offsets.Position) *Window[int64] {
	w, err := New[int64](p, Config{Order: m.order, MaxMessages: 64, MaxAttempts: m.attempts})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (m *model) size() int64 { return int64(len(m.exists)) }

func (m *model) record(o int64) Record[int64] {
	return Record[int64]{Offset: o, Size: 7, Ref: o, Key: uint64(m.lane[o]), Keyed: m.order == OrderKey && m.lane[o] > 0}
}

// isOut says whether something of a lane is out.
func (m *model) isOut(lane int) bool {
	for o, no := range m.lease {
		if no != 0 && m.lane[o] == lane {
			return true
		}
	}
	return false
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

// heads are the lowest messages of the lanes that have any, by offset.
func (m *model) heads() (offs []int64) {
	seen := map[int]bool{}
	for _, o := range m.unacked() {
		if !seen[m.lane[o]] {
			seen[m.lane[o]] = true
			offs = append(offs, o)
		}
	}
	return offs
}

func (m *model) exhausted(o int64) bool {
	return m.attempts > 0 && m.tries[o] >= m.attempts && !m.excused[o]
}

// giveBack returns what is out of a lane from an offset on.
func (m *model) giveBack(lane int, from int64) (offs []int64) {
	for _, o := range m.out() {
		if o >= from && m.lane[o] == lane {
			m.lease[o] = 0
			m.blocks[lane] = max(m.blocks[lane], o+1)
			offs = append(offs, o)
		}
	}
	return offs
}

// fallBack finds the hand-out edge anew when messages came back that were never
// begun.
func (m *model) fallBack(returned int) {
	if returned == 0 {
		return
	}
	m.edge = m.restore
	for _, o := range m.unacked() {
		if m.tries[o] > 0 {
			m.edge = max(m.edge, o+1)
		}
	}
}

// expire returns what is out under leases that are over.
func (m *model) expire(now time.Time) (offs []int64) {
	for _, o := range m.out() {
		if m.lease[o] != 0 && !m.until[m.lane[o]].After(now) {
			for i, o := range m.giveBack(m.lane[o], 0) {
				m.excused[o] = i > 0
				offs = append(offs, o)
			}
		}
	}
	slices.Sort(offs)
	return offs
}

// kept is how many hand-outs the next owner hears of: what is excused is not to
// be taken for used up.
func (m *model) kept(o int64) int {
	if m.excused[o] && m.attempts > 0 {
		return min(m.tries[o], m.attempts-1)
	}
	return m.tries[o]
}

func (m *model) settle(o int64) { m.acked[o], m.lease[o] = true, 0 }

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
		if o, ref, ok := w.Oldest(); o != low || ref != low || !ok {
			t.Fatalf("oldest is %d, %d, %v; want %d", o, ref, ok, low)
		}
	}
	if p.Low < low || len(unacked) > 0 && p.Low != low {
		t.Fatalf("low %d, want %d", p.Low, low)
	}
	if p.HandOut < p.Low || p.HandOut != max(m.edge, p.Low) {
		t.Fatalf("hand-out edge %d, want %d", p.HandOut, max(m.edge, p.Low))
	}
	for o := range m.size() {
		if o >= low && p.IsAcked(o) != m.acked[o] {
			t.Fatalf("offset %d in %+v: acked %v, want %v", o, p, p.IsAcked(o), m.acked[o])
		}
		if o < m.edge && o < m.fetched && m.exists[o] && !m.acked[o] && len(p.Retries) < offsets.MaxRetries {
			r, ok := p.Retry(o)
			if p.WasPassed(o) != (m.tries[o] == 0) {
				t.Fatalf("offset %d was handed out %d times, and passed are %v", o, m.tries[o], p.Passed)
			}
			if got := max(1, r.Attempt); ok && r.Attempt != m.kept(o) || got != max(1, m.kept(o)) {
				t.Fatalf("offset %d was handed out %d times, its retry is %+v", o, m.tries[o], r)
			}
			if m.due[o].After(now) && !r.NotBefore.Equal(m.due[o]) {
				t.Fatalf("offset %d was put off until %v, its retry is %+v", o, m.due[o], r)
			}
		}
	}
	ready, stuck, wakes := false, false, time.Time{}
	wake := func(at time.Time) {
		if wakes.IsZero() || at.Before(wakes) {
			wakes = at
		}
	}
	for _, o := range m.heads() {
		switch lane := m.lane[o]; {
		case m.isOut(lane):
			ready = ready || !m.until[lane].After(now)
			wake(m.until[lane])
		case m.exhausted(o):
			stuck = stuck || m.blocked[o]
		case m.due[o].After(now):
			wake(m.due[o])
		default:
			ready = true
		}
	}
	why := AtEnd
	switch {
	case ready:
		why = Ready
	case stuck:
		why = DeadBlocked
	case len(out) > 0 && (m.order == OrderPartition || len(out) < len(unacked)):
		why = InFlightFull
	case len(out) < len(unacked):
		why = Delayed
	}
	if got := w.Why(now); got != why {
		t.Fatalf("why %v, want %v", got, why)
	}
	if at, ok := w.NextWake(now); ok != !wakes.IsZero() || ok && !at.Equal(wakes) {
		t.Fatalf("wakes at %v, %v; want %v", at, ok, wakes)
	}
}

// took checks a batch against the rules and notes it.
func (m *model) took(t *rapid.T, hs []Handout[int64], now time.Time, limit, bytes int, lease time.Duration) {
	if len(hs) > limit || bytes > 0 && len(hs) > 1 && 7*len(hs) > bytes {
		t.Fatalf("%d messages for a limit of %d and %d bytes", len(hs), limit, bytes)
	}
	// A lane that repeats what failed may end before its turn is over: its
	// batches are narrowed.
	begun := map[int]int64{} // by lane: the first that this lease takes
	mayEnd := func(o int64) bool {
		first, ok := begun[m.lane[o]]
		return ok && first < m.blocks[m.lane[o]]
	}
	next := func() (offs []int64) { // what may come next, by offset
		seen := map[int]bool{}
		for _, o := range m.unacked() {
			lane := m.lane[o]
			first, ours := begun[lane]
			if seen[lane] || ours && m.lease[o] == m.no {
				continue
			}
			seen[lane] = true
			if !ours && m.isOut(lane) || m.due[o].After(now) || m.exhausted(o) ||
				ours && first < m.blocks[lane] && o >= m.blocks[lane] {
				continue
			}
			offs = append(offs, o)
		}
		return offs
	}
	if len(hs) > 0 {
		m.no++
	}
	for _, h := range hs {
		found := false
		for _, o := range next() {
			if found = o == h.Offset; found || !mayEnd(o) {
				break
			}
		}
		if !found {
			t.Fatalf("%d was handed out, and the next are %v", h.Offset, next())
		}
		lane := m.lane[h.Offset]
		if _, ok := begun[lane]; !ok {
			begun[lane] = h.Offset
		}
		m.tries[h.Offset]++
		m.excused[h.Offset] = false
		m.until[lane] = now.Add(lease)
		if h.Attempt != m.tries[h.Offset] || h.LeaseNo != m.no || !h.LeaseUntil.Equal(m.until[lane]) || h.Ref != h.Offset {
			t.Fatalf("%+v: want attempt %d under lease %d to %v", h, m.tries[h.Offset], m.no, m.until[lane])
		}
		m.lease[h.Offset], m.last[h.Offset] = m.no, m.no
		m.edge = max(m.edge, h.Offset+1)
	}
	if len(hs) < limit && (bytes == 0 || len(hs) == 0) {
		for _, o := range next() {
			if !mayEnd(o) {
				t.Fatalf("%d was not handed out, and nothing is against it", o)
			}
		}
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

// divert lists what is exhausted.
func (m *model) divert(t *rapid.T, w *Window[int64], now time.Time) (list []int64) {
	got := w.Exhausted(now)
	m.expire(now)
	for _, o := range m.heads() {
		if m.exhausted(o) && !m.isOut(m.lane[o]) && !m.diverting[o] {
			m.diverting[o], m.blocked[o] = true, false
			list = append(list, o)
		}
	}
	for i, e := range got {
		if i >= len(list) || e.Offset != list[i] || e.Ref != list[i] || e.Attempt != m.tries[e.Offset] || e.Reason != ReasonMaxAttempts {
			t.Fatalf("exhausted are %+v, want %v", got, list)
		}
	}
	if len(got) != len(list) {
		t.Fatalf("exhausted are %+v, want %v", got, list)
	}
	return list
}

// TestPropertyAgainstTheModel: whatever comes in whatever order, nothing that
// was acknowledged is delivered, nothing is skipped, order holds within a lane,
// lanes do not wait for each other, of each one lease is out, what has used up
// its attempts is diverted and not delivered, and in the end all is delivered or
// diverted.
func TestPropertyAgainstTheModel(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		t.Run(string(order), rapid.MakeCheck(func(t *rapid.T) { againstTheModel(t, newModel(t, order)) }))
	}
}

func againstTheModel(t *rapid.T, m *model) {
	size := m.size()
	w := m.window(t, offsets.Position{Topic: "T"})
	now := t0
	fetch := func(to int64) {
		// A fetch may begin before what was asked for.
		from := max(0, m.fetched-int64(rapid.IntRange(0, 2).Draw(t, "before")))
		f := Fetched[int64]{Next: to}
		for o := from; o < to; o++ {
			if m.exists[o] {
				f.Records = append(f.Records, m.record(o))
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
	// what is a message and a lease number: mostly one that fits the other.
	what := func() (no uint64, o int64) {
		if out := m.out(); len(out) > 0 && rapid.IntRange(0, 3).Draw(t, "real") > 0 {
			o = rapid.SampledFrom(out).Draw(t, "out")
			return m.lease[o], o
		}
		return number(), offset()
	}
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		switch rapid.SampledFrom([]string{
			"fetch", "fetch", "take", "take", "take", "ack", "ack", "ack", "ackall", "nack", "nack", "decline", "extend", "wait", "expire", "return", "again",
			"divert", "divert", "skip", "restart",
		}).Draw(t, "do") {
		case "fetch":
			fetch(rapid.Int64Range(m.fetched, size).Draw(t, "to"))
		case "take":
			limit := rapid.IntRange(0, 12).Draw(t, "max")
			bytes := rapid.SampledFrom([]int{0, 0, 1, 20, 50}).Draw(t, "bytes")
			hs := w.Take(now, limit, bytes, lease30)
			m.expire(now)
			m.took(t, hs, now, limit, bytes, lease30)
		case "ack":
			no, o := what()
			wantAdded, wantErr := m.wantAck(no, o)
			added, err := w.Ack(no, o)
			if added != wantAdded || !errors.Is(err, wantErr) {
				t.Fatalf("ack of %d under %d: %v, %v; want %v, %v", o, no, added, err, wantAdded, wantErr)
			}
			if added {
				m.settle(o)
			}
		case "ackall":
			for _, o := range m.out() {
				if added, err := w.Ack(m.lease[o], o); !added || err != nil {
					t.Fatalf("ack of %d: %v, %v", o, added, err)
				}
				m.settle(o)
			}
		case "nack":
			no, o := what()
			offs := []int64{o, offset(), offset()}[:rapid.IntRange(1, 3).Draw(t, "nacks")]
			delay := time.Duration(rapid.IntRange(-1, 3).Draw(t, "delay")) * 10 * time.Second
			var want []error
			lowest := map[int]int64{}
			for _, o := range offs {
				err := m.wantLeased(no, o)
				if want = append(want, err); err == nil {
					if at, ok := lowest[m.lane[o]]; !ok || o < at {
						lowest[m.lane[o]] = o
					}
					m.due[o] = now.Add(max(0, delay))
				}
			}
			var returned []int64
			for lane, from := range lowest {
				for _, o := range m.giveBack(lane, from) {
					m.excused[o] = !slices.Contains(offs, o)
					returned = append(returned, o)
				}
			}
			slices.Sort(returned)
			back, errs := w.Nack(now, no, offs, delay, "")
			if !slices.Equal(errs, want) || !slices.Equal(back, returned) {
				t.Fatalf("nack of %v under %d: %v, %v; want %v, %v", offs, no, back, errs, returned, want)
			}
		case "decline":
			no, o := what()
			offs := []int64{o, offset()}[:rapid.IntRange(1, 2).Draw(t, "declined")]
			var want []error
			lowest := map[int]int64{}
			for _, o := range offs {
				err := m.wantLeased(no, o)
				if want = append(want, err); err == nil {
					if at, ok := lowest[m.lane[o]]; !ok || o < at {
						lowest[m.lane[o]] = o
					}
				}
			}
			var returned []int64
			for lane, from := range lowest {
				blocks := m.blocks[lane]
				returned = append(returned, m.giveBack(lane, from)...)
				m.blocks[lane] = blocks
			}
			slices.Sort(returned)
			back, errs := w.Decline(no, offs)
			if !slices.Equal(errs, want) || !slices.Equal(back, returned) {
				t.Fatalf("%v under %d are declined: %v, %v; want %v, %v", offs, no, back, errs, returned, want)
			}
			for _, o := range returned {
				if slices.Contains(offs, o) {
					m.tries[o]--
				} else {
					m.excused[o] = true
				}
			}
			m.fallBack(len(returned))
		case "extend":
			no, o := what()
			want := m.wantLeased(no, o)
			longer := time.Duration(rapid.IntRange(0, 6).Draw(t, "lease")) * 10 * time.Second
			until, errs := w.Extend(now, no, []int64{o}, longer)
			lane := m.lane[o]
			if want == nil && now.Add(longer).After(m.until[lane]) {
				m.until[lane] = now.Add(longer)
			}
			if !errors.Is(errs[0], want) || want == nil && !until.Equal(m.until[lane]) {
				t.Fatalf("extend of %d under %d: %v, %v; want %v", o, no, until, errs, want)
			}
		case "wait":
			now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
		case "expire":
			want := m.expire(now)
			if back := w.Expire(now); !slices.Equal(back, want) {
				t.Fatalf("expired %v, want %v", back, want)
			}
		case "return":
			no := number()
			var want []int64
			for _, o := range m.out() {
				if m.lease[o] == no {
					m.lease[o] = 0
					m.tries[o]--
					want = append(want, o)
				}
			}
			m.fallBack(len(want))
			if back := w.Return(no); !slices.Equal(back, want) {
				t.Fatalf("returned %v, want %v", back, want)
			}
		case "again":
			no, o := what()
			offs := []int64{o}
			for _, other := range m.out() {
				if m.lease[other] == no && other != o {
					offs = append(offs, other)
				}
			}
			m.expire(now)
			want := m.wantLeased(no, o) == nil
			hs, ok := w.Again(now, no, offs, lease30)
			if ok != want {
				t.Fatalf("again of %v under %d: %v, want %v", offs, no, ok, want)
			}
			for _, h := range hs {
				lane := m.lane[h.Offset]
				if now.Add(lease30).After(m.until[lane]) {
					m.until[lane] = now.Add(lease30)
				}
				if h.Attempt != m.tries[h.Offset] || h.LeaseNo != no || !h.LeaseUntil.Equal(m.until[lane]) || h.Ref != h.Offset {
					t.Fatalf("again %+v", h)
				}
			}
		case "divert":
			m.divert(t, w, now)
			for o, with := range m.diverting {
				if !with || m.acked[o] {
					continue
				}
				switch rapid.IntRange(0, 2).Draw(t, "fate") {
				case 0:
					if !w.Skip(int64(o)) {
						t.Fatalf("%d cannot be skipped", o)
					}
					m.settle(int64(o))
				case 1:
					w.Retain(int64(o))
					m.diverting[o], m.blocked[o] = false, true
				}
			}
		case "skip":
			if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
				break
			}
			to := min(size, m.fetched+rapid.Int64Range(-3, 3).Draw(t, "to"))
			for o := range to {
				m.settle(o)
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
			w = m.window(t, p)
			m.no, m.fetched = 0, p.Low
			m.edge = max(m.edge, p.Low)
			m.restore = m.edge
			m.blocks = map[int]int64{}
			clear(m.lease)
			clear(m.last)
			clear(m.diverting)
			clear(m.blocked)
			for o := range m.exists {
				m.blocks[m.lane[o]] = m.edge
				kept := m.kept(int64(o))
				m.excused[o] = m.tries[o] > 0 && (kept == 0 || kept == 1 && m.due[o].IsZero())
				if m.tries[o] > 0 {
					m.tries[o] = max(1, kept)
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
		for o, with := range m.diverting {
			if with && !m.acked[o] {
				w.Retain(int64(o))
				m.diverting[o], m.blocked[o] = false, true
			}
		}
		for _, o := range m.divert(t, w, now) {
			w.Skip(o)
			m.settle(o)
		}
		if wake, ok := w.NextWake(now); ok && wake.After(now) && w.Why(now) != Ready {
			now = wake
		}
		hs := w.Take(now, 10, 0, lease30)
		m.expire(now)
		m.took(t, hs, now, 10, 0, lease30)
		for _, h := range hs {
			if added, err := w.Ack(h.LeaseNo, h.Offset); !added || err != nil {
				t.Fatalf("ack of %d: %v, %v", h.Offset, added, err)
			}
			m.settle(h.Offset)
		}
		m.check(t, w, now)
	}
	if p := w.Position(); p.Low != size || len(p.Acked) != 0 || len(p.Retries) != 0 {
		t.Fatalf("in the end the position is %+v", p)
	}
}
