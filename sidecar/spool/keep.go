package spool

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	keepEvery    = time.Second
	reclaimEvery = 10 * time.Second
)

// keepMarks writes the marks when one is wanted, and each second what has come
// to be; then it gives back the room of what is settled.
func (s *Spool) keepMarks() {
	tick := time.NewTicker(cmp.Or(s.cfg.KeepEvery, keepEvery))
	defer tick.Stop()
	var reclaimed time.Time
	for {
		wanted := false
		select {
		case <-s.ctx.Done():
			return
		case <-s.keep:
			wanted = true
		case <-tick.C:
			s.lookAtAge()
		}
		s.mu.Lock()
		dirty := s.dirty
		s.mu.Unlock()
		if wanted || dirty {
			if err := s.saveMarks(); err != nil {
				s.metrics.faults.WithLabelValues("marks").Inc()
				s.log.Error("the spool's marks cannot be written: nothing more is sent until they can", zap.Error(err))
				continue
			}
		}
		if wanted { // it comes often then
			continue
		}
		now := time.Now()
		if s.journal.Size() > s.cfg.segmentBytes() || now.Sub(reclaimed) >= cmp.Or(s.cfg.ReclaimEvery, reclaimEvery) {
			reclaimed = now
			s.keeping.take()
			s.reclaim()
			s.park()
			s.keeping.leave()
		}
	}
}

// saveMarks makes durable how far the lanes are, and tells those who wait for it.
func (s *Spool) saveMarks() error {
	s.mu.Lock()
	s.dirty = false
	var marks []mark
	for _, l := range s.lanes {
		if l.from < 0 && l.settled < 0 {
			continue // nothing was ever sent
		}
		marks = append(marks, mark{Topic: l.key.topic, UUID: l.key.uuid, Partition: l.key.partition, Settled: l.settled, Upto: l.upto, From: l.from})
	}
	s.mu.Unlock()
	// The fates of what the marks call settled come first.
	if err := s.outcomes.f.Datasync(); err != nil {
		s.metrics.faults.WithLabelValues("outcomes").Inc()
	}
	err := s.marks.write(marks)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		for _, m := range marks {
			if l := s.lanes[m.key()]; l != nil {
				l.onDisk = m
			}
		}
	} else {
		s.dirty = true
	}
	s.markErr = err
	close(s.marked)
	s.marked = make(chan struct{})
	return err
}

// reclaim gives back the room of the journal below the first event that is not
// settled, and forgets lanes of which nothing is left there. The caller has the
// keeper's turn.
func (s *Spool) reclaim() {
	s.mu.Lock()
	below := s.registered
	for _, l := range s.lanes {
		if l.isPending() {
			below = min(below, l.inJournal())
		}
	}
	s.mu.Unlock()
	if below > s.journal.StartOffset() {
		if err := s.journal.DeleteBefore(below); err != nil {
			s.metrics.faults.WithLabelValues("reclaim").Inc()
			s.log.Warn("the room of spooled messages that are written was not given back", zap.Error(err))
		}
	}
	start := s.journal.StartOffset()
	s.unpark()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.lanes {
		if l.parked == nil && !l.isPending() && !l.running && l.last < start {
			delete(s.lanes, key)
			s.dirty = true
		}
	}
}

// lookAtAge finds out whether the oldest event is too old to take more.
func (s *Spool) lookAtAge() {
	oldest, any := s.oldest()
	age, known := s.age(oldest)
	if s.cfg.OnAge != Refuse || !any || !known || age <= s.cfg.MaxAge {
		s.stale.Store(nil)
		return
	}
	why := fmt.Sprintf("the oldest message of the spool has waited for %s, at most %s are allowed (spool.max_age)", age.Round(time.Second), s.cfg.MaxAge)
	s.stale.Store(&why)
}

// oldest is when the oldest event that is not settled was accepted.
func (s *Spool) oldest() (at time.Time, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		if accepted := s.dated(l.oldest); l.isPending() && (!any || accepted.Before(at)) {
			at, any = accepted, true
		}
	}
	return at, any
}
