// Package cluster holds the plain types in which the broker is told about the cluster it is part of, and the
// interface through which it asks for changes. It is a leaf: both the broker and its protocol server import it.
package cluster

import (
	"context"
	"errors"
)

// Errors that a Cluster returns. They are matched with errors.Is; the text that wraps them reaches the client.
var (
	// ErrTopicExists: a topic of that name is there already.
	ErrTopicExists = errors.New("topic exists already")
	// ErrUnknownTopic: no topic of that name.
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrInvalidReplication: the replication factor cannot be met.
	ErrInvalidReplication = errors.New("invalid replication factor")
	// ErrInvalidPartitions: the partition count or assignment makes no sense.
	ErrInvalidPartitions = errors.New("invalid partitions")
	// ErrInvalidConfig: a topic config has an unknown name or a bad value.
	ErrInvalidConfig = errors.New("invalid topic config")
	// ErrInvalidName: the topic's name breaks the naming rule.
	ErrInvalidName = errors.New("invalid topic name")
	// ErrUnknownGroup: no group of that name has stored offsets.
	ErrUnknownGroup = errors.New("unknown group")
	// ErrUnavailable: the request may be right, but it cannot be done now, and nothing was changed; trying again can help.
	ErrUnavailable = errors.New("cluster unavailable")
	// ErrUnknownOutcome: the change may or may not have been made; look before trying again.
	ErrUnknownOutcome = errors.New("outcome unknown")
)

// Cluster is how the broker learns who leads what and asks for changes that concern more than itself. The storage
// host's agent implements it. Every method may be called from several goroutines.
type Cluster interface {
	// View returns the newest snapshot of the cluster. It never blocks and never returns nil; the snapshot is immutable.
	View() *View
	// CreateTopic returns when the leaders of all partitions are known or ctx is over.
	CreateTopic(ctx context.Context, spec TopicSpec) (TopicView, error)
	// DeleteTopic marks the topic for deletion. ErrUnknownTopic when there is none of that name.
	DeleteTopic(ctx context.Context, name string) error
	// CreatePartitions raises a topic's partition count to count. With an assignment there is one for each new partition:
	// its replicas, leader first. Else the cluster places them.
	CreatePartitions(ctx context.Context, name string, count int32, assignment ...[]int32) error
	// AlterTopic replaces a topic's configs by what change makes of them. It returns when this broker's view has them;
	// an error of change is returned as it is, and then nothing is changed. change may be called several times.
	AlterTopic(ctx context.Context, name string, change func(configs map[string]string) (map[string]string, error)) error

	// CommitOffsets stores offsets of a group that has no members, and returns when they are stored.
	CommitOffsets(ctx context.Context, group string, offsets map[PartitionID]CommittedOffset) error
	// CommittedOffsets reads what a group has stored, from whatever broker; nothing of an unknown group.
	CommittedOffsets(ctx context.Context, group string) (map[PartitionID]CommittedOffset, error)
	// CommittedGroups lists the groups that have offsets stored, sorted.
	CommittedGroups(ctx context.Context) ([]string, error)
	// DropOffsets forgets the offsets of those partitions, or with nil everything of the group. ErrUnknownGroup when the
	// group has none.
	DropOffsets(ctx context.Context, group string, which []PartitionID) error

	// NextProducerIDs hands out a block of producer ids [first, first+count) that no other broker will ever get.
	NextProducerIDs(ctx context.Context) (first, count int64, err error)
}

// View is a snapshot of the cluster. Whoever holds one may read it for ever and must not change it.
type View struct {
	ClusterID  string
	Controller int32 // broker id, -1 when there is none
	Brokers    []Node
	Topics     map[string]*TopicView
	// Partial says that not all topics are known, since the store could not be
	// read: one that is not here may well exist.
	Partial bool
}

// Node is a broker as clients reach it.
type Node struct {
	ID   int32
	Host string
	Port int32
	Rack string
}

// TopicView is what is known of one topic.
type TopicView struct {
	Name       string
	ID         UUID
	Configs    map[string]string
	Partitions []PartitionView // index = partition number
}

// PartitionView says who serves a partition. Leader is -1 when nobody does.
type PartitionView struct {
	Leader   int32
	Epoch    int32
	Replicas []int32
	ISR      []int32
}

// TopicSpec asks for a topic. Partitions and Replication are -1 for the cluster's defaults; with Assignment
// (partition → replicas, leader first) both are -1.
type TopicSpec struct {
	Name         string
	Partitions   int32
	Replication  int16
	Assignment   map[int32][]int32
	Configs      map[string]string
	ValidateOnly bool
}

// TopicByID returns the topic with that UUID, nil when there is none. It looks at every topic.
func (v *View) TopicByID(id UUID) *TopicView {
	for _, t := range v.Topics {
		if t.ID == id {
			return t
		}
	}
	return nil
}

// Node returns the broker with that id, false when the view has none.
func (v *View) Node(id int32) (Node, bool) {
	for _, n := range v.Brokers {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}
