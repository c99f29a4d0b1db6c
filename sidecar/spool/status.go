package spool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sidestream/sdk/api"
)

// Status is the spool's part of GET /status.
func (s *Spool) Status() api.SpoolStatus {
	now := s.time()
	if now.IsZero() { // it is for people, and decides nothing
		now = time.Now()
	}
	st := api.SpoolStatus{Bytes: s.diskBytes(), MaxBytes: s.cfg.MaxBytes, RejectBytes: s.rejects.size(), RejectFile: s.dir + "/" + RejectsName, Away: []api.SpoolAway{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest time.Time
	for _, l := range s.lanes {
		if !l.isPending() {
			continue
		}
		st.Pending += l.events
		st.Partitions++
		if accepted := s.dated(l.oldest); oldest.IsZero() || accepted.Before(oldest) {
			oldest = accepted
		}
		if l.away != nil {
			st.AwayPartitions++
			st.Away = append(st.Away, api.SpoolAway{Topic: l.key.topic, Partition: l.key.partition, Pending: l.events, Since: l.since, Cause: l.away.Message})
		}
	}
	if !oldest.IsZero() {
		st.OldestSeconds = max(0, now.Sub(oldest).Seconds())
	}
	slices.SortFunc(st.Away, func(a, b api.SpoolAway) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	if len(st.Away) > 20 {
		st.Away = st.Away[:20]
	}
	return st
}

// Err is why the spool takes nothing until the next start; nil while it does.
func (s *Spool) Err() error { return s.journal.Offline() }

// Lost is an error about messages that are in the spool and that a next start
// will not find; nil when there are none. They are sent while this process lives.
func (s *Spool) Lost() error {
	if gone := s.parkedGone.Load(); gone != nil {
		return *gone
	}
	return nil
}

// Event tells what became of a spooled message. The error is not_found: the id is
// none of this spool's, or older than what is remembered.
func (s *Spool) Event(id string) (api.SpoolEvent, error) {
	seq, ok := parseID(s.nonce, id)
	if !ok || seq >= s.journal.EndOffset() {
		return api.SpoolEvent{}, api.NewError(api.CodeNotFound, fmt.Sprintf("there is no message %q in the spool of this sidecar", id))
	}
	// First the journal, then the outcomes: what is settled in between is found
	// by the second.
	ev := api.SpoolEvent{ID: id, Offset: -1}
	pending := false
	e, ok := s.entryOf(seq)
	if !ok {
		e, ok = s.parkedEntryOf(seq)
	}
	if ok {
		if e.base == seq {
			return api.SpoolEvent{}, api.NewError(api.CodeNotFound, fmt.Sprintf("there is no message %q in the spool of this sidecar", id))
		}
		ev.Topic, ev.Partition = e.key.topic, e.key.partition
		s.mu.Lock()
		l := s.lanes[e.key]
		pending = l != nil && seq > l.settled
		s.mu.Unlock()
	}
	if pending {
		ev.State = api.SpoolPending
		return ev, nil
	}
	o, ok := s.outcomes.get(seq)
	if !ok {
		return api.SpoolEvent{}, api.NewError(api.CodeNotFound, fmt.Sprintf("what became of message %q is not remembered any more: the last %d are (spool.outcomes)", id, s.cfg.Outcomes))
	}
	if ev.Topic == "" {
		ev.Topic, ev.Partition = s.memory.name(o.topic), o.partition
	}
	if o.offset >= 0 {
		ev.State, ev.Offset = api.SpoolWritten, o.offset
		return ev, nil
	}
	ev.State = api.SpoolRejected
	ev.Error = api.NewError(api.CodeBadRecord, "it could not be written; why is not in the file of rejected messages any more")
	if r, err := s.rejects.at(-2-o.offset, id); err == nil && r.Error != nil {
		ev.Error = r.Error
	}
	return ev, nil
}

// entryOf is the journal's entry with a number, if it is still there.
func (s *Spool) entryOf(seq int64) (entry, bool) {
	slice, err := s.journal.Read(seq, 0, s.journal.EndOffset())
	if err != nil {
		return entry{}, false
	}
	defer slice.Release()
	b, err := slice.ReadAll()
	if err != nil || len(b) == 0 {
		return entry{}, false
	}
	e, err := parseEntry(b, false)
	return e, err == nil && seq >= e.base && seq < e.next
}
