package replica

import "time"

// Report is what a follower says of itself on its present stream.
func (s *State) Report(open bool) Report {
	return Report{From: s.Self, Folder: s.Folder, Epoch: s.Slot.Epoch, Stream: s.Stream, Open: open,
		Start: s.Start, End: s.End, LastEpoch: s.LastEpoch(), Synced: s.Synced, Noted: s.Noted}
}

// open begins a new stream, under a number of its own: what still comes on an
// older one is told by it.
func (s *State) open(now time.Duration, effects []Effect) []Effect {
	if s.Slot.Leader == NoBroker || s.Slot.Leader == s.Self {
		return effects
	}
	s.Stream++
	s.heard = now
	return append(effects, Open{s.Slot.Leader, s.Report(true)})
}

// frame appends what the leader sent, if it follows what is there to the letter.
func (s *State) frame(now time.Duration, f Frame, effects []Effect) []Effect {
	present := s.Role == Follower && f.Stream == s.Stream && f.Epoch == s.Slot.Epoch && f.From == s.Slot.Leader
	if !present && !(Mutated(LateResp) && s.Role == Follower && f.Base == s.End) {
		return effects
	}
	if f.Base != s.End || f.Before != s.LastEpoch() && f.Base > max(s.Start, f.Start) && !Mutated(DivOnce) && !Mutated(HWTrunc) {
		return s.open(now, effects) // something is missing between: it has to be looked at anew
	}
	s.heard = now
	s.leaderStart = f.EpochStart
	if f.End > f.Base {
		for i, e := range f.Epochs {
			end := f.End
			if i+1 < len(f.Epochs) {
				end = f.Epochs[i+1].Start
			}
			s.grow(e.Epoch, max(e.Start, f.Base), end)
		}
		effects = append(effects, Write{f})
	}
	effects = s.note(effects)
	if hw := min(f.HW, s.End); hw > s.HW {
		s.HW = hw
		effects = append(effects, RaiseHW{hw})
	}
	if to := min(f.Start, s.Deletable()); s.trim(to) {
		effects = append(effects, Trim{to})
	}
	return effects
}

// diverging cuts off what the leader does not have, and opens again.
func (s *State) diverging(now time.Duration, d Diverging, effects []Effect) []Effect {
	if s.Role != Follower || d.Stream != s.Stream || d.Epoch != s.Slot.Epoch || d.From != s.Slot.Leader {
		return effects
	}
	if d.Reset {
		s.Epochs = nil
		s.Start, s.End, s.Synced, s.HW = d.End, d.End, d.End, d.End
		effects = append(effects, Reset{d.End})
		return s.open(now, effects)
	}
	to := d.End
	if !Mutated(HWTrunc) {
		_, own := s.EpochEnd(d.At)
		to = min(own, d.End)
	}
	if to = max(to, s.Start); to < s.End {
		s.cut(to)
		effects = append(effects, Truncate{to})
	}
	return s.open(now, effects)
}
