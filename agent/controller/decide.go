package controller

import (
	"errors"
	"fmt"
	"slices"

	"sidestream/broker/replica"
)

// Member is a broker as a controller sees it.
type Member struct {
	ID         int32
	Registered bool
	Folder     string // nonce of the data folder that it is registered with
	Known      string // that the store has noted for this id, once no partition counts on another
	Leaving    bool   // it is being stopped: it is given nothing new
	Rack       string
}

// fit tells whether what a broker holds is what its id stands for.
func (m Member) fit() bool { return m.Registered && m.Folder == m.Known }

// replaced tells whether a broker came back with another folder.
func (m Member) replaced() bool { return m.Registered && m.Folder != m.Known }

// Part is a partition as a controller sees it.
type Part struct {
	Slot    replica.Slot
	MinISR  int     // min.insync.replicas
	Unclean bool    // unclean.leader.election.enable
	Synced  []int64 // by place: how far each replica is known to be; nil: not known
}

// Picture is all that decisions about leaders rest on. It may be old: each
// change holds only while its slot is as the picture has it.
type Picture struct {
	Members []Member // in any order
	Parts   []Part
}

// member finds a broker; one that is not in the picture is not registered.
func (p *Picture) member(id int32) Member {
	if i := slices.IndexFunc(p.Members, func(m Member) bool { return m.ID == id }); i >= 0 {
		return p.Members[i]
	}
	return Member{ID: id}
}

// where is the set of replicas of a slot whose brokers are as asked.
func (p *Picture) where(s *replica.Slot, is func(Member) bool) (set replica.Set) {
	for i, id := range s.Replicas {
		if is(p.member(id)) {
			set = set.With(i)
		}
	}
	return set
}

// Fit is the set of a slot's replicas that may be taken into its ISR.
func (p *Picture) Fit(s *replica.Slot) replica.Set {
	return p.where(s, func(m Member) bool { return m.fit() && !m.Leaving })
}

// Cause of a change, for people.
type Cause string

// Causes.
const (
	CauseElection Cause = "election"          // the leader is gone
	CauseELR      Cause = "election from ELR" // and nobody of the ISR is there
	CauseUnclean  Cause = "unclean election"  // nor of the ELR
	CauseGone     Cause = "member gone"
	CauseReplaced Cause = "folder replaced"
)

// Change replaces the slot of a partition, if that is still as it was.
type Change struct {
	Part  int // in Picture.Parts
	To    replica.Slot
	Cause Cause
}

// Ready notes a broker's folder: no partition counts on another any more.
type Ready struct {
	Broker int32
	Folder string
}

// Decide says what a controller does about a picture: it elects leaders where
// there are none, strikes out of the ISR who is gone, and out of everything who
// came back with another folder.
func Decide(p *Picture) (changes []Change, ready []Ready) {
	for i := range p.Parts {
		if to, cause, changed := p.decide(&p.Parts[i]); changed {
			to.Version++
			changes = append(changes, Change{i, to, cause})
		}
	}
	for _, m := range p.Members {
		if m.replaced() && !p.counted(m.ID) {
			ready = append(ready, Ready{m.ID, m.Folder})
		}
	}
	return changes, ready
}

// counted tells whether any partition counts on a broker's earlier folder.
func (p *Picture) counted(id int32) bool {
	return slices.ContainsFunc(p.Parts, func(part Part) bool {
		i := part.Slot.Place(id)
		return part.Slot.Leader == id || (part.Slot.ISR|part.Slot.ELR).Has(i) && !part.Slot.Lost.Has(i)
	})
}

func (p *Picture) decide(part *Part) (replica.Slot, Cause, bool) {
	s := part.Slot
	if replaced := p.where(&s, Member.replaced); !replica.Mutated(replica.NoInc) && (replaced&(s.ISR|s.ELR)&^s.Lost != 0 || s.Leader >= 0 && replaced.Has(s.Place(s.Leader))) {
		return strike(s, replaced), CauseReplaced, true
	}
	here := p.where(&s, Member.fit)
	if replica.Mutated(replica.NoInc) {
		here = p.where(&s, func(m Member) bool { return m.Registered })
	}
	if leader := s.Place(s.Leader); s.Leader != replica.NoBroker && here.Has(leader) {
		if isr := s.ISR & here; isr != s.ISR && isr.Has(leader) {
			return s.Shrunk(isr, part.MinISR), CauseGone, true
		}
		return s, "", false
	}
	return elect(part, here)
}

// strike takes replicas whose folder was replaced out of ISR and ELR. Where that
// would leave nobody they stay, as lost: an election passes them over.
func strike(s replica.Slot, replaced replica.Set) replica.Slot {
	if s.Leader >= 0 && replaced.Has(s.Place(s.Leader)) {
		s.Leader = replica.NoBroker
		s.Epoch++
	}
	isr, elr := s.ISR&^replaced, s.ELR&^replaced
	switch {
	case isr|elr == 0:
		s.Lost |= replaced & (s.ISR | s.ELR)
		return s
	case isr == 0: // never an empty ISR: who is in the ELR has as much
		isr, elr = s.ISR, s.ELR&^replaced
		s.Lost |= replaced & s.ISR
	}
	s.ISR, s.ELR = isr, elr
	s.Lost &= isr | elr
	return s
}

// elect chooses a leader: of the ISR, else of the ELR, else, if that is allowed,
// of all. Of several the one that is known to be furthest, or else stands first.
func elect(part *Part, here replica.Set) (replica.Slot, Cause, bool) {
	s := part.Slot
	// A leader that is believed to be gone is not chosen again as it is.
	able := here
	if s.Leader != replica.NoBroker {
		able = able.Without(s.Place(s.Leader))
	}
	from, cause := able&s.ISR&^s.Lost, CauseElection
	if replica.Mutated(replica.AnyLeader) {
		from = able
	}
	if from == 0 {
		from, cause = able&s.ELR&^s.Lost, CauseELR
	}
	if from == 0 && part.Unclean {
		from, cause = able, CauseUnclean
	}
	place := furthest(part, from)
	if place < 0 {
		return s, "", false
	}
	n := s
	switch cause {
	case CauseElection:
		n = s.Shrunk((s.ISR & able).With(place), part.MinISR)
	case CauseELR:
		n.ELR, n.ISR = ((s.ELR | s.ISR) &^ s.Lost).Without(place), replica.SetOf(place)
		n.Lost = 0
	case CauseUnclean:
		n.ELR, n.ISR, n.Lost = 0, replica.SetOf(place), 0
	}
	n.Leader, n.Epoch = s.Replicas[place], s.Epoch+1
	if replica.Mutated(replica.ISRAll) {
		n.ISR = replica.All(len(s.Replicas))
	}
	return n, cause, true
}

func furthest(part *Part, from replica.Set) int {
	best := -1
	for i := range part.Slot.Replicas {
		if from.Has(i) && (best < 0 || part.Synced != nil && part.Synced[i] > part.Synced[best]) {
			best = i
		}
	}
	return best
}

// joinable are the replicas that may be taken into an ISR by what the leader knows
// of them: their folder is still the one that it knows it of.
func (p *Picture) joinable(s *replica.Slot, c replica.Change) replica.Set {
	set := p.Fit(s)
	for i, id := range s.Replicas {
		if i >= len(c.Folders) || p.member(id).Known != c.Folders[i] && !replica.Mutated(replica.JoinByID) {
			set = set.Without(i)
		}
	}
	return set
}

// What is wrong with a change that a leader asks for. With each the leader is
// told the slot as it is.
var (
	ErrFenced     = errors.New("the broker does not lead the partition in this epoch")
	ErrVersion    = errors.New("the slot has changed since")
	ErrIneligible = errors.New("a replica is not registered with its folder, or is leaving")
)

// Alter is the slot after a change that its leader asked for (AlterPartition).
func Alter(p *Picture, part *Part, from int32, c replica.Change) (replica.Slot, error) {
	s := part.Slot
	switch all := replica.All(len(s.Replicas)); {
	case s.Leader != from || s.Epoch != c.Epoch:
		return s, ErrFenced
	case s.Version != c.Base:
		return s, ErrVersion
	case c.Restart:
		s.Epoch++
		if replica.Mutated(replica.ISRAll) {
			s.ISR = all
		}
	case !c.ISR.Has(s.Place(from)) || c.ISR&^all != 0:
		return s, fmt.Errorf("the ISR %b asked for does not hold its leader, or others than the replicas", c.ISR)
	case !replica.Mutated(replica.NoInc) && c.ISR&^s.ISR&^p.joinable(&s, c) != 0:
		return s, ErrIneligible
	default:
		joined := c.ISR &^ s.ISR
		s = s.Shrunk(c.ISR, part.MinISR)
		s.Adding &^= joined
	}
	s.Version++
	return s, nil
}
