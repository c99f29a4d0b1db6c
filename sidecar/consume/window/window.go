// Package window is the delivery of one owned partition: which message may be
// handed out when, under which lease, as which attempt, and what position
// results. It is a state machine without clocks, goroutines or I/O: the time is
// passed in, and its owner serialises the calls.
//
// With order=partition one lease is out at a time. A nack or the expiry of a
// message returns it and every unacknowledged message above it, and until those
// are acknowledged nothing beyond them is handed out. A message that failed
// twice is handed out as the last of its batch, so it is soon alone and costs
// its neighbours no attempts; a batch that expired twice is narrowed the same
// way.
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
	case "", OrderPartition:
		return nil
	case OrderKey, OrderNone:
		return fmt.Errorf("order=%s is not available yet: use order=%s", o, OrderPartition)
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
}

// Record is a fetched message: what the window must know of it, and Ref, which
// comes back with its hand-out.
type Record[R any] struct {
	Offset int64
	Size   int // bytes that it costs in memory and counts against Take's limit
	Ref    R
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
	offset    int64
	size      int
	ref       R
	spent     int       // hand-outs that count
	lease     uint64    // number of the lease it is out under; 0: it is not out
	lastLease uint64    // number of the last lease it was out under; 0: never
	notBefore time.Time // until when the last nack put it off; zero: never nacked
	lastError string    // what the last nack said
	diverting bool      // exhausted, and listed as such
	blocked   bool      // exhausted, and could not be diverted
	alone     bool      // failed repeatedly: nothing is handed out behind it
	done      bool
}

// lease is one hand-out of a batch.
type lease struct {
	no    uint64
	until time.Time
	out   int // messages still out under it
}

// Window is the delivery state of one partition in one generation and seek
// epoch. It is not safe for concurrent use.
type Window[R any] struct {
	cfg     Config
	pos     offsets.Position // without retries of buffered messages: see Position
	next    int64            // where the next fetch begins
	msgs    []message[R]     // by offset, first one not done
	waiting int              // messages neither done nor out
	bytes   int              // of messages not done
	leases  map[uint64]*lease
	lastNo  uint64
	restore int64 // messages below were handed out by an earlier owner
	barrier int64 // messages below are redelivered before any above is handed out
	narrow  int   // most messages of a batch below the barrier; 0: any
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
	p = p.Clone()
	p.HandOut = max(p.HandOut, p.Low)
	return &Window[R]{
		cfg: cfg, pos: p, next: p.Low, leases: map[uint64]*lease{},
		restore: p.HandOut, barrier: p.HandOut,
	}, nil
}

// Next is the offset that the next fetch must begin at.
func (w *Window[R]) Next() int64 { return w.next }

// Room is how many more messages and bytes may be fetched; 0 where there is no
// room. One fetch may overrun it, since a fetch returns whole batches.
func (w *Window[R]) Room() (messages, bytes int) {
	return max(0, w.cfg.MaxMessages-w.held()), max(0, w.cfg.MaxBytes-w.bytes)
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
func (w *Window[R]) held() int { return w.waiting + w.InFlight() }

// InFlight counts the messages that are out under a lease.
func (w *Window[R]) InFlight() int {
	n := 0
	for _, l := range w.leases {
		n += l.out
	}
	return n
}

// Waiting counts the messages that were fetched and are not out.
func (w *Window[R]) Waiting() int { return w.waiting }

// Bytes are those of the messages held.
func (w *Window[R]) Bytes() int { return w.bytes }
