package controller

import (
	"errors"
	"slices"
	"testing"

	"sidestream/broker/replica"
)

// members are brokers 1, 2, …: "+" registered, "-" not, "n" with another folder,
// "l" leaving.
func members(as string) (list []Member) {
	for i, c := range as {
		m := Member{ID: int32(i + 1), Known: "f", Folder: "f", Registered: c != '-', Leaving: c == 'l'}
		if c == 'n' {
			m.Folder = "other"
		}
		list = append(list, m)
	}
	return list
}

func slot(leader int32, isr, elr replica.Set) replica.Slot {
	return replica.Slot{Leader: leader, Epoch: 4, Version: 9, Replicas: []int32{1, 2, 3}, ISR: isr, ELR: elr}
}

func TestDecide(t *testing.T) {
	all, none := replica.All(3), replica.NoBroker
	set := replica.SetOf
	for _, c := range []struct {
		name    string
		members string
		part    Part
		cause   Cause // "": nothing changes
		leader  int32
		epoch   int32
		isr     replica.Set
		elr     replica.Set
		lost    replica.Set
		ready   []int32
	}{
		{name: "all is well", members: "+++", part: Part{Slot: slot(1, all, 0), MinISR: 2}},
		{name: "a member is gone", members: "++-", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseGone, leader: 1, epoch: 4, isr: set(0, 1)},
		{name: "members are gone, below min", members: "+--", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseGone, leader: 1, epoch: 4, isr: set(0), elr: set(1, 2)},
		{name: "who is not in the ISR may be gone", members: "++-", part: Part{Slot: slot(1, set(0, 1), 0), MinISR: 2}},
		{name: "the leader is gone", members: "-++", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseElection, leader: 2, epoch: 5, isr: set(1, 2)},
		{name: "the furthest of the ISR", members: "-++", part: Part{Slot: slot(1, all, 0), MinISR: 2, Synced: []int64{9, 5, 7}}, cause: CauseElection, leader: 3, epoch: 5, isr: set(1, 2)},
		{name: "the leader is gone, below min", members: "--+", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseElection, leader: 3, epoch: 5, isr: set(2), elr: set(0, 1)},
		{name: "only of the ISR", members: "-++", part: Part{Slot: slot(1, set(0, 1), 0), MinISR: 2}, cause: CauseElection, leader: 2, epoch: 5, isr: set(1), elr: set(0)},
		{name: "nobody of the ISR", members: "--+", part: Part{Slot: slot(1, set(0, 1), 0), MinISR: 2}},
		{name: "of the ELR", members: "--+", part: Part{Slot: slot(1, set(0), set(2)), MinISR: 2}, cause: CauseELR, leader: 3, epoch: 5, isr: set(2), elr: set(0)},
		{name: "the ISR before the ELR", members: "-++", part: Part{Slot: slot(1, set(0, 1), set(2)), MinISR: 3}, cause: CauseElection, leader: 2, epoch: 5, isr: set(1), elr: set(0, 2)},
		{name: "unclean, when it is allowed", members: "--+", part: Part{Slot: slot(1, set(0, 1), 0), MinISR: 2, Unclean: true}, cause: CauseUnclean, leader: 3, epoch: 5, isr: set(2)},
		{name: "no leader yet", members: "+++", part: Part{Slot: slot(none, all, 0), MinISR: 2}, cause: CauseElection, leader: 1, epoch: 5, isr: all},
		{name: "a leader's folder is another", members: "n++", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseReplaced, leader: none, epoch: 5, isr: set(1, 2)},
		{name: "a member's folder is another", members: "+n+", part: Part{Slot: slot(1, all, 0), MinISR: 2}, cause: CauseReplaced, leader: 1, epoch: 4, isr: set(0, 2)},
		{name: "a folder that counts nowhere", members: "++n", part: Part{Slot: slot(1, set(0, 1), 0), MinISR: 2}, ready: []int32{3}},
		{name: "the only one's folder is another", members: "n--", part: Part{Slot: slot(1, set(0), 0), MinISR: 1}, cause: CauseReplaced, leader: none, epoch: 5, isr: set(0), lost: set(0)},
		{name: "and it is passed over then", members: "n++", part: Part{Slot: replica.Slot{Leader: none, Epoch: 5, Version: 9, Replicas: []int32{1, 2, 3}, ISR: set(0), Lost: set(0)}, MinISR: 1}, ready: []int32{1}},
		{name: "but for an unclean election", members: "+++", part: Part{Slot: replica.Slot{Leader: none, Epoch: 5, Version: 9, Replicas: []int32{1, 2, 3}, ISR: set(0), Lost: set(0)}, MinISR: 1, Unclean: true}, cause: CauseUnclean, leader: 1, epoch: 6, isr: set(0)},
		{name: "the only one is lost, and the ELR has as much", members: "n+-", part: Part{Slot: slot(1, set(0), set(1)), MinISR: 2}, cause: CauseReplaced, leader: none, epoch: 5, isr: set(0), elr: set(1), lost: set(0)},
		{name: "so that one leads", members: "n+-", part: Part{Slot: replica.Slot{Leader: none, Epoch: 5, Version: 9, Replicas: []int32{1, 2, 3}, ISR: set(0), ELR: set(1), Lost: set(0)}, MinISR: 2}, cause: CauseELR, leader: 2, epoch: 6, isr: set(1), ready: []int32{1}},
	} {
		p := &Picture{Members: members(c.members), Parts: []Part{c.part}}
		changes, ready := Decide(p)
		var ids []int32
		for _, r := range ready {
			ids = append(ids, r.Broker)
		}
		if !slices.Equal(ids, c.ready) {
			t.Errorf("%s: ready %v, want %v", c.name, ids, c.ready)
		}
		if c.cause == "" {
			if len(changes) != 0 {
				t.Errorf("%s: %+v", c.name, changes)
			}
			continue
		}
		if len(changes) != 1 {
			t.Errorf("%s: %d changes", c.name, len(changes))
			continue
		}
		got := changes[0]
		if to := got.To; got.Cause != c.cause || to.Leader != c.leader || to.Epoch != c.epoch || to.ISR != c.isr || to.ELR != c.elr || to.Lost != c.lost || to.Version != c.part.Slot.Version+1 {
			t.Errorf("%s: %s, %+v", c.name, got.Cause, to)
		}
	}
}

func TestAlter(t *testing.T) {
	set := replica.SetOf
	folders := []string{"f", "f", "f"}
	for _, c := range []struct {
		name    string
		members string
		slot    replica.Slot
		from    int32
		change  replica.Change
		err     error
		isr     replica.Set
		elr     replica.Set
		epoch   int32
	}{
		{name: "a shrink", members: "+++", slot: slot(1, replica.All(3), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 1), Folders: folders}, isr: set(0, 1), epoch: 4},
		{name: "a shrink below min", members: "+++", slot: slot(1, replica.All(3), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0), Folders: folders}, isr: set(0), elr: set(1, 2), epoch: 4},
		{name: "a growth ends the ELR", members: "+++", slot: slot(1, set(0), set(1, 2)), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 2), Folders: folders}, isr: set(0, 2), epoch: 4},
		{name: "nothing is a change too", members: "+++", slot: slot(1, set(0), set(1)), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0), Folders: folders}, isr: set(0), elr: set(1), epoch: 4},
		{name: "a restart", members: "+++", slot: slot(1, set(0, 1), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, Restart: true}, isr: set(0, 1), epoch: 5},
		{name: "who does not lead", members: "+++", slot: slot(2, set(0, 1), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0)}, err: ErrFenced},
		{name: "of an earlier epoch", members: "+++", slot: slot(1, set(0, 1), 0), from: 1, change: replica.Change{Epoch: 3, Base: 9, ISR: set(0)}, err: ErrFenced},
		{name: "of an earlier version", members: "+++", slot: slot(1, set(0, 1), 0), from: 1, change: replica.Change{Epoch: 4, Base: 8, ISR: set(0)}, err: ErrVersion},
		{name: "one that is not registered", members: "+-+", slot: slot(1, set(0), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 1), Folders: folders}, err: ErrIneligible},
		{name: "one that is leaving", members: "+l+", slot: slot(1, set(0), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 1), Folders: folders}, err: ErrIneligible},
		{name: "what is known is of another folder", members: "+++", slot: slot(1, set(0), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 1), Folders: []string{"f", "old", "f"}}, err: ErrIneligible},
		{name: "without folders", members: "+++", slot: slot(1, set(0), 0), from: 1, change: replica.Change{Epoch: 4, Base: 9, ISR: set(0, 1)}, err: ErrIneligible},
	} {
		p := &Picture{Members: members(c.members), Parts: []Part{{Slot: c.slot, MinISR: 2}}}
		got, err := Alter(p, &p.Parts[0], c.from, c.change)
		if !errors.Is(err, c.err) || c.err == nil && (got.ISR != c.isr || got.ELR != c.elr || got.Epoch != c.epoch || got.Version != 10) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	p := &Picture{Members: members("+++"), Parts: []Part{{Slot: slot(1, set(0, 1), 0), MinISR: 2}}}
	for _, isr := range []replica.Set{0, set(1), set(0, 5)} {
		if _, err := Alter(p, &p.Parts[0], 1, replica.Change{Epoch: 4, Base: 9, ISR: isr, Folders: folders}); err == nil {
			t.Errorf("ISR %b was taken", isr)
		}
	}
}

// A replica that has caught up on its way in is one of the replicas.
func TestAReplicaArrives(t *testing.T) {
	s := slot(1, replica.SetOf(0, 1), 0)
	s.Adding = replica.SetOf(2)
	p := &Picture{Members: members("+++"), Parts: []Part{{Slot: s, MinISR: 2}}}
	got, err := Alter(p, &p.Parts[0], 1, replica.Change{Epoch: 4, Base: 9, ISR: replica.All(3), Folders: []string{"f", "f", "f"}})
	if err != nil || got.Adding != 0 || got.ISR != replica.All(3) {
		t.Errorf("%+v, %v", got, err)
	}
}
