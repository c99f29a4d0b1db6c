package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/sdk/api"
)

// refused settles the next event of a lane, which was sent alone and refused. The
// sender repeats by itself, and what the topic takes may have changed between: an
// earlier attempt may have been written.
func (s *Spool) refused(l *lane, step []entry, ev event, why *api.Error) *api.Error {
	s.mu.Lock()
	from := l.from
	s.mu.Unlock()
	id := s.idOfEvent(ev)
	found, _, err := s.brokers.Find(s.ctx, l.key.topic, l.key.partition, from, map[string]struct{}{id: {}})
	if offset, written := found[id]; written {
		s.settleEvents(l, step, []event{ev}, []outcome{{seq: ev.seq, offset: offset, partition: l.key.partition}})
		return nil
	}
	if err != nil && !errors.Is(err, corrupt) {
		s.mu.Lock()
		l.unsure = true
		s.mu.Unlock()
		return asError(err)
	}
	return s.reject(l, step, []event{ev}, why)
}

// reject moves events, the next ones of a lane, to the file of rejected messages.
func (s *Spool) reject(l *lane, step []entry, events []event, why *api.Error) *api.Error {
	now := time.Now()
	lines := make([][]byte, len(events))
	for i, ev := range events {
		line, err := json.Marshal(rejectedOf(s.nonce, l.key, ev, why, now))
		if err != nil {
			return api.NewError(api.CodeInternal, err.Error())
		}
		lines[i] = line
	}
	places, err := s.rejects.add(lines)
	if err != nil {
		return api.NewError(api.CodeInternal, fmt.Sprintf("a message that can never be written (%s) cannot be rejected: %v", why.Message, err))
	}
	outs := make([]outcome, len(events))
	for i, ev := range events {
		outs[i] = outcome{seq: ev.seq, offset: -2 - places[i], partition: l.key.partition}
	}
	s.metrics.rejected.WithLabelValues(string(why.Code)).Add(float64(len(events)))
	s.log.Warn("spooled messages that can never be written are rejected", zap.Stringer("partition", l.key), zap.Int("messages", len(events)),
		zap.String("why", why.Message), zap.String("file", s.dir+"/"+RejectsName))
	s.settleEvents(l, step, events, outs)
	return nil
}

// rejectEntries moves all events of entries to the file of rejected messages,
// except for those that are written already.
func (s *Spool) rejectEntries(l *lane, step []entry, why *api.Error) *api.Error {
	for i, e := range step {
		if e.raw == nil {
			step = step[:i]
			break
		}
	}
	events, err := s.eventsOf(l, step)
	if err != nil {
		return api.NewError(api.CodeInternal, err.Error())
	}
	for len(events) > 0 {
		offset, written := l.found[events[0].seq] // only this goroutine changes them
		n := 1
		for n < len(events) && !written {
			if _, written := l.found[events[n].seq]; written {
				break
			}
			n++
		}
		if written {
			s.settleEvents(l, step, events[:1], []outcome{{seq: events[0].seq, offset: offset, partition: l.key.partition}})
		} else if why := s.reject(l, step, events[:n], why); why != nil {
			return why
		}
		events = events[n:]
	}
	return nil
}

// rejectDamaged settles an entry whose bytes are lost.
func (s *Spool) rejectDamaged(l *lane, e entry) *api.Error {
	events := []event{}
	s.mu.Lock()
	for seq := max(e.base, l.settled) + 1; seq < e.next; seq++ {
		events = append(events, event{seq: seq})
	}
	s.mu.Unlock()
	if len(events) == 0 {
		return nil
	}
	return s.reject(l, []entry{e}, events, errDamaged)
}
