package spool

import (
	"fmt"

	"sidestream/broker/record"
)

// recover finds by the marks and the journal what is to be sent. Nothing else
// runs yet. Without marks everything may have been sent, to anywhere.
func (s *Spool) recover(marks []mark, lost bool) error {
	end := s.journal.EndOffset()
	for _, m := range marks {
		// Numbers that the journal has not got to are given anew: the marks are of
		// a later time than the journal, as in a copy of files that were in use.
		m.Settled, m.Upto = min(m.Settled, end-1), min(m.Upto, end-1)
		l := s.laneOf(m.key())
		l.settled, l.upto, l.from, l.onDisk = m.Settled, m.Upto, m.From, m
		l.last = m.Settled // so that it is not forgotten while the journal has any of it
	}
	if err := s.openParked(); err != nil {
		return err
	}
	for _, l := range s.lanes {
		if l.parkedEnd() > end {
			return fmt.Errorf("%s has messages up to number %d, the journal only to %d: the files are of different times, as in a copy of a folder in use; "+
				"move the folder away, or put a sound copy in its place", l.parked.name, l.parkedEnd()-1, end-1)
		}
	}
	for at := s.journal.StartOffset(); at < end; {
		b, next, err := s.read(at, loadBytes)
		if err != nil {
			return err
		}
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break // the journal gives whole ones
			}
			e, err := parseEntry(raw, false)
			if err != nil {
				s.damaged(err.Error())
				continue
			}
			l := s.laneOf(e.key)
			if left := e.next - 1 - max(l.settled, e.base); left > 0 && e.base >= l.parkedEnd() {
				s.register(l, e.base, e.next, int(left), e.accepted)
			}
		}
		at = next
	}
	s.registered = end
	for _, l := range s.lanes {
		if lost {
			l.from, l.upto = 0, l.last
		}
		l.unsure = l.isPending() && l.from >= 0 && l.upto > l.settled
	}
	return nil
}

// idsOf are the ids of a lane's events that may have been sent, for the brokers
// to be asked for: those above what is settled, up to upto.
func (s *Spool) idsOf(l *lane) (ids map[string]struct{}, numbers map[string]int64, err error) {
	s.mu.Lock()
	at, settled, upto := l.first, l.settled, min(l.upto, l.last)
	s.mu.Unlock()
	ids, numbers = map[string]struct{}{}, map[string]int64{}
	for at <= upto && s.ctx.Err() == nil {
		b, next, err := s.readLane(l, at, loadBytes)
		if err != nil {
			return nil, nil, err
		}
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break // the journal gives whole ones
			}
			e, err := parseEntry(raw, false)
			if err != nil || e.key != l.key {
				continue
			}
			if h, err := record.ParseHeader(raw); err != nil || record.CheckCRC(raw, h) != nil {
				continue // it cannot have been sent
			}
			err = e.each(settled, func(ev event) {
				if ev.seq <= upto {
					id := s.idOfEvent(ev)
					ids[id] = struct{}{}
					numbers[id] = ev.seq
				}
			})
			if err != nil {
				continue // it cannot have been sent
			}
		}
		if next <= at {
			break
		}
		at = next
	}
	return ids, numbers, s.ctx.Err()
}
