package broker

import "context"

// What clients ask of the cluster is passed on as it is.

// CreateTopic asks the cluster.
func (b *Broker) CreateTopic(ctx context.Context, spec TopicSpec) (TopicView, error) {
	return b.cluster.CreateTopic(ctx, spec)
}

// DeleteTopic asks the cluster.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	return b.cluster.DeleteTopic(ctx, name)
}

// CreatePartitions asks the cluster.
func (b *Broker) CreatePartitions(ctx context.Context, name string, count int32, assignment ...[]int32) error {
	return b.cluster.CreatePartitions(ctx, name, count, assignment...)
}

// AlterTopic asks the cluster.
func (b *Broker) AlterTopic(ctx context.Context, name string, change func(map[string]string) (map[string]string, error)) error {
	return b.cluster.AlterTopic(ctx, name, change)
}

// CommitOffsets asks the cluster.
func (b *Broker) CommitOffsets(ctx context.Context, group string, offsets map[PartitionID]CommittedOffset) error {
	return b.cluster.CommitOffsets(ctx, group, offsets)
}

// CommittedOffsets asks the cluster.
func (b *Broker) CommittedOffsets(ctx context.Context, group string) (map[PartitionID]CommittedOffset, error) {
	return b.cluster.CommittedOffsets(ctx, group)
}

// CommittedGroups asks the cluster.
func (b *Broker) CommittedGroups(ctx context.Context) ([]string, error) {
	return b.cluster.CommittedGroups(ctx)
}

// DropOffsets asks the cluster.
func (b *Broker) DropOffsets(ctx context.Context, group string, which []PartitionID) error {
	return b.cluster.DropOffsets(ctx, group, which)
}
