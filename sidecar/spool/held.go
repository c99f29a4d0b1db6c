package spool

import (
	"fmt"

	"sidestream/broker/record"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Held finds, among the events that are not written yet, those that came with one
// of these ids in the header upstream.HeaderID, and says what they were answered.
// It reads all that is kept: ask for many at once, and seldom. After a failed sync
// it is an error: what the disk has is known after the next start.
func (s *Spool) Held(ids map[string]struct{}) (map[string]api.BatchResult, error) {
	if err := s.journal.Offline(); err != nil {
		return nil, fmt.Errorf("the spool does not know what it holds: %w", err)
	}
	h := holding{s: s, ids: ids, held: map[string]api.BatchResult{}}
	// What is moved out of the journal meanwhile is found where it came to.
	if err := h.lookInJournal(); err != nil {
		return nil, fmt.Errorf("reading the spool: %w", err)
	}
	for _, l := range s.parkedLanes() {
		if err := h.lookInParked(l); err != nil {
			return nil, fmt.Errorf("reading what the spool has parked: %w", err)
		}
	}
	return h.held, nil
}

// holding is a search for events by the ids that they came with.
type holding struct {
	s    *Spool
	ids  map[string]struct{}
	held map[string]api.BatchResult
}

func (h *holding) lookInJournal() error {
	s := h.s
	settled := map[laneKey]int64{}
	end := s.journal.FlushedOffset()
	at := end
	s.mu.Lock()
	for key, l := range s.lanes {
		if l.isPending() {
			settled[key] = l.settled
			at = min(at, l.inJournal())
		}
	}
	s.mu.Unlock()
	for at < end && len(h.held) < len(h.ids) {
		b, next, err := s.read(max(at, s.journal.StartOffset()), loadBytes)
		if err != nil {
			return err
		}
		h.take(b, settled)
		if next <= at {
			break
		}
		at = next
	}
	return nil
}

func (s *Spool) parkedLanes() (lanes []*lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		if l.isPending() && l.parked != nil && l.first < l.parkedEnd() {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

func (h *holding) lookInParked(l *lane) error {
	s := h.s
	s.mu.Lock()
	at, end, settled := l.first, l.parkedEnd(), map[laneKey]int64{l.key: l.settled}
	s.mu.Unlock()
	for at < end && len(h.held) < len(h.ids) {
		b, next, err := s.readLane(l, at, loadBytes)
		if err != nil {
			return err
		}
		h.take(b, settled)
		if next <= at {
			break
		}
		at = next
	}
	return nil
}

// take looks through whole entries. What is damaged is told where it is to be
// sent.
func (h *holding) take(b []byte, settled map[laneKey]int64) {
	for raw, err := range record.Split(b) {
		if err != nil {
			return
		}
		e, err := parseEntry(raw, true)
		done, pending := settled[e.key]
		if err != nil || !pending {
			continue
		}
		_ = e.each(done, func(ev event) { // the same
			for _, x := range ev.headers {
				if _, asked := h.ids[string(x.Value)]; asked && x.Key == upstream.HeaderID {
					h.held[string(x.Value)] = api.BatchResult{Partition: e.key.partition, Offset: -1, SpoolID: h.s.idOfEvent(ev)}
				}
			}
		})
	}
}
