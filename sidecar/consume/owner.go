package consume

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sidecar/consume/window"
	"sidestream/sidecar/offsets"
)

// ownerState is where a partition stands between its assignment to this sidecar
// and its release.
type ownerState int

const (
	stateTaking    ownerState = iota // waiting for the lock, or reading where to begin
	stateOwned                       // handing out
	stateReleasing                   // handing out no more, waiting for acks
	stateGone                        // released, or its session is lost
)

func (s ownerState) String() string {
	return [...]string{"taking", "owned", "releasing", "gone"}[s]
}

// owner is a partition of a group on its way to, in, or on its way from this
// sidecar, under one session. One goroutine (run) moves it from state to state;
// pulls, acks and the reader work on its window meanwhile.
type owner struct {
	s    *share
	key  offsets.Key
	sess discovery.Session
	log  *zap.Logger
	poke chan struct{} // wakes run: an order below has changed

	slotted bool // of run alone: it holds one of the slots for takes

	mu         sync.Mutex // guards all below
	state      ownerState
	plan       uint64 // that assigned it
	cause      string
	release    bool // order: give it up
	askBounds  int64
	boundsDue  bool // order: the brokers did not have offset askBounds
	recreated  bool // order: the topic is another one now
	generation uint64
	uuid       string
	epoch      uint64 // seek epoch of the window
	win        *window.Window[*kgo.Record]
	cur        *cursor
	pins       pins   // answers that the window's messages keep in memory
	started    bool   // a fetch has answered since the window began
	end        int64  // the brokers' end offset as of the last fetch, -1 unknown
	why        string // why it cannot be read or taken, "" when it can
	unreadable bool   // why is of the log itself: waiting does not help
	marked     int64  // low edge as last handed to the checkpointer
	kept       uint64 // leases that the local store has been told of
	dead       deadState
	out        outs // since when messages are out
}

func newOwner(s *share, partition int32, sess discovery.Session, plan uint64, cause string) *owner {
	key := offsets.Key{Group: s.g.name, Topic: s.topic, Partition: partition}
	return &owner{
		s: s, key: key, sess: sess, plan: plan, cause: cause, end: -1,
		poke: make(chan struct{}, 1),
		log:  s.g.m.log.With(zap.String("group", key.Group), zap.String("topic", key.Topic), zap.Int32("partition", partition)),
	}
}

// run takes the partition, serves the orders that come, and ends when it is
// released or ctx (the session's life) is over.
func (o *owner) run(ctx context.Context) {
	defer o.finish()
	if !o.take(ctx) {
		return
	}
	for {
		switch order := o.next(); order {
		case orderRelease:
			o.giveUp(ctx)
			return
		case orderRetake:
			o.stopReading()
			if !o.take(ctx) {
				return
			}
			continue
		case orderSeek:
			o.applySeek(ctx)
			continue
		case orderBounds:
			o.applyBounds(ctx)
			continue
		case orderReorder:
			if !o.reorder(ctx) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-o.poke:
		}
	}
}

type order int

const (
	orderNone order = iota
	orderRelease
	orderRetake
	orderSeek
	orderBounds
	orderReorder
)

// next is what run has to do.
func (o *owner) next() order {
	wanted, order := o.s.wantedEpoch(), orderOf(o.s.g.settings())
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.release:
		return orderRelease
	case o.recreated:
		return orderRetake
	case wanted > o.epoch:
		return orderSeek
	case o.boundsDue:
		return orderBounds
	case o.win != nil && o.win.Order() != order:
		return orderReorder
	}
	return orderNone
}

// order changes what run has to do, under mu, and wakes it.
func (o *owner) order(change func()) {
	o.mu.Lock()
	change()
	o.mu.Unlock()
	kick(o.poke)
}

// releaseNow orders the release.
func (o *owner) releaseNow(cause string) {
	o.order(func() {
		if !o.release {
			o.release, o.cause = true, cause
		}
	})
}

// stopReading takes the partition away from the reader and drops the window.
func (o *owner) stopReading() {
	o.mu.Lock()
	cur, held := o.cur, 0
	if o.win != nil {
		held = o.win.Bytes()
	}
	o.cur, o.win = nil, nil
	o.state = stateTaking
	o.started, o.recreated, o.boundsDue = false, false, false
	o.mu.Unlock()
	if cur != nil {
		o.s.g.m.reader.remove(cur)
	}
	o.s.g.m.reader.hold(int64(-held))
}

// finish is the end of an owner, however it came.
func (o *owner) finish() {
	o.stopReading()
	o.mu.Lock()
	o.state = stateGone
	o.mu.Unlock()
	o.s.remove(o)
	o.s.g.m.outage.works(o.key.String())
	o.s.g.m.outage.works(o.deadPart())
	o.s.wake() // its answer may be another now
	kick(o.s.g.poke)
}

// orderOf is the order that a group's settings name.
func orderOf(c discovery.GroupConfig) window.Order {
	if c.Order == "" {
		return window.OrderPartition
	}
	return window.Order(c.Order)
}

// reorder goes on in another order of delivery: hand out no more, wait a bounded
// time for the acks of what is out, and take the partition anew, since what is
// out still must not be mixed with what the new order hands out. False when ctx
// is over or the partition is no longer wanted.
func (o *owner) reorder(ctx context.Context) bool {
	m := o.s.g.m
	o.mu.Lock()
	o.state = stateReleasing
	o.mu.Unlock()
	o.awaitAcks(ctx, m.cfg.ReleaseWait)
	o.mu.Lock()
	p, generation, released := o.win.Position(), o.generation, o.release
	o.mu.Unlock()
	if released {
		return true
	}
	if err := m.local.Merge(ctx, o.key, p); err != nil {
		o.log.Warn("the position is not in the local store", zap.Error(err))
	}
	m.checkpointer.Mark(o.key, generation, p)
	o.log.Info("the group's order has changed", zap.String("order", string(orderOf(o.s.g.settings()))))
	o.stopReading()
	return o.take(ctx)
}

// install begins delivery at a position.
func (o *owner) install(p offsets.Position, uuid string, generation uint64) error {
	win, err := window.New[*kgo.Record](p, window.Config{
		Order:       window.Order(o.s.g.settings().Order),
		MaxMessages: o.s.g.m.cfg.PrefetchCount,
		MaxBytes:    o.s.g.m.cfg.PrefetchBytes,
		MaxAttempts: maxAttempts(o.key.Group, o.key.Topic, o.s.g.settings()),
		// One key must not stop the others for ever.
		FullPatience: o.s.g.m.cfg.FullWait,
	})
	if err != nil {
		return err
	}
	id := topicID(uuid)
	o.mu.Lock()
	held := 0
	if o.win != nil {
		held = o.win.Bytes()
	}
	o.win, o.epoch, o.uuid, o.generation = win, p.SeekEpoch, uuid, generation
	o.out = nil
	o.started, o.end, o.why, o.unreadable, o.boundsDue, o.marked = false, -1, "", false, false, p.Low
	o.kept = 0
	if o.state == stateTaking {
		o.state = stateOwned
	}
	cur := o.cur
	if cur == nil {
		o.cur = o.s.g.m.reader.add(o.key.Topic, id, o.key.Partition, o)
	}
	o.mu.Unlock()
	o.s.g.m.reader.hold(int64(-held))
	if cur != nil {
		o.s.g.m.reader.wake(cur)
	}
	return nil
}

// topicID is a canonical UUID's bytes; zero for none.
func topicID(uuid string) (id [16]byte) {
	i := 0
	for _, c := range []byte(uuid) {
		var v byte
		switch {
		case c >= '0' && c <= '9':
			v = c - '0'
		case c >= 'a' && c <= 'f':
			v = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			v = c - 'A' + 10
		case c == '-':
			continue
		default:
			return [16]byte{}
		}
		if i >= 32 {
			return [16]byte{}
		}
		id[i/2] |= v << (4 * (1 - i%2))
		i++
	}
	if i != 32 {
		return [16]byte{}
	}
	return id
}

// keySeed makes the hashes of keys this process's own: nobody can choose keys
// that share one.
var keySeed = maphash.MakeSeed()

// room implements sink.
func (o *owner) room() (offset int64, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != stateOwned || o.win == nil || o.boundsDue {
		return 0, 0
	}
	if o.win.Full() {
		return 0, 0
	}
	_, bytes = o.win.Room()
	return o.win.Next(), bytes
}

// accept implements sink.
func (o *owner) accept(offset int64, part kgo.FetchPartition, next int64) {
	f := window.Fetched[*kgo.Record]{Next: next, LeaderEpoch: -1, Records: make([]window.Record[*kgo.Record], len(part.Records))}
	for i, r := range part.Records {
		f.Records[i] = window.Record[*kgo.Record]{Offset: r.Offset, Size: sizeOf(r), Ref: r, Keyed: r.Key != nil}
		if r.Key != nil {
			f.Records[i].Key = maphash.Bytes(keySeed, r.Key)
		}
		f.LeaderEpoch = r.LeaderEpoch
	}
	o.mu.Lock()
	if o.win == nil || o.state != stateOwned || o.win.Next() != offset {
		o.mu.Unlock()
		return
	}
	before := o.win.Bytes()
	err := o.win.Add(f)
	held := o.win.Bytes() - before
	if o.cur != nil && len(part.Records) > 0 {
		o.pins.add(offset, next, max(o.cur.shared, held), time.Now())
	}
	first := !o.started
	o.started = true
	// What may be read is the last stable offset; brokers that know no
	// transactions tell -1.
	o.end = part.HighWatermark
	if part.LastStableOffset >= 0 {
		o.end = part.LastStableOffset
	}
	o.end = max(o.end, o.win.Next())
	ready := o.win.Why(time.Now()) == window.Ready
	var p offsets.Position
	mark := false
	if err == nil && next > offset {
		// Offsets without a record count as acknowledged without an ack.
		if p = o.win.Position(); p.Low > o.marked {
			o.marked, mark = p.Low, true
		}
	}
	generation := o.generation
	o.mu.Unlock()
	if err != nil {
		o.log.Error("a fetch does not fit the partition's window", zap.Error(err))
		return
	}
	o.s.g.m.reader.hold(int64(held))
	if mark {
		o.s.g.m.checkpointer.Mark(o.key, generation, p)
	}
	if ready || first {
		o.s.wake()
	}
	if held > 0 {
		o.s.g.m.lent.arrived(o)
	}
}

// outOfRange implements sink.
func (o *owner) outOfRange(offset int64) {
	o.order(func() {
		if o.win != nil && o.win.Next() == offset {
			o.boundsDue, o.askBounds = true, offset
		}
	})
}

// trouble implements sink.
func (o *owner) trouble(why string) {
	o.mu.Lock()
	news := why != "" && (o.why == "" || o.unreadable)
	over := why == "" && o.why != ""
	o.why, o.unreadable = why, false
	o.mu.Unlock()
	if over {
		o.s.g.m.outage.works(o.key.String())
	}
	if news {
		o.s.g.m.outage.fails(o.key.String(), "read partitions", errors.New(why))
		o.s.wake() // a pull that waits with nothing out may answer why
	}
}

// missing implements sink.
func (o *owner) missing() { kick(o.s.g.m.lookTopics) }

// inFlight counts the messages out under leases.
func (o *owner) inFlight() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.win == nil {
		return 0
	}
	return o.win.InFlight()
}

// view is an owner at a moment.
type view struct {
	state      ownerState
	generation uint64
	epoch      uint64
	uuid       string
	position   offsets.Position
	started    bool
	end        int64 // -1 unknown
	lag        int64
	inFlight   int
	waiting    int
	bytes      int
	why        window.Why
	trouble    string
	unreadable bool   // the trouble is of the log itself
	dead       string // why dead letters cannot be written, "" when they can
	behind     bool   // the brokers have more than was fetched
	open       bool   // more may be fetched, and need not wait for what is out
}

func (o *owner) view(now time.Time) view {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.look(now, true)
}

// look needs mu.
func (o *owner) look(now time.Time, position bool) view {
	v := view{
		state: o.state, generation: o.generation, epoch: o.epoch, uuid: o.uuid,
		started: o.started, end: o.end, trouble: o.why, unreadable: o.unreadable, dead: o.dead.why, why: window.AtEnd,
	}
	if o.win == nil {
		return v
	}
	v.inFlight, v.waiting, v.bytes, v.why = o.win.InFlight(), o.win.Waiting(), o.win.Bytes(), o.win.Why(now)
	if o.dead.why != "" && (o.dead.busy && v.why == window.Delayed || v.unreadable) {
		v.why = window.DeadBlocked // also while it is tried again
	}
	v.behind = o.end > o.win.Next()
	v.open = o.win.Order() != window.OrderPartition && !o.win.Full()
	if position {
		v.position = o.win.Position()
	}
	v.lag = int64(v.inFlight + v.waiting)
	if v.behind {
		v.lag += o.end - o.win.Next()
	}
	return v
}

// tick ends leases that are over.
func (o *owner) tick(now time.Time) view {
	order := orderOf(o.s.g.settings())
	o.mu.Lock()
	var expired []int64
	reorder := false
	if o.win != nil {
		expired = o.win.Expire(now)
		o.pins.release(o.win, now)
		reorder = o.state == stateOwned && o.win.Order() != order
	}
	v := o.look(now, false)
	o.mu.Unlock()
	if reorder {
		kick(o.poke)
	}
	if len(expired) > 0 {
		o.s.g.m.metrics.expired.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(len(expired)))
		o.log.Debug("lease is over", zap.Int64s("offsets", expired))
		if v.state == stateReleasing {
			kick(o.poke)
		}
	}
	return v
}
