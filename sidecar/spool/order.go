package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// Publish takes a message with ack=spool, and passes others on; one with a key or
// a partition waits until what is spooled for its partition is written. Errors are
// as of publish.Publisher.Publish, and spool_full.
func (s *Spool) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	o = enteredOnce(o)
	if o.Ack == publish.AckSpool || s.isAway(topic, []publish.Message{m}, o) {
		return s.acceptOne(ctx, topic, m, o)
	}
	err := s.behind(ctx, topic, []publish.Message{m}, o)
	if err == nil {
		var done api.Published
		if done, err = s.next.Publish(ctx, topic, m, o); err == nil {
			s.remember(topic)
			return done, nil
		}
	}
	if s.mayTake(err, o) {
		return s.acceptOne(ctx, topic, m, o)
	}
	return api.Published{}, err
}

func (s *Spool) acceptOne(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	if m.Timestamp.IsZero() {
		m.Timestamp = time.Now()
	}
	results, err := s.accept(ctx, topic, []publish.Message{m}, o, false)
	if err != nil {
		return api.Published{}, err
	}
	return api.Published{Topic: topic, Partition: results[0].Partition, Offset: -1, Timestamp: m.Timestamp.UnixMilli(), SpoolID: results[0].SpoolID}, nil
}

// PublishBatch is Publish for several messages.
func (s *Spool) PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	if len(ms) == 0 {
		return s.next.PublishBatch(ctx, topic, ms, o)
	}
	o = enteredOnce(o)
	at := s.placeOf(ms, o)
	if o.Ack == publish.AckSpool || s.isAway(topic, ms, o) {
		return s.accept(ctx, topic, ms, o, true)
	}
	err := s.behind(ctx, topic, ms, o)
	var results []api.BatchResult
	if err == nil {
		results, err = s.next.PublishBatch(ctx, topic, ms, o)
	}
	if err != nil {
		var taken []api.BatchResult
		var refused error
		if s.mayTake(err, o) && at.ifLast(func() { taken, refused = s.accept(ctx, topic, ms, o, true) }) {
			return taken, refused
		}
		return nil, err
	}
	if slices.ContainsFunc(results, func(r api.BatchResult) bool { return r.Error == nil }) {
		s.remember(topic)
	}
	if !slices.ContainsFunc(results, func(r api.BatchResult) bool { return r.Error != nil && s.mayTake(r.Error, o) }) {
		return results, nil
	}
	if !at.ifLast(func() { results = s.takeRest(ctx, topic, ms, results, o, false) }) {
		results = s.takeRest(ctx, topic, ms, results, o, true)
	}
	return results, nil
}

// place is that of a request in its Sequence, where it has one.
type place struct {
	in *publish.Sequence
	n  int
}

// placeOf is nowhere for a request whose order does not count, or which the spool
// takes in no other's place.
func (s *Spool) placeOf(ms []publish.Message, o publish.Options) place {
	if o.Sequence == nil || !s.cfg.Fallback || !slices.ContainsFunc(ms, func(m publish.Message) bool { return m.Key != nil || m.Partition != nil }) {
		return place{}
	}
	return place{o.Sequence, o.Sequence.Begin()}
}

// ifLast calls do unless later requests of the sequence have begun: those may be
// written by now, or wait to be, and what goes to the spool comes behind them.
func (p place) ifLast(do func()) bool {
	if p.in == nil {
		do()
		return true
	}
	return p.in.IfLast(p.n, do)
}

// enteredOnce makes Entered be called once, though first the brokers and then the
// spool may take the messages.
func enteredOnce(o publish.Options) publish.Options {
	if entered := o.Entered; entered != nil {
		o.Entered = sync.OnceFunc(entered)
	}
	return o
}

// isAway says that messages without a key, whose caller takes a place in the spool,
// need not wait for the brokers' 503: all that is spooled for their topic makes no
// way. Those with a key learn it by their partition, see behind.
func (s *Spool) isAway(topic string, ms []publish.Message, o publish.Options) bool {
	if !s.cfg.Fallback || !o.MaySpool || !s.anyBusy.Load() ||
		slices.ContainsFunc(ms, func(m publish.Message) bool { return m.Key != nil || m.Partition != nil }) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	any := false
	for _, l := range s.lanes {
		if l.key.topic == topic && l.isPending() {
			if l.away == nil {
				return false
			}
			any = true
		}
	}
	return any
}

// mayTake says that the spool takes what the brokers certainly have not.
func (s *Spool) mayTake(err error, o publish.Options) bool {
	return s.cfg.Fallback && o.MaySpool && errors.Is(err, api.NewError(api.CodeBrokersUnavailable, ""))
}

// takeRest takes those messages of a batch that the brokers certainly have not.
// One without a key may go to any partition; of the others the order counts: a
// message stays refused when a later one of its partition is written, or may be,
// of which later says that another request has them.
func (s *Spool) takeRest(ctx context.Context, topic string, ms []publish.Message, results []api.BatchResult, o publish.Options, later bool) []api.BatchResult {
	t, err := s.topic(ctx, topic)
	if err != nil {
		return results
	}
	var rest []publish.Message
	var which []int
	passed := map[int32]bool{} // partitions, looking from the end
	for i := len(results) - 1; i >= 0; i-- {
		e := results[i].Error
		partition, ordered := orderedIn(ms[i], t.Partitions)
		if e != nil && s.mayTake(e, o) && !(ordered && (later || passed[partition])) {
			which = append(which, i)
			continue
		}
		if ordered && (e == nil || e.Code == api.CodeUnknownOutcome) {
			passed[partition] = true
		}
	}
	if len(which) == 0 {
		return results
	}
	slices.Reverse(which)
	for _, i := range which {
		rest = append(rest, ms[i])
	}
	o.Entered = nil // it was called
	taken, err := s.accept(ctx, topic, rest, o, false)
	for k, i := range which {
		if err != nil {
			results[i].Error = asError(err)
			continue
		}
		results[i] = taken[k]
	}
	return results
}

// orderedIn is the partition of a message whose order counts.
func orderedIn(m publish.Message, partitions int32) (partition int32, ordered bool) {
	switch {
	case m.Partition != nil:
		return *m.Partition, true
	case m.Key != nil:
		return publish.PartitionOf(m.Key, partitions), true
	}
	return 0, false
}

// behind waits until everything is settled that was spooled before for the
// partitions of these messages, which have keys or name them. When that makes no
// way the error is brokers_unavailable, as it would be without the spool: nothing
// was sent.
func (s *Spool) behind(ctx context.Context, topic string, ms []publish.Message, o publish.Options) error {
	if !s.anyBusy.Load() {
		return nil
	}
	s.mu.Lock()
	busy := s.busy[topic] > 0
	s.mu.Unlock()
	if !busy {
		return nil
	}
	partitions, err := s.partitionsOf(ctx, topic, ms)
	if err != nil {
		return nil // the publisher says it better
	}
	if len(partitions) == 0 {
		return nil
	}
	timeout, begun := o.Timeout, o.Begun
	if timeout == 0 {
		timeout = s.cfg.Timeout
	}
	if begun.IsZero() {
		begun = time.Now()
	}
	over := time.NewTimer(time.Until(begun.Add(timeout)))
	defer over.Stop()
	for {
		l, target, changed, away := s.inTheWay(topic, partitions)
		if l == nil {
			return nil
		}
		if away != nil {
			return unavailable(fmt.Sprintf("messages that are in the spool must be sent to partition %d of topic %s first, which makes no way: %s; nothing of this request was sent", l.key.partition, topic, away.Message))
		}
		for waiting := true; waiting; {
			select {
			case <-changed:
			case <-over.C:
				return unavailable(fmt.Sprintf("the time (timeout %s) was over before the messages that are in the spool for partition %d of topic %s were written; nothing of this request was sent", timeout, l.key.partition, topic))
			case <-ctx.Done():
				return unavailable("the request ended before it was sent")
			}
			s.mu.Lock()
			changed = l.changed
			waiting = l.settled < target && l.away == nil
			if l.settled >= target {
				partitions[l.key.partition] = max(partitions[l.key.partition], target)
			}
			s.mu.Unlock()
		}
	}
}

// partitionsOf are those of messages whose order counts. The value is the number
// up to which a partition's events are behind this request already, 0 at first.
func (s *Spool) partitionsOf(ctx context.Context, topic string, ms []publish.Message) (map[int32]int64, error) {
	t, err := s.topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	partitions := map[int32]int64{}
	for i := range ms {
		if p, ordered := orderedIn(ms[i], t.Partitions); ordered {
			partitions[p] = 0
		}
	}
	return partitions, nil
}

// inTheWay is a lane with events that were accepted before and are not settled,
// the number up to which to wait for them, and what tells of a change.
func (s *Spool) inTheWay(topic string, partitions map[int32]int64) (l *lane, target int64, changed chan struct{}, away *api.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		waited, asked := partitions[l.key.partition]
		if l.key.topic != topic || !asked || !l.isPending() {
			continue
		}
		if waited > 0 { // what came later is behind this request
			continue
		}
		return l, l.last, l.changed, l.away
	}
	return nil, 0, nil, nil
}
