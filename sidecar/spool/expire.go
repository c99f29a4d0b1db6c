package spool

import (
	"fmt"
	"time"

	"sidestream/sdk/api"
)

// expired says that an entry is to be rejected for its age, or to make room,
// where the configuration says so, and why. What may be written already is not.
func (s *Spool) expired(l *lane, e entry) (*api.Error, bool) {
	s.mu.Lock()
	sent := (l.unsure || len(l.found) > 0) && e.base < l.upto
	s.mu.Unlock()
	if sent {
		return nil, false
	}
	if age, known := s.age(e.accepted); known && s.cfg.OnAge == Reject && age > s.cfg.MaxAge {
		return api.NewError(api.CodeSpoolFull, fmt.Sprintf("it has waited for %s in the spool, at most %s are allowed (spool.max_age)", age.Round(time.Second), s.cfg.MaxAge)), true
	}
	if s.cfg.OnFull == RejectOldest && s.full.Load() && s.isFirst(l) {
		if s.hasRoom() {
			s.full.Store(false)
			return nil, false
		}
		return api.NewError(api.CodeSpoolFull, fmt.Sprintf("it was the oldest in the spool, which was full (spool.max_bytes %d) and made room (spool.on_full %s)", s.cfg.MaxBytes, RejectOldest)), true
	}
	return nil, false
}

// isFirst says that a lane has the first event of all.
func (s *Spool) isFirst(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.lanes {
		if other.isPending() && other.first < l.first {
			return false
		}
	}
	return true
}

// hasRoom says that enough of the journal can be given back for messages to be
// taken again: it goes by whole segments.
func (s *Spool) hasRoom() bool {
	s.keeping.take()
	s.reclaim()
	s.keeping.leave()
	return s.diskBytes()+2*s.cfg.segmentBytes() <= s.cfg.MaxBytes
}
