package spool

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

const (
	stepBytes  = 1 << 20 // sent at once, or one entry
	probeBytes = 64 << 10
	window     = 250_000 // numbers beyond the last one sent that a mark covers
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
	lookAgain  = time.Second
)

var corrupt = api.NewError(api.CodeCorruptRecord, "")

// drain sends a lane's events until none is left or the spool closes.
func (s *Spool) drain(l *lane) {
	backoff := minBackoff
	for s.ctx.Err() == nil {
		step, ok := s.nextStep(l)
		if !ok {
			return
		}
		if len(step) == 0 {
			poke(s.wake)
			select {
			case <-l.loaded:
			case <-s.ctx.Done():
			}
			continue
		}
		why := s.sendStep(l, step)
		if why == nil {
			backoff = minBackoff
			continue
		}
		s.setAway(l, why)
		wait := backoff/2 + rand.N(backoff/2+1)
		backoff = min(2*backoff, maxBackoff)
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
		}
	}
	s.mu.Lock()
	l.running = false
	s.mu.Unlock()
}

// nextStep is what to send next: the loaded entries, as many as go at once. None
// when they have to be loaded first; false when nothing is left.
func (s *Spool) nextStep(l *lane) (step []entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.queue) == 0 && l.cursor > l.last && l.isPending() {
		s.settle(l, l.last, int(l.events)) // the disk has damaged them beyond telling
	}
	if !l.isPending() {
		l.running = false
		return nil, false
	}
	limit := int64(stepBytes)
	if l.away != nil {
		limit = probeBytes
	}
	for _, e := range l.queue {
		if len(step) > 0 && limit < e.size {
			break
		}
		limit -= e.size
		step = append(step, e)
	}
	return step, true
}

// sendStep settles entries: it sends what is to be sent, and rejects what can
// never be written. The error is why it could not go on; what was settled before
// is.
func (s *Spool) sendStep(l *lane, step []entry) *api.Error {
	if step[0].raw == nil {
		return s.rejectDamaged(l, step[0])
	}
	if why, expired := s.expired(l, step[0]); expired {
		return s.rejectEntries(l, step[:1], why)
	}
	why, never := s.reachable(l)
	if never != nil {
		return s.rejectEntries(l, step, never)
	}
	if why != nil {
		return why
	}
	if why := s.letPass(l, step[len(step)-1].next-1); why != nil {
		return why
	}
	if why := s.lookFirst(l); why != nil {
		return why
	}
	if why := s.intend(l, step[len(step)-1].next-1); why != nil {
		return why
	}
	events, err := s.eventsOf(l, step)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.damaged(err.Error())
		step[0].raw, l.queue[0].raw = nil, nil
		return nil
	}
	return s.send(l, step, events)
}

// eventsOf are the events of the entries that are not settled.
func (s *Spool) eventsOf(l *lane, step []entry) (events []event, err error) {
	s.mu.Lock()
	settled := l.settled
	s.mu.Unlock()
	for _, e := range step {
		if e.raw == nil {
			return events, nil // by itself
		}
		if err := e.each(settled, func(ev event) { events = append(events, ev) }); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// reachable asks whether a lane's partition can be sent to. never is why its
// events can never be written.
func (s *Spool) reachable(l *lane) (why, never *api.Error) {
	t, err := s.brokers.Topic(s.ctx, l.key.topic)
	p, there := t.Partition(l.key.partition)
	if err != nil || !there || !sameTopic(t, l.key) || p.Leader < 0 {
		t, err = s.brokers.Refresh(s.ctx, l.key.topic)
		p, there = t.Partition(l.key.partition)
	}
	switch {
	case errors.Is(err, api.NewError(api.CodeTopicNotFound, "")):
		return s.denied(l, asError(err))
	case err != nil:
		return asError(err), nil
	case !sameTopic(t, l.key):
		return s.denied(l, api.NewError(api.CodeTopicNotFound, fmt.Sprintf("topic %s was deleted and made anew", l.key.topic)))
	case !there:
		return s.denied(l, api.NewError(api.CodePartitionNotFound, fmt.Sprintf("topic %s has no partition %d", l.key.topic, l.key.partition)))
	case p.Leader < 0:
		return unavailable(fmt.Sprintf("partition %d of topic %s has no leader: its broker is away", l.key.partition, l.key.topic)), nil
	}
	s.mu.Lock()
	l.missing = time.Time{}
	s.mu.Unlock()
	return nil, nil
}

func sameTopic(t upstream.Topic, key laneKey) bool {
	return t.UUID == "" || key.uuid == "" || t.UUID == key.uuid
}

// denied is a lane's error while its topic is not there, and the reason to reject
// its events once that has been so for long.
func (s *Spool) denied(l *lane, e *api.Error) (why, never *api.Error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.missing.IsZero() {
		l.missing = now
	}
	if now.Sub(l.missing) < s.cfg.MissingTopic {
		return e, nil
	}
	return nil, e
}

func asError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return unavailable(err.Error())
}

// lookFirst finds which of the events that may have been sent are written, when
// that is not known.
func (s *Spool) lookFirst(l *lane) *api.Error {
	s.mu.Lock()
	unsure, from := l.unsure, l.from
	s.mu.Unlock()
	if !unsure {
		return nil
	}
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-s.ctx.Done():
		return unavailable("the spool closes")
	}
	ids, numbers, err := s.idsOf(l)
	if err != nil {
		return unavailable(err.Error())
	}
	found, end, err := s.brokers.Find(s.ctx, l.key.topic, l.key.partition, from, ids)
	if (err == nil || errors.Is(err, corrupt)) && len(found) < len(ids) {
		// A request that was on its way when this looked may be there a moment later.
		select {
		case <-time.After(cmp.Or(s.cfg.LookAgain, lookAgain)):
		case <-s.ctx.Done():
			return unavailable("the spool closes")
		}
		var more map[string]int64
		more, end, err = s.brokers.Find(s.ctx, l.key.topic, l.key.partition, end, ids)
		for id, offset := range more {
			if _, before := found[id]; !before {
				found[id] = offset
			}
		}
	}
	if err != nil && !errors.Is(err, corrupt) {
		return asError(err)
	}
	if err != nil {
		s.log.Warn("the partition could not be read whole to see what of the spool is written; what was not found is sent again", zap.Stringer("partition", l.key), zap.Error(err))
	}
	s.metrics.found.Add(float64(len(found)))
	s.log.Info("looked for spooled messages that may have been sent", zap.Stringer("partition", l.key), zap.Int64("from", from), zap.Int64("end", end),
		zap.Int("sent", len(ids)), zap.Int("found", len(found)))
	s.mu.Lock()
	defer s.mu.Unlock()
	l.unsure = false
	l.found = map[int64]int64{}
	for id, offset := range found {
		l.found[numbers[id]] = offset
	}
	return nil
}

// intend makes durable that events up to a number may be sent from now on.
func (s *Spool) intend(l *lane, seq int64) *api.Error {
	s.mu.Lock()
	from, covered, early := l.from, seq <= l.onDisk.Upto, len(l.found) > 0
	s.mu.Unlock()
	if covered {
		return nil
	}
	if !early { // all that was sent is settled, so the next one is behind everything there
		end, err := s.brokers.WrittenEnd(s.ctx, l.key.topic, l.key.partition)
		if err != nil {
			return asError(err)
		}
		from = end
	}
	s.mu.Lock()
	l.from, l.upto = from, max(l.upto, seq+window)
	s.dirty = true
	s.mu.Unlock()
	for {
		s.mu.Lock()
		marked := s.marked
		s.mu.Unlock()
		poke(s.keep)
		select {
		case <-marked:
		case <-s.ctx.Done():
			return unavailable("the spool closes")
		}
		s.mu.Lock()
		err, covered := s.markErr, seq <= l.onDisk.Upto
		s.mu.Unlock()
		if covered {
			return nil
		}
		if err != nil {
			return api.NewError(api.CodeInternal, "the spool's disk does not take its marks: "+err.Error())
		}
	}
}

// send sends events and settles those whose fate is known.
func (s *Spool) send(l *lane, step []entry, events []event) *api.Error {
	s.mu.Lock()
	found, single := l.found, l.single // only this goroutine changes them
	if len(events) == 0 {
		s.done(l, step, step[0].next-1, 0)
	}
	s.mu.Unlock()
	outs := make([]outcome, len(events))
	var recs []*kgo.Record
	var which []int
	size := int64(0)
	for i, ev := range events {
		outs[i] = outcome{seq: ev.seq, partition: l.key.partition}
		if offset, ok := found[ev.seq]; ok {
			outs[i].offset = offset
			continue
		}
		r := s.recordOf(l.key, ev)
		size += int64(len(r.Key) + len(r.Value))
		recs = append(recs, r)
		which = append(which, i)
		if single { // to find which one is refused
			outs, events = outs[:i+1], events[:i+1]
			break
		}
	}
	if len(recs) > 0 {
		if !s.rate.take(s.ctx, size) {
			return unavailable("the spool closes")
		}
		answered := s.watch(l)
		errs := s.sender.Send(recs)
		answered()
		for k, err := range errs {
			i := which[k]
			if err == nil {
				outs[i].offset = recs[k].Offset
				continue
			}
			never := neverWritten(err)
			if never == nil {
				s.settleEvents(l, step, events[:i], outs[:i])
				s.mu.Lock()
				l.unsure = true // it may be written all the same
				s.mu.Unlock()
				return unavailable(fmt.Sprintf("partition %d of topic %s: %v", l.key.partition, l.key.topic, err))
			}
			if len(recs) > 1 { // its neighbours in the batch are refused with it
				s.settleEvents(l, step, events[:i], outs[:i])
				s.mu.Lock()
				l.single = true
				l.unsure = true // those behind it may be written
				s.mu.Unlock()
				return nil
			}
			s.settleEvents(l, step, events[:i], outs[:i])
			return s.refused(l, step, events[i], s.told(l.key.topic, events[i], never, err))
		}
	}
	s.settleEvents(l, step, events, outs)
	s.setAway(l, nil)
	return nil
}

// settleEvents notes the outcomes of events, which are the next ones of a lane,
// and takes the entries that are done from its queue.
func (s *Spool) settleEvents(l *lane, step []entry, events []event, outs []outcome) {
	if len(outs) == 0 {
		return
	}
	if k, ok := s.memory.get(l.key.topic); ok {
		for i := range outs {
			outs[i].topic = k.Number
		}
	}
	if err := s.outcomes.put(outs); err != nil {
		s.metrics.faults.WithLabelValues("outcomes").Inc()
		s.log.Debug("what became of spooled messages cannot be kept", zap.Error(err))
	}
	written := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outs {
		if o.offset >= 0 {
			written++
			// Later ones are behind it, unless this one was found there.
			if len(l.found) == 0 {
				l.from = max(l.from, o.offset+1)
			}
		}
	}
	for _, o := range outs {
		delete(l.found, o.seq)
	}
	s.metrics.written.Add(float64(written))
	s.done(l, step, outs[len(outs)-1].seq, len(outs))
}

// done settles up to a number and drops the entries below it. Call with mu held.
func (s *Spool) done(l *lane, step []entry, seq int64, events int) {
	for len(l.queue) > 0 && l.queue[0].next-1 <= seq {
		e := l.queue[0]
		l.queue[0] = entry{}
		l.queue = l.queue[1:]
		l.queued -= e.size
		s.loaded -= e.size
		l.single = false
	}
	if len(l.queue) > 0 {
		l.first, l.oldest = l.queue[0].base, l.queue[0].accepted
	} else {
		l.first = l.cursor
	}
	s.settle(l, seq, events)
	poke(s.wake)
}
