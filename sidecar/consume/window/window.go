// Package window is the delivery of one owned partition: which message may be
// handed out when, under which lease, as which attempt, and what position
// results. It is a state machine without clocks, goroutines or I/O: the time is
// passed in, and its owner serialises the calls.
//
// Messages stand in lanes: with order=partition all in one, with order=key those
// of a key in one and those without a key each in its own, with order=none each
// in its own. Of a lane one lease is out at a time. A nack or the expiry of a
// message returns it and every unacknowledged message of its lane above it, and
// until those are acknowledged nothing of the lane beyond them is handed out. A
// message that failed twice is handed out as the last of its lane's batch, so it
// is soon alone and costs its neighbours no attempts; a batch that expired twice
// is narrowed the same way. Lanes do not wait for each other.
package window

import (
	"errors"
	"fmt"
	"time"

	"sidestream/sidecar/offsets"
)

// Order is what a group promises of the order of messages.
type Order string

const (
	OrderPartition Order = "partition" // the default, also written ""
	OrderKey       Order = "key"
	OrderNone      Order = "none"
)

// CheckOrder says what is wrong with a group's order, or nil.
func CheckOrder(o Order) error {
	switch o {
	case "", OrderPartition, OrderKey, OrderNone:
		return nil
	}
	return fmt.Errorf("order=%q is unknown: use %s, %s or %s", string(o), OrderPartition, OrderKey, OrderNone)
}

var (
	// ErrLeaseLost: the lease that the message was handed out under is over
	// (expired, returned, or acknowledged), so it cannot be nacked or extended.
	ErrLeaseLost = errors.New("window: the lease is over")
	// ErrAcked: the message is acknowledged, so there is no lease of it.
	ErrAcked = errors.New("window: acknowledged already")
	// ErrUnknown: no such message was handed out under such a lease.
	ErrUnknown = errors.New("window: never handed out")
)

// Config is how a window delivers.
type Config struct {
	Order       Order
	MaxMessages int // messages held, fetched and not acknowledged; default 10,000
	MaxBytes    int // their bytes; default 16 MiB
	MaxAttempts int // hand-outs of a message after which it is exhausted; 0: no limit
	// FullPatience is how long, with order=key, a message that was put off may
	// keep everything else waiting by filling the window with what is behind it;
	// default 1 min.
	FullPatience time.Duration
}

// Record is a fetched message: what the window must know of it, and Ref, which
// comes back with its hand-out.
type Record[R any] struct {
	Offset int64
	Size   int // bytes that it costs in memory and counts against Take's limit
	Ref    R
	Key    uint64 // hash of its key, with Keyed; two keys of one hash are kept in one order
	Keyed  bool   // it has a key
}

// Fetched is what one fetch brought. Every offset from the fetch's start to Next
// that is not among Records holds no message and counts as acknowledged.
type Fetched[R any] struct {
	Records     []Record[R] // by offset
	Next        int64       // where the next fetch begins
	LeaderEpoch int32       // of the last batch; -1 when unknown
}

// Handout is a message handed out under a lease.
type Handout[R any] struct {
	Offset     int64
	Attempt    int // 1 at first
	LeaseNo    uint64
	LeaseUntil time.Time
	Ref        R
}

// Why says why Take has nothing to hand out.
type Why int

const (
	Ready        Why = iota // there is something to hand out
	AtEnd                   // nothing fetched is left: at the end, or the fetch is under way
	InFlightFull            // what is out must be acknowledged first
	Delayed                 // the next message was put off by a nack, or is being diverted
	DeadBlocked             // the next message is exhausted and could not be diverted
)

func (w Why) String() string {
	return [...]string{"ready", "at_end", "in_flight_full", "delayed", "dead_blocked"}[w]
}

// message is a fetched message that is not acknowledged, or one that was and
// still stands between others (done).
type message[R any] struct {
	offset     int64
	size       int
	ref        R
	lane       *lane[R]
	prev, next *message[R] // in its lane
	spent      int         // hand-outs that count
	lease      uint64      // number of the lease it is out under; 0: it is not out
	lastLease  uint64      // number of the last lease it was out under; 0: never
	notBefore  time.Time   // until when the last nack put it off; zero: never nacked
	firstError string      // what nacks said
	lastError  string
	excused    bool // its last hand-out is no failure of its own, as far as is known
	noted      bool // it is in Window.tried
	diverting  bool // exhausted, and listed as such
	blocked    bool // exhausted, and could not be diverted
	crowds     bool // exhausted since it fills the window
	alone      bool // failed repeatedly: nothing is handed out behind it
	done       bool
}

// fail keeps what the application says of a message.
func (m *message[R]) fail(why string) {
	if why == "" {
		return
	}
	m.lastError = why
	if m.firstError == "" {
		m.firstError = why
	}
}

// lease is what one Take handed out.
type lease[R any] struct {
	out   int        // messages still out under it
	lanes []*lane[R] // that they are of, and others that are done with it
}

// Window is the delivery state of one partition in one generation and seek
// epoch. It is not safe for concurrent use.
type Window[R any] struct {
	cfg      Config
	pos      offsets.Position // without retries of buffered messages: see Position
	next     int64            // where the next fetch begins
	msgs     []*message[R]    // by offset, first one not done
	settled  int              // of msgs, those done
	passes   bool             // there may be messages below the hand-out edge that were never handed out
	tried    []*message[R]    // by offset: failed, or handed out more than once
	waiting  int              // messages neither done nor out
	inFlight int              // messages out
	bytes    int              // of messages not done
	leases   map[uint64]*lease[R]
	lastNo   uint64    // of the leases
	restore  int64     // messages below were handed out by an earlier owner
	epoch    time.Time // see rank

	whole *lane[R]            // with order=partition
	keys  map[uint64]*lane[R] // with order=key: those with messages, by the key's hash
	// Each lane with messages stands in one of these:
	ready lanes[R] // by the offset that comes next
	later lanes[R] // its first message was put off: by the time it comes due
	out   lanes[R] // by the end of its lease
	dead  lanes[R] // its first message is exhausted: by its offset

	stuckSince time.Time // see crowd
}

// New begins delivery at a position, as claimed. Messages acknowledged in it are
// not delivered again; unacknowledged ones below its hand-out edge were handed
// out by whoever owned the partition before, so one attempt of them is spent at
// least; its retries keep their attempts and delays.
func New[R any](p offsets.Position, cfg Config) (*Window[R], error) {
	if err := CheckOrder(cfg.Order); err != nil {
		return nil, err
	}
	if cfg.MaxMessages <= 0 {
		cfg.MaxMessages = 10_000
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 16 << 20
	}
	if cfg.FullPatience <= 0 {
		cfg.FullPatience = time.Minute
	}
	if cfg.Order == "" {
		cfg.Order = OrderPartition
	}
	p = p.Clone()
	p.HandOut = max(p.HandOut, p.Low)
	w := &Window[R]{cfg: cfg, pos: p, next: p.Low, restore: p.HandOut, epoch: time.Now(), leases: map[uint64]*lease[R]{}}
	w.passes = cfg.Order != OrderPartition || len(p.Passed) > 0
	switch cfg.Order {
	case OrderPartition:
		w.whole = &lane[R]{barrier: p.HandOut}
	case OrderKey:
		w.keys = map[uint64]*lane[R]{}
	}
	return w, nil
}

// Order is how the window delivers.
func (w *Window[R]) Order() Order { return w.cfg.Order }

// Next is the offset that the next fetch must begin at.
func (w *Window[R]) Next() int64 { return w.next }

// Room is how many more messages and bytes may be fetched; 0 where there is no
// room. One fetch may overrun it, since a fetch returns whole batches.
func (w *Window[R]) Room() (messages, bytes int) {
	return max(0, w.cfg.MaxMessages-w.held()), max(0, w.cfg.MaxBytes-w.bytes)
}

// Full says that it is not worth a fetch yet: less than a quarter of the room is
// free, and fetches of single messages cost as much as those of hundreds.
func (w *Window[R]) Full() bool {
	messages, bytes := w.Room()
	return messages < (w.cfg.MaxMessages+3)/4 || bytes < (w.cfg.MaxBytes+3)/4
}

// Message tells of a message that is held and not acknowledged: how many
// hand-outs of it count, and its Ref. It is for deciding what becomes of one that
// failed too often.
func (w *Window[R]) Message(offset int64) (attempts int, ref R, ok bool) {
	m := w.find(offset)
	if m == nil || m.done {
		return 0, ref, false
	}
	return m.spent, m.ref, true
}

// held counts the messages that are not acknowledged.
func (w *Window[R]) held() int { return w.waiting + w.inFlight }

// InFlight counts the messages that are out under a lease.
func (w *Window[R]) InFlight() int { return w.inFlight }

// Leases counts those that were given.
func (w *Window[R]) Leases() uint64 { return w.lastNo }

// Waiting counts the messages that were fetched and are not out.
func (w *Window[R]) Waiting() int { return w.waiting }

// Bytes are those of the messages held.
func (w *Window[R]) Bytes() int { return w.bytes }
