package agent

import (
	"context"

	"sidestream/broker"
)

// CommitOffsets stores offsets of a group without members, coalesced with
// others' and within the cluster's budget of commits.
func (a *Agent) CommitOffsets(ctx context.Context, group string, offsets map[broker.PartitionID]broker.CommittedOffset) error {
	if err := a.mayChange(); err != nil {
		return err
	}
	return a.offsets.Commit(ctx, group, offsets)
}

// CommittedOffsets reads them back, from the store and from what is on its way
// there.
func (a *Agent) CommittedOffsets(ctx context.Context, group string) (map[broker.PartitionID]broker.CommittedOffset, error) {
	if err := a.mayChange(); err != nil {
		return nil, err // an empty answer from a store that is not ours would send consumers back to the start
	}
	return a.offsets.Offsets(ctx, group)
}

// CommittedGroups lists the groups that have stored offsets.
func (a *Agent) CommittedGroups(ctx context.Context) ([]string, error) {
	if err := a.mayChange(); err != nil {
		return nil, err
	}
	return a.offsets.Groups(ctx)
}

// DropOffsets forgets offsets.
func (a *Agent) DropOffsets(ctx context.Context, group string, which []broker.PartitionID) error {
	if err := a.mayChange(); err != nil {
		return err
	}
	return a.offsets.Drop(ctx, group, which)
}

// topicName is the name of a topic that the last picture of the store has.
func (a *Agent) topicName(id broker.UUID) (name string, known bool) {
	f, _ := a.mirror.Latest()
	t, known := f.ByUUID()[id.String()]
	return t.Name, known
}
