package spool

import (
	"time"

	"sidestream/sdk/api"
)

// lane is one partition's events: which are settled, which are loaded, and how
// it goes. Its fields are guarded by the spool's mu.
type lane struct {
	key laneKey

	settled int64 // events up to this number are
	last    int64 // the last that was accepted
	first   int64 // nothing of an entry before this number is left to settle
	cursor  int64 // where the loader goes on for it
	oldest  time.Time
	events  int64 // that are pending

	parked *parked // nil: nothing is

	queue   []entry // loaded, in order
	queued  int64   // their bytes
	running bool    // its goroutine is
	loaded  chan struct{}

	from   int64 // see mark; -1: nothing was ever sent
	upto   int64
	onDisk mark // as it is there; Upto and From count only there

	unsure  bool            // events up to upto may be written: look first
	found   map[int64]int64 // events that were found there: their offsets
	away    *api.Error      // why nothing goes, nil while it does
	since   time.Time       // when that began
	missing time.Time       // since when the brokers deny it; zero: they do not
	single  bool            // send one by one, since one of the first entry is refused

	// Of its goroutine: what the publisher has on its way, which comes before the
	// events up to cleared.
	ahead   []<-chan struct{}
	cleared int64

	changed chan struct{} // closed when settled or away changes, and renewed
}

func (s *Spool) newLane(key laneKey) *lane {
	l := &lane{key: key, settled: -1, last: -1, first: -1, from: -1, upto: -1, cleared: -1, onDisk: mark{From: -1, Upto: -1},
		loaded: make(chan struct{}, 1), changed: make(chan struct{})}
	s.lanes[key] = l
	return l
}

// laneOf finds or makes a lane. Call with mu held.
func (s *Spool) laneOf(key laneKey) *lane {
	if l := s.lanes[key]; l != nil {
		return l
	}
	return s.newLane(key)
}

func (l *lane) isPending() bool { return l.last > l.settled }

// note tells those who wait that something changed. Call with mu held.
func (l *lane) note() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// register makes a lane know of accepted events: the entries from base to next.
// Call with mu held, in the order of the journal.
func (s *Spool) register(l *lane, base, next int64, events int, at time.Time) {
	if !l.isPending() {
		s.busy[l.key.topic]++
		s.anyBusy.Store(true)
		l.oldest, l.first = at, base
		l.cursor = max(l.cursor, base)
	}
	l.last = next - 1
	l.events += int64(events)
	s.registered = max(s.registered, next)
	if s.started && !s.closed {
		s.run(l)
	}
}

// run starts a lane's goroutine. Call with mu held.
func (s *Spool) run(l *lane) {
	if !l.running {
		l.running = true
		s.wg.Go(func() { s.drain(l) })
	}
}

// settle says that all events up to a number are settled. Call with mu held.
func (s *Spool) settle(l *lane, seq int64, events int) {
	if seq <= l.settled {
		return
	}
	l.settled = seq
	l.events -= int64(events)
	s.dirty = true
	if !l.isPending() {
		s.idle(l.key.topic)
		if l.away != nil { // with what is rejected nothing waits any more
			l.away = nil
			s.backAgain()
		}
	}
	l.note()
}

func (s *Spool) idle(topic string) {
	if s.busy[topic]--; s.busy[topic] <= 0 {
		delete(s.busy, topic)
		s.anyBusy.Store(len(s.busy) > 0)
	}
}
