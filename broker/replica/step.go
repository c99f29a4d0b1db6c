package replica

import "time"

// Event is something that happened.
type Event interface{ event() }

// Told is the slot as it was read from the store, or from the controller's
// answer, with what the picture says of its replicas.
//
// The slot must not be older than the folders, so folders are read first: an
// empty folder that the store already knows, beside a slot from before that,
// would lead what its id had led in an earlier life.
type Told struct {
	Slot    Slot
	Folders []string // by place
	Fit     Set      // by place
	Cached  bool     // kept in the folder since the store was read last: good for following only
}

// Appended says that a leader's own log has grown by records of its epoch.
type Appended struct{ End int64 }

// SyncedTo says that everything up to End is on disk.
type SyncedTo struct{ End int64 }

// Trimmed says that a leader's log begins later: retention or DeleteRecords took
// what lies below. It must not pass Deletable.
type Trimmed struct{ Start int64 }

// Report is what a follower says of itself: at the opening of a stream, and
// after its syncs.
type Report struct {
	From      Broker
	Folder    string
	Epoch     int32 // that it follows in
	Stream    uint64
	Open      bool
	Start     int64
	End       int64
	LastEpoch int32 // of its last record
	Synced    int64
	Noted     int32
}

// Frame is what a leader sent on a stream: records, or only its marks.
type Frame struct {
	From       Broker
	Epoch      int32
	Stream     uint64
	Base       int64
	Before     int32   // epoch of the record before Base; not looked at where the log of either begins
	Epochs     []Epoch // of its records
	End        int64   // after its last record; Base when there are none
	HW         int64
	EpochStart int64
	Start      int64 // of the leader's log
}

// Diverging is a leader's answer to an opening: the follower's log is another
// behind the end of that epoch. With Reset nothing of it can be told to be the
// same, or its end is below the leader's start: it begins anew there.
type Diverging struct {
	From   Broker
	Epoch  int32
	Stream uint64
	At     int32
	End    int64
	Reset  bool
}

// Broken says that a stream ended, or was refused.
type Broken struct{ Stream uint64 }

// Gone says that a replica's process is certainly gone: its port refused
// connections twice, or the controller said so.
type Gone struct{ Broker Broker }

// Tick is the passing of time.
type Tick struct{}

func (Told) event()      {}
func (Appended) event()  {}
func (SyncedTo) event()  {}
func (Trimmed) event()   {}
func (Report) event()    {}
func (Frame) event()     {}
func (Diverging) event() {}
func (Broken) event()    {}
func (Gone) event()      {}
func (Tick) event()      {}

// Effect is something to do. Effects are carried out in their order, each
// before the next; when one fails the replica resigns.
type Effect interface{ effect() }

// Persist writes down what must not be forgotten.
type Persist struct{ Durable }

// Lead begins to take appends of the epoch, and syncs what the log holds.
type Lead struct{ Epoch int32 }

// Resign ends all appends and answers those who wait with NOT_LEADER.
type Resign struct{}

// Open opens a stream to the leader with a report.
type Open struct {
	Leader Broker
	Report Report
}

// Send answers a follower's opening with where its log is another.
type Send struct {
	To        Broker
	Diverging Diverging
}

// Serve sends a follower frames from an offset on.
type Serve struct {
	To     Broker
	Epoch  int32
	Stream uint64
	From   int64
}

// Refuse ends a follower's stream.
type Refuse struct {
	To     Broker
	Stream uint64
}

// Write appends a frame's records to the log.
type Write struct{ Frame Frame }

// Truncate cuts the log's end off.
type Truncate struct{ To int64 }

// Reset empties the log, to go on at an offset.
type Reset struct{ To int64 }

// Trim deletes what lies below an offset.
type Trim struct{ To int64 }

// RaiseHW makes records visible and answers those who wait for them.
type RaiseHW struct{ HW int64 }

// Ask asks the controller for a change.
type Ask struct{ Change Change }

func (Persist) effect()  {}
func (Lead) effect()     {}
func (Resign) effect()   {}
func (Open) effect()     {}
func (Send) effect()     {}
func (Serve) effect()    {}
func (Refuse) effect()   {}
func (Write) effect()    {}
func (Truncate) effect() {}
func (Reset) effect()    {}
func (Trim) effect()     {}
func (RaiseHW) effect()  {}
func (Ask) effect()      {}

// Step takes what happened at a time of the monotonic clock, and appends to
// effects what is to be done. The same states and events have the same effects.
func (s *State) Step(now time.Duration, e Event, effects []Effect) []Effect {
	switch e := e.(type) {
	case Told:
		return s.told(now, e, effects)
	case Appended:
		if s.Role == Leader && e.End > s.End {
			s.grow(s.Slot.Epoch, s.End, e.End)
			effects = s.advance(effects)
		}
	case SyncedTo:
		s.Synced = max(s.Synced, min(e.End, s.End))
		effects = s.note(effects)
		effects = s.advance(effects)
	case Trimmed:
		if s.Role == Leader {
			s.trim(min(e.Start, s.Deletable()))
		}
	case Report:
		return s.report(now, e, effects)
	case Frame:
		return s.frame(now, e, effects)
	case Diverging:
		return s.diverging(now, e, effects)
	case Broken:
		if s.Role == Follower && e.Stream == s.Stream {
			s.Stream++ // what still comes on it is not looked at
			s.heard = min(s.heard, now-s.Config.Retry+reopen)
		}
	case Gone:
		return s.gone(now, e, effects)
	case Tick:
		return s.tick(now, effects)
	}
	return effects
}

// reopen is the pause before a stream that ended, or was refused, is opened anew.
const reopen = 200 * time.Millisecond

// persist is the effect that keeps what is to be kept.
func (s *State) persist(effects []Effect) []Effect {
	return append(effects, Persist{s.Durable})
}

// note that the start of the present epoch is reached and synced. A report
// counts only from then on: of two logs that a repair has to choose from, the
// one that noted the newer epoch has all that was acknowledged before it.
func (s *State) note(effects []Effect) []Effect {
	reached := s.Role == Leader && s.Synced >= s.EpochStart || s.Role == Follower && s.leaderStart >= 0 && s.Synced >= s.leaderStart
	if reached && s.Noted < s.Slot.Epoch {
		s.Noted = s.Slot.Epoch
		effects = s.persist(effects)
	}
	return effects
}
