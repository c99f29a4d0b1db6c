package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sidecar/upstream"
)

// life is how long the records of one request stay in the brokers' client.
//
// With ack=all it ends a little before the caller's time is over if none of
// them has been sent (no producer id could be had, the broker cannot be dialled
// or takes nothing): the caller is told 503, and nothing is written behind its
// back. Otherwise the client keeps them until a broker tells their fate. The
// client takes out all that waits for the partition together, for the order's
// sake, records of other callers included: those that were not sent either are
// displaced, and tried again; those that were are 504. So it happens only where
// a broker has taken nothing for a second at least, and never for a caller who
// waits for less.
//
// With ack=leader there is one attempt, and the records share contexts that
// outlive their callers (expiry).
type life struct {
	ctx    context.Context // nil with ack=leader
	cancel context.CancelFunc
	check  <-chan time.Time // when to look whether anything was sent

	// By record, as it entered; of the request's goroutine.
	parts  []upstream.Partition
	before []int64
}

// minLife is the shortest life that is ended for want of a broker: less may be
// a slow disk.
const minLife = time.Second

// lifeOf is that of a request of n records whose caller waits until ctx ends.
func (p *Publisher) lifeOf(ctx context.Context, o Options, n int) *life {
	deadline, ok := ctx.Deadline()
	if o.Ack != AckAll || !ok {
		return &life{}
	}
	// The client looks at it with each try, about every second.
	left := time.Until(deadline)
	l := &life{parts: make([]upstream.Partition, n), before: make([]int64, n)}
	if after := left - min(left/4, 1500*time.Millisecond); after >= minLife {
		l.check = time.After(after)
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// enters remembers what was sent to the partition's brokers before record i.
func (l *life) enters(i int, part upstream.Partition, before int64) {
	if l.ctx != nil {
		l.parts[i], l.before[i] = part, before
	}
}

// endUnsent ends the life if nothing of what has not landed was sent.
func (l *life) endUnsent(f *flight, w *writes) {
	_, _, landed := f.fates()
	for i, done := range landed {
		if !done && w.to(l.parts[i]) != l.before[i] {
			return
		}
	}
	l.cancel()
}

// end frees the context when all has landed; before, the records need it.
func (l *life) end(f *flight) {
	if l.cancel == nil {
		return
	}
	select {
	case <-f.done:
		l.cancel()
	default:
	}
}

func (l *life) context(p *Publisher, now time.Time) context.Context {
	if l.ctx == nil {
		return p.expiry.context(now)
	}
	return l.ctx
}

// errNotSent is the end of a record that the client took out unsent.
var errNotSent = errors.New("not sent")

// fate is what the client's error says of a record with this life. unsent says
// that no broker that may have it was written to since the record entered.
func (l *life) fate(err error, unsent bool) error {
	switch {
	case l.ctx == nil || err == nil || !unsent || !tookOut(err):
		return err
	case l.ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return errDisplaced
}

// tookOut tells that the idempotent client gave a record up because a life is
// over: the error is the context's, or that of what comes before sending
// (looking up the leader, dialling it, getting a producer id). By itself it does
// not prove that nothing was sent.
func tookOut(err error) bool {
	return errors.Is(err, context.Canceled) ||
		errors.Is(err, kerr.LeaderNotAvailable) ||
		strings.HasPrefix(err.Error(), "unable to initialize a producer ID") || // kgo's, of a type that is not exported
		upstream.IsDial(err)
}

// writes counts the produce requests of which a byte was written, by broker.
type writes struct{ byBroker sync.Map } // int32: *atomic.Int64

// OnBrokerWrite implements kgo.HookBrokerWrite. The client calls it before it
// looks at the answer, so a record that it gave up has been counted.
func (w *writes) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, bytes int, _, _ time.Duration, _ error) {
	if key != kmsg.Produce.Int16() || bytes == 0 {
		return
	}
	n, ok := w.byBroker.Load(meta.NodeID)
	if !ok {
		n, _ = w.byBroker.LoadOrStore(meta.NodeID, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// to is how many went to the brokers that may lead a partition. It only grows.
func (w *writes) to(part upstream.Partition) (sum int64) {
	count := func(broker int32) {
		if n, ok := w.byBroker.Load(broker); ok {
			sum += n.(*atomic.Int64).Load()
		}
	}
	if !slices.Contains(part.Replicas, part.Leader) {
		count(part.Leader)
	}
	for _, broker := range part.Replicas {
		count(broker)
	}
	return sum
}
