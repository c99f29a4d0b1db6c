package spool

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/broker/record"
	"sidestream/sdk/api"
)

const (
	loadBytes   = 1 << 20  // of one read of the journal
	laneBytes   = 2 << 20  // of one lane in memory, or one entry
	loadedBytes = 32 << 20 // of all lanes in memory, or one entry each
)

// load reads the journal for the lanes, forward and once for all of them as long
// as they keep up; one that falls behind is read for by itself.
func (s *Spool) load() {
	for {
		if l := s.wantsParked(); l != nil {
			if err := s.loadParked(l); err == nil {
				continue
			} else if !s.cannotRead(err) {
				return
			}
		}
		at, ok := s.wanted()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-s.ctx.Done():
				return
			}
		}
		if err := s.loadFrom(at); err != nil && !s.cannotRead(err) {
			return
		}
	}
}

// cannotRead tells of an error and waits a while; false when the spool closes.
func (s *Spool) cannotRead(err error) bool {
	s.log.Error("spooled messages cannot be read", zap.Error(err))
	s.metrics.faults.WithLabelValues("read").Inc()
	select {
	case <-time.After(time.Second):
		return true
	case <-s.ctx.Done():
		return false
	}
}

// wantsParked is a lane that has parked entries to be loaded, and room for them.
func (s *Spool) wantsParked() *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		if l.wants() && l.cursor < l.parkedEnd() && (s.loaded < loadedBytes || l.queued == 0) {
			return l
		}
	}
	return nil
}

// loadParked gives a lane some of what is parked.
func (s *Spool) loadParked(l *lane) error {
	s.mu.Lock()
	at := l.cursor
	s.mu.Unlock()
	b, next, err := s.readLane(l, at, laneBytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for raw, cut := range record.Split(b) {
		if cut != nil {
			break
		}
		e, err := parseEntry(raw, false)
		if err != nil || e.base < l.cursor || e.next-1 <= l.settled {
			continue
		}
		if !s.give(l, e, raw) {
			return nil
		}
	}
	l.cursor = max(l.cursor, next)
	poke(l.loaded)
	return nil
}

// give puts an entry into a lane's queue; false when it has got enough, and is to
// go on with this entry. Call with mu held.
func (s *Spool) give(l *lane, e entry, raw []byte) bool {
	if l.queued > 0 && (l.queued >= laneBytes || s.loaded >= loadedBytes) {
		l.cursor = e.base
		return false
	}
	if h, err := record.ParseHeader(raw); err != nil || record.CheckCRC(raw, h) != nil {
		s.damagedEntry(l, e)
		return true
	}
	e.raw = append([]byte(nil), raw...) // the stretch would stay as long as any of it
	if len(l.queue) == 0 {
		l.first, l.oldest = max(l.first, e.base), e.accepted
	}
	l.queue = append(l.queue, e)
	l.queued += e.size
	s.loaded += e.size
	poke(l.loaded)
	return true
}

// wants says that a lane has something in the journal to be read, and room for it.
// Call with mu held.
func (l *lane) wants() bool {
	return l.running && l.cursor <= l.last && l.queued < laneBytes
}

// wanted is the first number that any lane wants.
func (s *Spool) wanted() (at int64, ok bool) {
	flushed := s.journal.FlushedOffset()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		if !l.wants() || l.cursor < l.parkedEnd() || l.cursor >= flushed || s.loaded >= loadedBytes && l.queued > 0 {
			continue
		}
		if !ok || l.cursor < at {
			at, ok = l.cursor, true
		}
	}
	return at, ok
}

// loadFrom reads one stretch of the journal and gives it to the lanes that want it.
func (s *Spool) loadFrom(at int64) error {
	at = max(at, s.journal.StartOffset())
	b, next, err := s.read(at, loadBytes)
	if errors.Is(err, commitlog.ErrOutOfRange) && at < s.journal.StartOffset() {
		return nil // it was parked meanwhile
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[*lane]bool{}
	for _, l := range s.lanes {
		if l.wants() && l.cursor < next && l.cursor >= l.parkedEnd() {
			want[l] = true
		}
	}
	for raw, cut := range record.Split(b) {
		if cut != nil {
			break // the journal gives whole ones
		}
		e, err := parseEntry(raw, false)
		if err != nil {
			continue // a damage: it is told where it is met first, see recover
		}
		l := s.lanes[e.key]
		if l == nil || !want[l] || e.base < l.cursor || e.next-1 <= l.settled {
			continue
		}
		if !s.give(l, e, raw) {
			delete(want, l)
		}
	}
	for l := range want {
		l.cursor = max(l.cursor, next)
		poke(l.loaded) // there may be nothing for it after all
	}
	return nil
}

// read reads whole entries from a number on; next is the number after them.
// Damaged stretches are passed over and told.
func (s *Spool) read(at int64, size int) (b []byte, next int64, err error) {
	flushed := s.journal.FlushedOffset()
	slice, err := s.journal.Read(at, size, flushed)
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		s.damaged(corrupt.Error())
		return nil, max(corrupt.Next, at+1), nil
	}
	if err != nil {
		return nil, at, err
	}
	defer slice.Release()
	if slice.Empty() {
		return nil, flushed, nil
	}
	b, err = slice.ReadAll()
	return b, slice.Next, err
}

func (s *Spool) damaged(what string) {
	s.log.Error("the disk has damaged spooled messages: they cannot be sent", zap.String("damage", what))
	if s.metrics != nil {
		s.metrics.faults.WithLabelValues("damage").Inc()
	}
}

// damagedEntry gives up events whose bytes are not what they were. Call with mu
// held.
func (s *Spool) damagedEntry(l *lane, e entry) {
	s.damaged(fmt.Sprintf("%d messages for partition %s, ids %s to %s", e.events(), l.key, idOf(s.nonce, e.base+1), idOf(s.nonce, e.next-1)))
	e.raw = nil
	l.queue = append(l.queue, e)
	poke(l.loaded)
}

var errDamaged = api.NewError(api.CodeInternal, "the disk has damaged the message")
