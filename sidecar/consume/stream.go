package consume

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// StreamRequest asks for a stream.
type StreamRequest struct {
	Group, Topic string
	Window       int           // messages that may be out on it at once, 1 to MaxPull; 0: the default of a pull
	Lease        time.Duration // 0: the group's
	From         string        // as of a pull
	AutoAck      bool          // count as acknowledged when they have left; no receipts
	Alive        func() bool   // whether the application is still there; nil: yes
}

// Stream hands messages to one application for as long as it stays. Of what it
// has handed out at most a window's worth is not settled (acknowledged, nacked,
// or gone with its partition): the messages that the application holds. A lease
// that is over frees no room, since the application holds its messages still;
// its next sign of life (an ack, a nack or an extend of any message of the
// stream) does. Each sign of life also begins the leases of all the stream's
// messages anew, so that those which wait behind a slow one do not run out, and
// those of an application that hangs do.
//
// Next, Left and Close are called by one goroutine.
type Stream struct {
	m      *Manager
	req    PullRequest // of its pulls, without Max and Wait
	window int
	auto   bool
	ready  *Delivery     // what the pull that opened it brought
	poke   chan struct{} // the application has settled something

	mu    sync.Mutex // guards all below
	loans []*loan    // what is not settled, oldest first
	last  uint64     // number of the last message handed out
}

// loan is a lease of a stream.
type loan struct {
	loanKey
	lease   time.Duration
	until   time.Time
	numbers []uint64 // of its messages on the stream
	offsets []int64  // of the same
	held    int      // how many of them the application holds, as of its last sign of life
}

// loanKey is one lease of one life of a window.
type loanKey struct {
	o                     *owner
	generation, epoch, no uint64
}

// StreamBatch is what comes next on a stream: messages, or why there are none.
type StreamBatch struct {
	api.Pulled
	First uint64 // number of the first message on the stream, counted from 1
	Held  int    // messages that the application holds, these included
}

// OpenStream begins a stream. Its errors are those of Pull.
func (m *Manager) OpenStream(ctx context.Context, r StreamRequest) (*Stream, error) {
	if r.Window == 0 {
		r.Window = m.cfg.PullMax
	}
	if r.Window < 1 || r.Window > MaxPull {
		return nil, badRequest("window=%d: use 1 to %d", r.Window, MaxPull)
	}
	st := &Stream{
		m: m, window: r.Window, auto: r.AutoAck, poke: make(chan struct{}, 1),
		req: PullRequest{Group: r.Group, Topic: r.Topic, Lease: r.Lease, From: r.From, Alive: r.Alive},
	}
	st.req.stream = st
	d, err := st.pull(ctx, st.window, 0)
	if err != nil {
		return nil, err
	}
	st.ready = d
	m.metrics.streams.Inc()
	return st, nil
}

// Lease is how long the application has for a message.
func (st *Stream) Lease() time.Duration {
	if st.req.Lease > 0 {
		return st.req.Lease
	}
	if g := st.m.lookup(st.req.Group); g != nil {
		return g.lease()
	}
	return st.m.cfg.Lease
}

// streamBytes is how much is taken for a stream at once: what a slow reader has
// not taken yet of it is under a lease already.
const streamBytes = 256 << 10

// pull takes messages and remembers them as lent.
func (st *Stream) pull(ctx context.Context, most int, wait time.Duration) (*Delivery, error) {
	req := st.req
	req.Max, req.Wait = min(most, MaxPull), wait
	d, err := st.m.Pull(ctx, req)
	if err == nil {
		st.lend(d)
	}
	return d, err
}

// fullRecheck is how soon a full stream notices that messages went with their
// partitions: the application cannot settle them any more.
const fullRecheck = time.Second

// Next waits at most so long for messages that have room in the window. Without
// any it says why.
func (st *Stream) Next(ctx context.Context, wait time.Duration) (StreamBatch, error) {
	if d := st.ready; d != nil {
		st.ready = nil
		return st.batch(d), nil
	}
	end := time.Now().Add(wait)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		left := time.Until(end)
		if room := st.room(); room > 0 {
			d, err := st.pull(ctx, room, max(0, left))
			if err != nil {
				return StreamBatch{}, err
			}
			return st.batch(d), nil
		}
		if st.m.isDraining() {
			return StreamBatch{}, errDraining()
		}
		if left <= 0 || ctx.Err() != nil {
			reason := api.ReasonInFlightFull
			return st.batch(&Delivery{Pulled: api.Pulled{Reason: &reason, Away: st.away()}}), nil
		}
		timer.Reset(min(left, fullRecheck))
		select {
		case <-st.poke:
		case <-timer.C:
			st.review(false)
		case <-ctx.Done():
		case <-st.m.drained:
		}
	}
}

// away is as of a pull.
func (st *Stream) away() int {
	c, err := checkChoice(st.req.Group, st.req.Topic)
	if err != nil {
		return 0
	}
	g := st.m.lookup(st.req.Group)
	if g == nil {
		return 0
	}
	sub := g.subscription(c)
	if sub == nil {
		return 0
	}
	return sub.away()
}

func (st *Stream) batch(d *Delivery) StreamBatch {
	b := StreamBatch{Pulled: d.Pulled}
	st.mu.Lock()
	defer st.mu.Unlock()
	b.First = st.last + 1 - uint64(len(d.Messages))
	for _, l := range st.loans {
		b.Held += l.held
	}
	if st.auto {
		for i := range b.Messages {
			b.Messages[i].Receipt, b.Messages[i].LeaseUntil = "", nil
		}
	}
	return b
}

// lend remembers what a pull brought.
func (st *Stream) lend(d *Delivery) {
	var news []*loan
	st.mu.Lock()
	var l *loan
	for i := range d.Messages {
		msg := &d.Messages[i]
		st.last++
		r, err := decodeReceipt(msg.Receipt, st.req.Group, msg.Topic)
		if err != nil {
			continue // not of ours: it has just been written
		}
		is := func(l *loan) bool { return l.is(msg.Topic, r) }
		if l == nil || !is(l) {
			if at := slices.IndexFunc(st.loans, is); at >= 0 {
				l = st.loans[at]
			} else if o := st.m.ownerOf(st.req.Group, msg.Topic, r.partition); o != nil {
				l = &loan{loanKey: loanKey{o, r.generation, r.seekEpoch, r.lease}}
				if msg.LeaseUntil != nil {
					l.until = *msg.LeaseUntil
					l.lease = time.Until(l.until)
				}
				st.loans, news = append(st.loans, l), append(news, l)
			} else {
				l = nil
				continue // it moved in this moment
			}
		}
		l.numbers, l.offsets = append(l.numbers, st.last), append(l.offsets, msg.Offset)
		l.held++
	}
	st.mu.Unlock()
	st.m.lent.add(st, news)
}

// more hands out what comes behind that which the stream has out of a
// partition. The stream may be nil.
func (st *Stream) more(o *owner, most, bytes int) handed {
	if st == nil || st.auto { // what acknowledges itself comes batch after batch
		return handed{}
	}
	var l *loan
	st.mu.Lock()
	if at := slices.IndexFunc(st.loans, func(l *loan) bool { return l.o == o }); at >= 0 {
		l = st.loans[at]
	}
	st.mu.Unlock()
	if l == nil {
		return handed{}
	}
	now := time.Now()
	return o.hand(now, func() []window.Handout[*kgo.Record] {
		if !l.current() {
			return nil
		}
		return o.win.More(now, l.no, most, bytes, l.lease/4)
	})
}

// news tells that there may be more of what the stream has out already, which no
// other pull may have. The stream may be nil.
func (st *Stream) news() <-chan struct{} {
	if st == nil {
		return nil
	}
	return st.poke
}

// is says whether a receipt is of the lease.
func (l *loan) is(topic string, r receipt) bool {
	return l.o.key.Topic == topic && l.o.key.Partition == r.partition &&
		l.generation == r.generation && l.epoch == r.seekEpoch && l.no == r.lease
}

// ownerOf finds a partition here; nil when it is not.
func (m *Manager) ownerOf(group, topic string, partition int32) *owner {
	if g := m.lookup(group); g != nil {
		if s := g.share(topic); s != nil {
			return s.owner(partition)
		}
	}
	return nil
}

// room is how many messages may be handed out.
func (st *Stream) room() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	room := st.window
	for _, l := range st.loans {
		room -= l.held
	}
	return room
}

// review looks at what is lent. life is a sign of the application's: then what
// is out no more has been settled, or its lease was over before, and the rest
// is out for another lease's time.
func (st *Stream) review(life bool) {
	now := time.Now()
	var done []*loan
	st.mu.Lock()
	st.loans = slices.DeleteFunc(st.loans, func(l *loan) bool {
		out, here := l.o.lent(l, life, now)
		if life {
			l.held = out
		}
		if !here {
			l.held = 0
		}
		if l.held == 0 {
			done = append(done, l)
		}
		return l.held == 0
	})
	st.mu.Unlock()
	st.m.lent.remove(done)
	kick(st.poke)
}

// lent is how many messages of a lease are out, and whether the partition is
// here still. prolong begins the lease anew.
func (o *owner) lent(l *loan, prolong bool, now time.Time) (out int, here bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !l.current() {
		return 0, false
	}
	// Not for each of a thousand acks: a quarter of the lease is early enough.
	if prolong && l.until.Sub(now) < l.lease-l.lease/4 {
		l.until = now.Add(l.lease)
		o.win.Prolong(l.no, l.until)
	}
	return o.win.Out(l.no), true
}

// current says whether the window that the lease is of is there still. It needs
// the owner's mu.
func (l *loan) current() bool {
	o := l.o
	return o.win != nil && o.generation == l.generation && o.epoch == l.epoch
}

// Left says that the messages up to a number have left for the application;
// with AutoAck they count as acknowledged now.
func (st *Stream) Left(ctx context.Context, number uint64) error {
	if !st.auto {
		return nil
	}
	st.mu.Lock()
	var left []*loan
	for len(st.loans) > 0 && st.loans[0].numbers[0] <= number {
		left = append(left, st.loans[0])
		st.loans = st.loans[1:]
	}
	st.mu.Unlock()
	st.m.lent.remove(left)
	for _, l := range left {
		rs := make([]receipt, len(l.offsets))
		for i, offset := range l.offsets {
			rs[i] = receipt{l.generation, l.epoch, l.no, l.o.key.Partition, offset}
		}
		for _, out := range l.o.ack(ctx, rs) {
			if out.err != nil && out.err.Code != api.CodeLeaseLost {
				return out.err
			}
		}
	}
	return nil
}

// Close ends the stream. Messages with numbers above reached never came to the
// application: they go back with no attempt spent. The others stay out until
// they are settled or their leases end, which nothing prolongs any more: the
// application may be at work on them.
func (st *Stream) Close(reached uint64) {
	st.mu.Lock()
	loans := st.loans
	st.loans = nil
	st.mu.Unlock()
	st.m.metrics.streams.Dec()
	st.m.lent.remove(loans)
	for _, l := range loans {
		if at := slices.IndexFunc(l.numbers, func(n uint64) bool { return n > reached }); at >= 0 {
			l.o.takeBackFrom(l, l.offsets[at])
		}
	}
}

// takeBackFrom returns messages that the application never got.
func (o *owner) takeBackFrom(l *loan, offset int64) {
	o.mu.Lock()
	var back []int64
	if l.current() {
		back = o.win.ReturnFrom(l.no, offset)
		if o.win.Out(l.no) == 0 {
			o.out.back(l.no)
		}
	}
	o.mu.Unlock()
	if len(back) == 0 {
		return
	}
	o.s.g.m.metrics.returned.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(len(back)))
	kick(o.poke)
	o.s.wake()
}

// lendings finds the stream of a receipt.
type lendings struct {
	any atomic.Int64 // leases of streams: without any an ack takes no lock

	mu sync.Mutex // guards by
	by map[loanKey]*Stream
	of map[*owner]*Stream // the last that was lent something of a partition
}

func newLendings() *lendings { return &lendings{by: map[loanKey]*Stream{}, of: map[*owner]*Stream{}} }

func (ls *lendings) add(st *Stream, loans []*loan) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range loans {
		ls.by[l.loanKey], ls.of[l.o] = st, st
	}
	ls.any.Store(int64(len(ls.by)))
}

func (ls *lendings) remove(loans []*loan) {
	if len(loans) == 0 {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range loans {
		if st := ls.by[l.loanKey]; ls.of[l.o] == st {
			delete(ls.of, l.o)
		}
		delete(ls.by, l.loanKey)
	}
	ls.any.Store(int64(len(ls.by)))
}

// arrived says that a partition has more messages.
func (ls *lendings) arrived(o *owner) {
	if ls.any.Load() == 0 {
		return
	}
	ls.mu.Lock()
	st := ls.of[o]
	ls.mu.Unlock()
	if st != nil {
		kick(st.poke)
	}
}

// settled says that receipts of a partition have been acknowledged, nacked or
// extended: a sign of life on the streams that they came on.
func (ls *lendings) settled(o *owner, rs []receipt) {
	if ls.any.Load() == 0 {
		return
	}
	var alive []*Stream
	ls.mu.Lock()
	for _, r := range rs {
		if st := ls.by[loanKey{o, r.generation, r.seekEpoch, r.lease}]; st != nil && !slices.Contains(alive, st) {
			alive = append(alive, st)
		}
	}
	ls.mu.Unlock()
	for _, st := range alive {
		st.review(true)
	}
}
