package replica

import "time"

// counted are the replicas whose synced ends the high watermark waits for: the
// committed ISR, and who is being taken in. Who is being left out counts until
// that is written.
func (s *State) counted() Set {
	switch {
	case s.Pending == nil:
		return s.Slot.ISR
	case Mutated(OptShrink):
		return s.Pending.ISR
	case Mutated(SmallISR):
		return s.Slot.ISR
	}
	return s.Slot.ISR | s.possible
}

// advance moves the high watermark to the least synced end of the replicas that
// count, each as it reported in this epoch, while the ISR is large enough.
func (s *State) advance(effects []Effect) []Effect {
	if s.Role != Leader {
		return effects
	}
	isr := s.counted()
	mine := s.Slot.Place(s.Self)
	if !isr.Has(mine) {
		return effects
	}
	size := s.Slot.ISR.Len()
	if s.Pending != nil && Mutated(OptShrink) {
		size = isr.Len()
	}
	if size < s.Config.MinISR && !Mutated(HWBelow) {
		return effects
	}
	hw := s.Synced
	for i := range s.others {
		if i == mine || !isr.Has(i) {
			continue
		}
		if !s.others[i].known {
			return effects
		}
		hw = min(hw, s.others[i].synced)
	}
	if hw < s.EpochStart && !Mutated(NoEpochStart) {
		return effects // nothing is committed by counting before the epoch's start is on all
	}
	if hw > s.HW {
		s.HW = hw
		effects = append(effects, RaiseHW{hw})
	}
	return effects
}

// report takes in what a follower says.
func (s *State) report(now time.Duration, r Report, effects []Effect) []Effect {
	place := s.Slot.Place(r.From)
	if s.Role != Leader || place < 0 || r.From == s.Self || r.Epoch != s.Slot.Epoch && !Mutated(NoFence) {
		return append(effects, Refuse{r.From, r.Stream})
	}
	if s.Folders[place] != r.Folder && !Mutated(NoInc) {
		return append(effects, Refuse{r.From, r.Stream}) // the controller knows another folder under this id
	}
	f := &s.others[place]
	if r.Open {
		once := Mutated(DivOnce) && f.known && r.End <= s.End
		if d, differs := s.differs(r); differs && !once {
			f.stream = 0
			return append(effects, Send{r.From, d})
		}
		f.stream = r.Stream
		effects = append(effects, Serve{r.From, r.Epoch, r.Stream, r.End})
	} else if r.Stream != f.stream {
		return append(effects, Refuse{r.From, r.Stream}) // it has ended
	}
	f.reported = now
	f.end, f.synced = r.End, r.Synced
	if Mutated(SplitBad) {
		f.synced = r.End
	}
	f.known = f.known || r.Noted == s.Slot.Epoch || Mutated(NoEpochStart)
	if r.End >= s.End || r.End >= s.HW {
		f.caught = now
	}
	effects = s.advance(effects)
	return s.join(now, place, effects)
}

// differs tells where a follower's log is another than the leader's.
func (s *State) differs(r Report) (Diverging, bool) {
	d := Diverging{From: s.Self, Epoch: r.Epoch, Stream: r.Stream}
	if Mutated(HWTrunc) {
		d.At, d.End = r.LastEpoch, s.End
		return d, r.End > s.End
	}
	if r.End < s.Start {
		d.Reset, d.End, d.At = true, s.Start, NoEpoch
		return d, true
	}
	if r.Start == r.End && r.End <= s.End {
		return d, false // it holds nothing, and what was below its start was committed
	}
	d.At, d.End = s.EpochEnd(r.LastEpoch)
	if d.At == NoEpoch {
		// Nothing here is as old as its last record. What it has below the start
		// here may be what was deleted, or what was never committed.
		d.Reset, d.End = true, s.Start
		return d, true
	}
	return d, d.At < r.LastEpoch || d.End < r.End
}

// Who was taken into the ISR again and again waits longer each time.
const (
	joinFirst = time.Second
	joinLast  = time.Minute
)

// join asks for a follower to be taken into the ISR, once it has all that is
// committed, and the start of this epoch.
func (s *State) join(now time.Duration, place int, effects []Effect) []Effect {
	f := &s.others[place]
	if s.Slot.ISR.Has(place) || s.Pending != nil || !f.known || f.synced < s.HW || f.synced < s.EpochStart ||
		!s.Fit.Has(place) || s.Slot.Removing.Has(place) || now < f.joinAt && s.Writable() {
		return effects
	}
	f.joins++
	if f.joins > 2 {
		f.joinAt = now + min(joinFirst<<min(f.joins-3, 6), joinLast)
	}
	return s.ask(now, s.Slot.ISR.With(place), effects)
}

// ask the controller for another ISR.
func (s *State) ask(now time.Duration, isr Set, effects []Effect) []Effect {
	c := Change{Epoch: s.Slot.Epoch, Base: s.Slot.Version, ISR: isr, Folders: s.Folders}
	s.Pending, s.asked = &c, now
	s.possible |= isr
	effects = append(effects, Ask{c})
	if Mutated(OptShrink) {
		effects = s.advance(effects)
	}
	return effects
}

// gone asks for a member to be left out at once.
func (s *State) gone(now time.Duration, g Gone, effects []Effect) []Effect {
	place := s.Slot.Place(g.Broker)
	if s.Role != Leader || s.Pending != nil || g.Broker == s.Self || !s.Slot.ISR.Has(place) {
		return effects
	}
	return s.ask(now, s.Slot.ISR.Without(place), effects)
}

func (s *State) tick(now time.Duration, effects []Effect) []Effect {
	switch {
	case s.Role == Follower && now-s.heard >= s.Config.Retry:
		return s.open(now, effects) // nothing was heard, on a stream that is or is to be
	case s.Role != Leader:
		return effects
	case s.Pending != nil && now-s.asked < s.Config.Retry:
		return effects
	}
	isr := s.Slot.ISR
	mine := s.Slot.Place(s.Self)
	for i := range s.others {
		if i != mine && isr.Has(i) && now-s.others[i].caught > s.Config.Lag {
			isr = isr.Without(i)
		}
	}
	switch {
	case !isr.Has(mine):
	case s.Pending != nil:
		// Its outcome is not known, and a refusal may belong to an earlier
		// attempt: only a newer version settles it. So any change will do, and
		// what is wanted may be another by now. Nothing at all is one too.
		if joining := s.Pending.ISR &^ s.Slot.ISR & s.Fit; isr == s.Slot.ISR {
			for i := range s.others {
				if joining.Has(i) && s.others[i].known {
					isr = isr.With(i)
				}
			}
		}
		return s.ask(now, isr, effects)
	case isr != s.Slot.ISR:
		return s.ask(now, isr, effects)
	}
	return effects
}
