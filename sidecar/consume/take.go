package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

var errHeld = errors.New("another sidecar still owns the partition")

// take makes this sidecar the partition's owner: lock, new generation, read
// where to begin, fetch. It tries until it has it; false when ctx is over or the
// partition is no longer wanted.
func (o *owner) take(ctx context.Context) bool {
	for failures := 1; ; failures++ {
		err := o.tryTake(ctx)
		if err == nil {
			o.s.g.m.outage.works(o.key.String())
			return true
		}
		wait := backOff(failures, 100*time.Millisecond, 2*time.Second)
		if errors.Is(err, errHeld) {
			// The former owner is waiting for acks, or its session runs out.
			wait = backOff(failures, 20*time.Millisecond, 250*time.Millisecond)
		} else if ctx.Err() == nil {
			o.s.g.m.outage.fails(o.key.String(), "take partitions", err)
			if isCode(err, api.CodeTopicNotFound) {
				kick(o.s.g.m.lookTopics)
			}
		}
		o.mu.Lock()
		o.why, o.unreadable = "", false
		if isCode(err, api.CodeBrokersUnavailable) {
			o.why = err.Error()
		}
		o.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-o.poke:
		case <-t.C:
		}
		t.Stop()
		o.mu.Lock()
		unwanted := o.release
		o.mu.Unlock()
		if unwanted || ctx.Err() != nil {
			o.dropLock(ctx)
			return false
		}
	}
}

func (o *owner) tryTake(ctx context.Context) error {
	m := o.s.g.m
	topic, err := m.up.Topic(ctx, o.key.Topic)
	if err != nil {
		return brokerError("read the topic", err)
	}
	if _, ok := topic.Partition(o.key.Partition); !ok {
		if topic, err = m.up.Refresh(ctx, o.key.Topic); err != nil {
			return brokerError("read the topic", err)
		}
		if _, ok := topic.Partition(o.key.Partition); !ok {
			return fmt.Errorf("topic %s has no partition %d", topic.Name, o.key.Partition)
		}
	}
	if err := o.enterSlot(ctx); err != nil {
		return err
	}
	defer o.leaveSlot()

	o.mu.Lock()
	value := discovery.Owner{Sidecar: m.id, Nonce: m.nonce, Plan: o.plan}
	o.mu.Unlock()
	lock := discovery.KeyOwner(o.key.Group, o.key.Topic, o.key.Partition)
	_, err = m.store.Commit(ctx, discovery.Acquire(lock, discovery.Encode(value), o.sess.ID()))
	if errors.Is(err, discovery.ErrConflict) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("lock the partition: %w", err)
	}
	// From here on nobody else can raise the generation; what a former owner may
	// still add to the position, the claim merges.
	own, err := o.startPosition(ctx, topic.UUID, nil)
	if err != nil {
		return err
	}
	claimed, err := m.checkpointer.Claim(ctx, o.key, o.sess.ID(), own)
	if errors.Is(err, offsets.ErrNotOwner) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("claim the partition: %w", err)
	}
	if err := o.install(claimed.Position, topic.UUID, claimed.Generation); err != nil {
		return err
	}
	m.metrics.moves.WithLabelValues(o.key.Group, "taken").Inc()
	o.log.Info("partition taken", zap.Uint64("generation", claimed.Generation), zap.Int64("from", claimed.Position.Low), zap.String("cause", o.causeText()))
	o.s.wake()
	return nil
}

// enterSlot waits for one of the slots that bound how many partitions are taken
// at the same time. It is held while the store is asked, and not while the
// brokers are: leaders that do not answer must not hold up other groups' takes.
func (o *owner) enterSlot(ctx context.Context) error {
	select {
	case o.s.g.m.takes <- struct{}{}:
		o.slotted = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *owner) leaveSlot() {
	if o.slotted {
		o.slotted = false
		<-o.s.g.m.takes
	}
}

func (o *owner) causeText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cause
}

// startPosition reads all that tells where the partition stands: the seek, the
// local store, the coordination store (or live, when the caller has it in
// memory), and at last the group's beginning.
func (o *owner) startPosition(ctx context.Context, uuid string, live *offsets.Position) (offsets.Position, error) {
	m := o.s.g.m
	seek, err := m.readSeek(ctx, o.key.Group, o.key.Topic)
	if err != nil {
		return offsets.Position{}, err
	}
	var known []offsets.Position
	if live != nil {
		known = append(known, *live)
	} else {
		p, ok, err := m.local.Get(o.key)
		if err != nil {
			return offsets.Position{}, fmt.Errorf("read the local position: %w", err)
		}
		if ok {
			known = append(known, p)
		}
		e, err := m.store.Get(ctx, discovery.KeyOffset(o.key.Group, o.key.Topic, o.key.Partition))
		switch {
		case err == nil:
			st, err := offsets.DecodeStored(e)
			if err != nil {
				return offsets.Position{}, err
			}
			known = append(known, st.Position)
		case !errors.Is(err, discovery.ErrNotFound):
			return offsets.Position{}, fmt.Errorf("read the stored position: %w", err)
		}
	}
	base, needBegin := startAt(uuid, o.key.Partition, seek, known)
	if needBegin {
		slotted := o.slotted
		o.leaveSlot()
		topic, err := m.up.Topic(ctx, o.key.Topic)
		if err != nil {
			return base, brokerError("read the topic", err)
		}
		at, err := o.s.beginOffset(ctx, topic, o.key.Partition)
		if err != nil {
			return base, brokerOrStore("find where the group begins", err)
		}
		if slotted {
			if err := o.enterSlot(ctx); err != nil {
				return base, err
			}
		}
		base.Low, base.HandOut = at, at
	}
	return base, nil
}

// dropLock gives back a lock that may have been taken on the way.
func (o *owner) dropLock(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	lock := discovery.KeyOwner(o.key.Group, o.key.Topic, o.key.Partition)
	id := o.sess.ID()
	if _, err := o.s.g.m.store.Commit(ctx, discovery.Held(lock, id), discovery.Delete(lock)); err != nil && !errors.Is(err, discovery.ErrConflict) {
		o.log.Warn("the partition's lock could not be given back; it ends with the session", zap.Error(err))
	}
}

// applySeek restarts the partition at the target of the group's latest seek.
func (o *owner) applySeek(ctx context.Context) {
	m := o.s.g.m
	for failures := 1; ctx.Err() == nil; failures++ {
		o.mu.Lock()
		if o.win == nil || o.release {
			o.mu.Unlock()
			return
		}
		live, uuid, generation := o.win.Position(), o.uuid, o.generation
		o.mu.Unlock()
		p, err := o.startPosition(ctx, uuid, &live)
		if err == nil && p.SeekEpoch <= live.SeekEpoch {
			// The planner knows of a seek that is not there any more (a store that
			// was wiped): nothing to do, and nothing to ask for again.
			o.s.forgetEpoch(live.SeekEpoch)
			return
		}
		if err == nil {
			err = m.local.Merge(ctx, o.key, p)
		}
		if err == nil {
			err = o.install(p, uuid, generation)
		}
		if err == nil {
			m.checkpointer.Mark(o.key, generation, p)
			if err := m.checkpointer.FlushKey(ctx, o.key); err != nil {
				o.log.Warn("the position of a seek is not in the coordination store yet", zap.Error(err))
			}
			m.outage.works(o.key.String())
			o.log.Info("partition sought", zap.Uint64("seek_epoch", p.SeekEpoch), zap.Int64("to", p.Low))
			o.s.wake()
			return
		}
		if ctx.Err() == nil {
			m.outage.fails(o.key.String(), "apply a seek", err)
		}
		if pause(ctx, backOff(failures, 50*time.Millisecond, time.Second)) != nil {
			return
		}
	}
}

// applyBounds acts on an offset that the brokers do not have: below the log's
// start it jumps there, since what retention removed cannot be delivered.
func (o *owner) applyBounds(ctx context.Context) {
	m := o.s.g.m
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	start, end, err := bounds(call, m.up, o.key.Topic, o.key.Partition)
	cancel()
	o.mu.Lock()
	asked := o.askBounds
	o.boundsDue = false
	if err != nil || o.win == nil || o.win.Next() != asked {
		cur := o.cur
		o.mu.Unlock()
		if cur != nil {
			m.reader.wake(cur)
		}
		return
	}
	switch {
	case asked < start:
		before := o.win.Bytes()
		held, unfetched := o.win.SkipTo(start)
		freed := o.win.Bytes() - before
		p, generation, cur := o.win.Position(), o.generation, o.cur
		o.mu.Unlock()
		m.reader.hold(int64(freed))
		m.metrics.jumped.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(int64(held) + unfetched))
		o.log.Warn("the log begins above the group's position: what is no longer there is passed over",
			zap.Int64("position", asked), zap.Int64("start", start), zap.Int64("offsets", int64(held)+unfetched))
		m.checkpointer.Mark(o.key, generation, p)
		if cur != nil {
			m.reader.wake(cur)
		}
	case asked > end:
		why := fmt.Sprintf("the position %d is above the log's end %d: the log has lost its tail; seek the group to go on", asked, end)
		news := o.standStill(why)
		o.mu.Unlock()
		if news {
			o.stoodStill(why)
		}
		// Or it is another topic by now. The reader tries again, ever slower.
		kick(m.lookTopics)
	default:
		cur := o.cur
		o.mu.Unlock()
		if cur != nil {
			m.reader.wake(cur)
		}
	}
}
