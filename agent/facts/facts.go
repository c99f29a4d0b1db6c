// Package facts is an agent's picture of the coordination store: topics, the
// state of their partitions, live brokers and the controller. A [Facts] is
// immutable; a [Mirror] keeps the latest one by following what the agents say
// they changed; a [Writer] commits changes so that the other mirrors learn
// of them.
package facts

import (
	"maps"
	"slices"

	"sidestream/discovery"
)

// Cluster says how the store's cluster-id relates to the data folder's.
type Cluster int

const (
	// Unread: the store has not been read yet.
	Unread Cluster = iota
	// Same: the store belongs to the folder's cluster.
	Same
	// Missing: the store has no cluster-id, though the folder has one: it was
	// wiped or restored, or is not the cluster's store.
	Missing
	// Foreign: the store belongs to another cluster.
	Foreign
)

func (c Cluster) String() string {
	return [...]string{"unread", "same", "missing", "foreign"}[c]
}

// Topic is a topic with the version of its key.
type Topic struct {
	discovery.Topic
	Version uint64
}

// Shard is the state of up to 64 partitions with the version of its key.
type Shard struct {
	discovery.Shard
	Version uint64
}

// Facts is one consistent enough picture of the store. Nothing in it may be
// changed. While Cluster is not Same it is the last picture of the time when
// it was, except that new brokers are added.
type Facts struct {
	Cluster    Cluster
	StoreID    string                     // the store's cluster-id, "" when it has none
	Topics     map[string]Topic           // by name
	Shards     map[string]map[int]Shard   // by topic UUID, then shard number
	Brokers    map[int32]discovery.Broker // registered, by id; those without a port do not serve yet
	Controller int32                      // -1: none
}

// Empty is the picture before anything was read.
func Empty() *Facts {
	return &Facts{Topics: map[string]Topic{}, Shards: map[string]map[int]Shard{},
		Brokers: map[int32]discovery.Broker{}, Controller: -1}
}

// Part names a partition by its topic's UUID.
type Part struct {
	UUID      string
	Partition int32
}

// Shard is the number of the shard that holds the partition.
func (p Part) Shard() int { return int(p.Partition) / discovery.ShardPartitions }

// Slot is the partition's place in its shard.
func (p Part) Slot() int { return int(p.Partition) % discovery.ShardPartitions }

// ShardsOf is how many shards hold n partitions.
func ShardsOf(n int32) int {
	return (int(n) + discovery.ShardPartitions - 1) / discovery.ShardPartitions
}

// SlotsOf is how many of n partitions are in a shard.
func SlotsOf(n int32, shard int) int {
	return max(0, min(discovery.ShardPartitions, int(n)-shard*discovery.ShardPartitions))
}

// State is where a partition lives; ok is false when the store does not list it.
func (f *Facts) State(p Part) (discovery.PartitionState, bool) {
	s, ok := f.Shards[p.UUID][p.Shard()]
	if !ok || p.Slot() >= len(s.Partitions) {
		return discovery.PartitionState{}, false
	}
	return s.Partitions[p.Slot()], true
}

// Serving says whether the broker is registered with an address.
func (f *Facts) Serving(id int32) bool {
	b, ok := f.Brokers[id]
	return ok && b.Port != 0
}

// ByUUID indexes the topics by UUID.
func (f *Facts) ByUUID() map[string]Topic {
	m := make(map[string]Topic, len(f.Topics))
	for _, t := range f.Topics {
		m[t.UUID] = t
	}
	return m
}

// ServingIDs lists the brokers that serve, sorted.
func (f *Facts) ServingIDs() []int32 {
	var ids []int32
	for id := range f.Brokers {
		if f.Serving(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Hole says that nobody is known to hold the partition: its state was written
// by a rebuild that knew of it only by number (or, in a topic that is being
// deleted, everybody has removed it). It is never placed anew, because
// somebody's disk may hold it.
func Hole(s discovery.PartitionState) bool { return len(s.Replicas) == 0 }

// CloneShard copies a shard so that it may be changed.
func CloneShard(s discovery.Shard) discovery.Shard {
	c := s
	c.Partitions = slices.Clone(s.Partitions)
	for i := range c.Partitions {
		c.Partitions[i].Replicas = slices.Clone(c.Partitions[i].Replicas)
		c.Partitions[i].ISR = slices.Clone(c.Partitions[i].ISR)
	}
	return c
}

// clone copies the maps, not the values, which nobody changes.
func (f *Facts) clone() *Facts {
	c := *f
	c.Topics = maps.Clone(f.Topics)
	c.Brokers = maps.Clone(f.Brokers)
	c.Shards = make(map[string]map[int]Shard, len(f.Shards))
	for id, m := range f.Shards {
		c.Shards[id] = maps.Clone(m)
	}
	return &c
}
