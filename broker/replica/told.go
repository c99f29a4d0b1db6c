package replica

import "time"

// told takes in what the store says. Old news are ignored: of an older
// generation or epoch than this replica has promised.
func (s *State) told(now time.Duration, t Told, effects []Effect) []Effect {
	slot := t.Slot
	switch {
	case slot.Generation < s.Generation, slot.Epoch < s.Promised:
		return effects
	case slot.Leader == NoBroker && slot.Epoch <= s.Slot.Epoch:
		return effects
	case slot.Epoch == s.Slot.Epoch && slot.Version < s.Slot.Version:
		return effects
	}
	mine := slot.Place(s.Self)
	if t.Cached {
		return s.recalled(now, t, effects)
	}
	if alone := mine >= 0 && len(slot.Replicas) == 1; alone != s.Alone {
		s.Alone = alone
		effects = s.persist(effects)
	}
	right := mine >= 0 && t.Folders[mine] == s.Folder || Mutated(NoInc)
	switch {
	case mine < 0: // moved away
		if s.Role == Leader {
			effects = append(effects, Resign{})
		}
		s.Role, s.Slot = None, slot
	case slot.Leader == s.Self && s.Role == Leader && slot.Epoch == s.Slot.Epoch:
		newer := slot.Version > s.Slot.Version
		if newer && len(slot.Replicas) != len(s.Slot.Replicas) {
			s.rearrange(now, slot)
		}
		for i, folder := range t.Folders {
			if i < len(s.Folders) && s.Folders[i] != folder && !Mutated(NoInc) {
				s.others[i] = follower{caught: now, stream: 0} // what it reported was of another folder
			}
		}
		s.Folders, s.Fit = t.Folders, t.Fit
		if newer {
			// Nothing that is based on an older version can be written any more.
			s.Slot, s.Pending, s.possible = slot, nil, 0
			effects = s.advance(effects)
		} else if Mutated(SettleEarly) {
			s.Pending, s.possible = nil, 0
		}
	case slot.Leader == s.Self && !right && !Mutated(NoIncLead):
		// Another folder was chosen under this id. The controller strikes it
		// out; until then there is nobody to follow.
		return effects
	case slot.Leader == s.Self && slot.Epoch > s.Promised:
		return s.lead(now, t, effects)
	case slot.Leader == s.Self:
		// This process did not lead that epoch, so it does not know what it had
		// promised: only under a new one.
		change := Change{Epoch: slot.Epoch, Base: slot.Version, Restart: true}
		effects = append(effects, Ask{change})
	case slot.Epoch > s.Slot.Epoch || s.Role == None:
		return s.follow(now, t, effects)
	default:
		s.Slot, s.Folders, s.Fit = slot, t.Folders, t.Fit
	}
	return effects
}

// lead becomes the leader. What the log holds is synced before it counts; the
// members of the ISR count when they have reported in this epoch.
func (s *State) lead(now time.Duration, t Told, effects []Effect) []Effect {
	if s.Role == Leader {
		effects = append(effects, Resign{})
	}
	s.Role, s.Slot, s.Folders, s.Fit = Leader, t.Slot, t.Folders, t.Fit
	s.Promised, s.Generation = t.Slot.Epoch, t.Slot.Generation
	s.EpochStart, s.Pending, s.possible = s.End, nil, 0
	s.others = make([]follower, len(t.Slot.Replicas))
	for i := range s.others {
		s.others[i].caught = now
	}
	effects = append(s.persist(effects), Lead{t.Slot.Epoch})
	effects = s.note(effects)
	return s.advance(effects)
}

// follow becomes a follower, of nobody where there is no leader.
func (s *State) follow(now time.Duration, t Told, effects []Effect) []Effect {
	if s.Role == Leader {
		effects = append(effects, Resign{})
	}
	s.Role, s.Slot, s.Folders, s.Fit = Follower, t.Slot, t.Folders, t.Fit
	s.Pending, s.possible, s.others, s.leaderStart = nil, 0, nil, -1
	s.Generation = t.Slot.Generation
	s.Promised = max(s.Promised, t.Slot.Epoch)
	effects = s.persist(effects)
	if Mutated(HWTrunc) && s.End > s.HW {
		s.cut(s.HW)
		effects = append(effects, Truncate{s.End})
	}
	return s.open(now, effects)
}

// rearrange keeps what is known of the replicas when others come or go.
func (s *State) rearrange(now time.Duration, slot Slot) {
	others := make([]follower, len(slot.Replicas))
	for i, b := range slot.Replicas {
		others[i].caught = now
		if old := s.Slot.Place(b); old >= 0 {
			others[i] = s.others[old]
		}
	}
	s.others = others
}

// recalled goes by what the folder keeps of the store while that is away. It
// follows, so that a leader which waits for this replica goes on, and does not
// lead: others may have been chosen since. Only a sole copy leads, which nobody
// can have overtaken; it has noted that it is one, and a second replica joins
// only by its own asking.
func (s *State) recalled(now time.Duration, t Told, effects []Effect) []Effect {
	switch {
	case s.Role != None:
		return effects
	case t.Slot.Leader == s.Self && s.Alone && len(t.Slot.Replicas) == 1:
		return s.lead(now, t, effects)
	case t.Slot.Leader != s.Self && t.Slot.Place(s.Self) >= 0:
		return s.follow(now, t, effects)
	}
	return effects
}
