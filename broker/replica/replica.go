// Package replica is what one broker does with one copy of a partition, as a
// pure state machine: who leads, what is committed, what is cut off, who counts
// as in sync. It has no clock, no lock and does no I/O: Step takes what has
// happened and returns what to do, in order. The broker drives it with a log, a
// disk and connections; a simulator drives the same code through schedules that
// no test machine would meet in a year.
//
// A partition with a single copy is the case of one replica.
//
// Terms are Kafka's: leader epoch, high watermark, in-sync replicas (KIP-497),
// eligible leader replicas (KIP-966), divergence by epoch and offset (KIP-101,
// KIP-279, KIP-595).
package replica

import (
	"math/bits"
	"slices"
	"time"
)

// Broker is a broker's id.
type Broker = int32

// NoBroker stands where there is none.
const NoBroker Broker = -1

// NoEpoch is the epoch of a log without records, and before the first leader.
const NoEpoch int32 = -1

// MaxReplicas is how many replicas a partition may have while it is moved: as
// many as a Set has bits.
const MaxReplicas = 16

// Set is a set of replicas by their place in [Slot.Replicas].
type Set uint16

// SetOf is the set of the places.
func SetOf(places ...int) (s Set) {
	for _, i := range places {
		s = s.With(i)
	}
	return s
}

// All is the set of the first n places.
func All(n int) Set { return 1<<n - 1 }

// Has tells whether a place is in the set; no place (-1) never is.
func (s Set) Has(place int) bool { return place >= 0 && s>>place&1 == 1 }

// With is the set and a place.
func (s Set) With(place int) Set { return s | 1<<place }

// Without is the set but for a place.
func (s Set) Without(place int) Set { return s &^ (1 << place) }

// Len is the number of members.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// Slot is what the store says of a partition. Only a controller writes it.
type Slot struct {
	Generation uint64   // of the store: rises when it is repaired after a restore
	Leader     Broker   // NoBroker: none
	Epoch      int32    // rises by one with every change of leader, and with every restart of its process
	Version    int32    // rises by one with every change of this slot
	Replicas   []Broker // ordered, the first is preferred; never changed in place
	ISR        Set      // has every acknowledged record, synced; never empty
	ELR        Set      // left the ISR while it was below min.insync.replicas, so that the high watermark has stood still since
	Adding     Set      // on their way in: observers until they have caught up
	Removing   Set      // on their way out
	Lost       Set      // of ISR and ELR: their folder was replaced, and nobody else had everything; elected only uncleanly
}

// Place is where a broker stands in the replicas, or -1.
func (s *Slot) Place(b Broker) int { return slices.Index(s.Replicas, b) }

// Shrunk is the slot with a smaller or larger ISR, and the ELR that follows from
// it. The ELR is emptied as soon as the ISR is large enough again.
func (s *Slot) Shrunk(isr Set, minISR int) Slot {
	n := *s
	n.ISR = isr
	switch {
	case isr.Len() < minISR:
		n.ELR = (s.ELR | s.ISR) &^ isr &^ s.Lost
	case Mutated(ELRKeep):
		n.ELR = s.ELR &^ isr
	default:
		n.ELR = 0
	}
	n.Lost &= n.ISR | n.ELR
	return n
}

// Role of a replica.
type Role uint8

// A replica that has not read the store yet, or must not serve, has no role.
const (
	None Role = iota
	Leader
	Follower
)

func (r Role) String() string { return [...]string{"none", "leader", "follower"}[r] }

// Epoch says where the records of a leader epoch begin.
type Epoch struct {
	Epoch int32
	Start int64 // offset of its first record
}

// Durable is what a replica has on disk beside its records, and never forgets.
// It is written before anything that follows from it is done.
type Durable struct {
	Promised   int32  // newest epoch that was seen: nothing is served of an older one
	Noted      int32  // newest epoch whose start this replica has reached, synced
	Generation uint64 // newest generation of the store: nothing of an older one is believed
	Alone      bool   // the sole copy, as the store said last
}

// Config of a partition's replication.
type Config struct {
	MinISR int           // min.insync.replicas, 1 at least
	Lag    time.Duration // replica.lag.time.max.ms: a member that has not reached the end for so long leaves the ISR
	Retry  time.Duration // after which a change that nobody answered is asked for again
	Lax    bool          // the topic's flush settings let the page cache count as synced
}

// Change is what a leader asks of the controller (AlterPartition).
type Change struct {
	Epoch   int32 // of the leader that asks
	Base    int32 // version of the slot that it is about
	ISR     Set   // over the replicas of that version; without Restart
	Restart bool  // the leader's process is another: raise the epoch

	// Folders of the replicas, by place: what the leader knows of who joins, it
	// knows of this folder. Under the same id there may be an empty one by the
	// time that the change is written (KIP-903).
	Folders []string
}

// follower is a replica as its leader knows it, in this epoch.
type follower struct {
	known    bool   // it reported, and has noted this epoch
	stream   uint64 // its present stream
	end      int64
	synced   int64
	reported time.Duration // last report
	caught   time.Duration // last time that it had reached the end
	joinAt   time.Duration // not taken into the ISR before: it flapped
	joins    int           // times that it was taken in, in this epoch
}

// State of one replica.
type State struct {
	Self   Broker
	Folder string // nonce of the data folder
	Config Config
	Durable

	Role    Role
	Slot    Slot
	Folders []string // by place: the folder that the store knows each replica by
	Fit     Set      // by place: registered with that folder, and not leaving

	Start, End int64   // of the log
	Synced     int64   // end of what is on disk, as far as it counts
	HW         int64   // high watermark
	Epochs     []Epoch // of the records, rising

	// Of a leader.
	EpochStart int64   // where this epoch begins
	Pending    *Change // asked for last, and not settled
	possible   Set     // all that any change may have made of the ISR, since this version of the slot
	asked      time.Duration
	others     []follower // by place

	// Of a follower.
	leaderStart int64         // where the leader's epoch begins; -1: not known
	Stream      uint64        // number of the present stream; rises
	heard       time.Duration // when the stream was opened, or the leader last heard on it
}

// New is a replica after a start: what its folder keeps and its log holds, all
// of it synced by the recovery. It has no role until it is told of the store.
// Its streams are numbered from a number that must be above those of every
// earlier process, such as the time: an answer that was meant for an earlier
// life would be taken for one of this.
func New(self Broker, folder string, cfg Config, kept Durable, start, end int64, epochs []Epoch, streams uint64) *State {
	return &State{
		Self: self, Folder: folder, Config: cfg, Durable: kept,
		Slot:  Slot{Leader: NoBroker, Epoch: NoEpoch},
		Start: start, End: end, Synced: end, HW: start, Epochs: epochs, leaderStart: -1, Stream: streams,
	}
}

// LastEpoch is the epoch of the last record.
func (s *State) LastEpoch() int32 {
	if len(s.Epochs) == 0 {
		return NoEpoch
	}
	return s.Epochs[len(s.Epochs)-1].Epoch
}

// EpochEnd is the newest epoch of the log that is not above the asked one, and
// the offset after its last record; NoEpoch and the start when there is none.
func (s *State) EpochEnd(epoch int32) (int32, int64) {
	end := s.End
	for i := len(s.Epochs) - 1; i >= 0; i-- {
		if s.Epochs[i].Epoch <= epoch {
			return s.Epochs[i].Epoch, end
		}
		end = s.Epochs[i].Start
	}
	return NoEpoch, s.Start
}

// note that records up to end carry the epoch, beginning at base.
func (s *State) grow(epoch int32, base, end int64) {
	if epoch > s.LastEpoch() {
		for len(s.Epochs) > 0 && s.Epochs[len(s.Epochs)-1].Start >= base {
			s.Epochs = s.Epochs[:len(s.Epochs)-1]
		}
		s.Epochs = append(s.Epochs, Epoch{epoch, base})
	}
	s.End = end
	if s.Config.Lax || Mutated(NoFsync) {
		s.Synced = end
	}
}

// trim moves the log's start up.
func (s *State) trim(to int64) bool {
	if to <= s.Start {
		return false
	}
	s.Start = to
	first := 0
	for first+1 < len(s.Epochs) && s.Epochs[first+1].Start <= to {
		first++
	}
	s.Epochs = slices.Clone(s.Epochs[first:])
	if len(s.Epochs) > 0 {
		s.Epochs[0].Start = max(s.Epochs[0].Start, to)
	}
	return true
}

// cut the log's end.
func (s *State) cut(to int64) {
	s.End, s.Synced, s.HW = to, min(s.Synced, to), min(s.HW, to)
	n := len(s.Epochs)
	for n > 0 && s.Epochs[n-1].Start >= to {
		n--
	}
	s.Epochs = s.Epochs[:n]
}

// Writable tells whether an append with acks=all can be taken: the committed
// ISR is large enough (else NOT_ENOUGH_REPLICAS).
func (s *State) Writable() bool {
	return s.Role == Leader && s.Slot.ISR.Len() >= s.Config.MinISR
}

// Readable is the end for consumers. While a new leader does not know how far
// its predecessor's high watermark was there is none (OFFSET_NOT_AVAILABLE,
// KIP-207), or a consumer would see the end go back.
func (s *State) Readable() (end int64, ok bool) {
	return s.HW, s.Role == Leader && s.HW >= s.EpochStart
}

// Deletable is the offset below which records may be deleted or compacted. What
// lies above can still be cut off, and a record that replaces it with it.
func (s *State) Deletable() int64 { return s.HW }

// silent is how old reports may be for a leader that is cut off from the store.
const silent = 3 * time.Second

// Knows tells whether a leader may say that it leads. One whose session is lost,
// or cannot be proven, does so only while enough members of the ISR report to
// it: in a total outage of the store they go on, in a partition they are with
// the next leader.
func (s *State) Knows(now time.Duration, proven bool) bool {
	if s.Role != Leader || proven {
		return s.Role == Leader
	}
	heard := 0
	for i, b := range s.Slot.Replicas {
		if s.Slot.ISR.Has(i) && (b == s.Self || s.others[i].known && now-s.others[i].reported < silent) {
			heard++
		}
	}
	return heard >= min(s.Config.MinISR, s.Slot.ISR.Len()) && heard > s.Slot.ISR.Len()/2
}
