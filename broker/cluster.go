package broker

import "sidestream/broker/cluster"

// The broker knows nothing of how a cluster agrees. The storage host's agent tells it through these types who leads
// what, and it asks the agent through Cluster for what concerns more than itself. They are defined in package cluster,
// because the protocol server below needs them too.
type (
	// Cluster is implemented by the agent; see cluster.Cluster.
	Cluster = cluster.Cluster
	// View is an immutable snapshot of the cluster.
	View = cluster.View
	// Node is a broker as clients reach it.
	Node = cluster.Node
	// TopicView is what is known of one topic.
	TopicView = cluster.TopicView
	// PartitionView says who serves a partition; Leader -1 is nobody.
	PartitionView = cluster.PartitionView
	// TopicSpec asks for a topic.
	TopicSpec = cluster.TopicSpec
	// PartitionID names a partition for ever.
	PartitionID = cluster.PartitionID
	// CommittedOffset is where a consumer goes on.
	CommittedOffset = cluster.CommittedOffset
	// UUID identifies a topic for ever.
	UUID = cluster.UUID
)

// ParseUUID reads the canonical 8-4-4-4-12 form.
func ParseUUID(s string) (UUID, error) { return cluster.ParseUUID(s) }

// Errors that a Cluster returns, matched with errors.Is.
var (
	ErrTopicExists        = cluster.ErrTopicExists
	ErrUnknownTopic       = cluster.ErrUnknownTopic
	ErrInvalidReplication = cluster.ErrInvalidReplication
	ErrInvalidPartitions  = cluster.ErrInvalidPartitions
	ErrInvalidConfig      = cluster.ErrInvalidConfig
	ErrInvalidName        = cluster.ErrInvalidName
	ErrUnknownGroup       = cluster.ErrUnknownGroup
	ErrUnavailable        = cluster.ErrUnavailable
	ErrUnknownOutcome     = cluster.ErrUnknownOutcome
)
