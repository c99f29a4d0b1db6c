package spool

import (
	"fmt"

	"sidestream/broker/record"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Held finds, among the events that are not written yet, those that came with one
// of these ids in the header upstream.HeaderID, and says what they were answered.
// It reads the journal through: ask for many at once, and seldom.
func (s *Spool) Held(ids map[string]struct{}) (map[string]api.BatchResult, error) {
	held := map[string]api.BatchResult{}
	settled := map[laneKey]int64{}
	end := s.journal.FlushedOffset()
	at := end
	parkedLanes := map[*lane]int64{}
	s.mu.Lock()
	for key, l := range s.lanes {
		if l.isPending() {
			settled[key] = l.settled
			at = min(at, l.inJournal())
			if l.first < l.parkedEnd() {
				parkedLanes[l] = l.first
			}
		}
	}
	s.mu.Unlock()
	look := func(b []byte) {
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break
			}
			e, err := parseEntry(raw, true)
			done, pending := settled[e.key]
			if err != nil || !pending {
				continue // what is damaged is told where it is to be sent
			}
			_ = e.each(done, func(ev event) { // the same
				for _, h := range ev.headers {
					if _, asked := ids[string(h.Value)]; asked && h.Key == upstream.HeaderID {
						held[string(h.Value)] = api.BatchResult{Partition: e.key.partition, Offset: -1, SpoolID: s.idOfEvent(ev)}
					}
				}
			})
		}
	}
	for l, at := range parkedLanes {
		for {
			s.mu.Lock()
			end := l.parkedEnd()
			s.mu.Unlock()
			if at >= end {
				break
			}
			b, next, err := s.readLane(l, at, loadBytes)
			if err != nil {
				return nil, fmt.Errorf("reading the spool: %w", err)
			}
			look(b)
			if next <= at {
				break
			}
			at = next
		}
	}
	for at < end && len(held) < len(ids) {
		b, next, err := s.read(max(at, s.journal.StartOffset()), loadBytes)
		if err != nil {
			return nil, fmt.Errorf("reading the spool: %w", err)
		}
		look(b)
		if next <= at {
			break
		}
		at = next
	}
	return held, nil
}
