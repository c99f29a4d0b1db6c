package consume

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// giveUp releases the partition in an order that repeats nothing: stop handing
// out, wait a bounded time for the acks of what is out, write the position, and
// only then let go of the lock.
func (o *owner) giveUp(ctx context.Context) {
	m := o.s.g.m
	o.mu.Lock()
	o.state = stateReleasing
	o.mu.Unlock()

	// A topic that is gone has nothing to be acknowledged for.
	if o.s.goneError() == nil {
		o.awaitAcks(ctx, m.cfg.ReleaseWait)
	}

	o.mu.Lock()
	o.state = stateGone // an ack that comes now is answered lease_lost
	p, generation := o.win.Position(), o.generation
	o.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if err := m.local.Merge(ctx, o.key, p); err != nil {
		o.log.Warn("the position at release is not in the local store", zap.Error(err))
	}
	m.checkpointer.Mark(o.key, generation, p)
	for failures := 1; ; failures++ {
		err := o.unlock(ctx)
		if err == nil {
			break
		}
		m.metrics.checkpoints.Inc()
		m.outage.fails(o.key.String(), "release partitions", err)
		if pause(ctx, backOff(failures, 50*time.Millisecond, 2*time.Second)) != nil {
			return
		}
	}
	m.checkpointer.Forget(o.key)
	m.metrics.moves.WithLabelValues(o.key.Group, "released").Inc()
	o.log.Info("partition released", zap.Int64("position", p.Low), zap.String("cause", o.causeText()))
}

// unlock writes the position and deletes the lock. Losing the lock on the way
// is no error: then another may have it.
func (o *owner) unlock(ctx context.Context) error {
	m := o.s.g.m
	select {
	case m.unlocks <- struct{}{}:
		defer func() { <-m.unlocks }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := m.checkpointer.FlushKey(ctx, o.key); err != nil {
		return err
	}
	lock := discovery.KeyOwner(o.key.Group, o.key.Topic, o.key.Partition)
	_, err := m.store.Commit(ctx, discovery.Held(lock, o.sess.ID()), discovery.Delete(lock))
	if errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrSessionLost) {
		return nil
	}
	return err
}

// awaitAcks waits until nothing is out under a lease or on its way to the dead
// letters, at most so long.
func (o *owner) awaitAcks(ctx context.Context, longest time.Duration) {
	deadline := time.NewTimer(longest)
	defer deadline.Stop()
	for o.inFlight() > 0 || o.isDiverting() {
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			return
		case <-o.poke: // an ack, a nack, an expiry, or a dead letter was written
		}
	}
}
