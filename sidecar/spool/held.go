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
	s.mu.Lock()
	for key, l := range s.lanes {
		if l.isPending() {
			settled[key] = l.settled
			at = min(at, l.first)
		}
	}
	s.mu.Unlock()
	for at < end && len(held) < len(ids) {
		b, next, err := s.read(max(at, s.journal.StartOffset()), loadBytes)
		if err != nil {
			return nil, fmt.Errorf("reading the spool: %w", err)
		}
		for raw, err := range record.Split(b) {
			if err != nil {
				break // what is damaged is told where it is to be sent
			}
			e, err := parseEntry(raw, true)
			done, pending := settled[e.key]
			if err != nil || !pending {
				continue
			}
			_ = e.each(done, func(ev event) { // the same
				for _, h := range ev.headers {
					if _, asked := ids[string(h.Value)]; asked && h.Key == upstream.HeaderID {
						held[string(h.Value)] = api.BatchResult{Partition: e.key.partition, Offset: -1, SpoolID: s.idOfEvent(ev)}
					}
				}
			})
		}
		if next <= at {
			break
		}
		at = next
	}
	return held, nil
}
