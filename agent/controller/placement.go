// Package controller is what one elected agent does for the whole cluster: it
// places the partitions of new topics, removes the keys of deleted ones once
// nobody holds their files any more, and ends the sessions of brokers that
// have stopped. Every commit checks that it still holds the controller lock.
package controller

import (
	"cmp"
	"slices"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

// Candidate is a broker that partitions can be placed on.
type Candidate struct {
	ID   int32
	Rack string // "": unknown; brokers without a rack share one
	Load int    // partitions of all topics whose first replica it is
}

// Place chooses a broker for each of n new partitions of one topic that has
// already so many partitions on each broker as placed tells (nil: none). The
// choice is a pure function of its arguments. In order of weight: the topic
// spreads evenly over brokers (within one, if it was so before), then over
// racks, then all topics together over brokers; lowest id settles a tie.
// Without candidates it returns nil.
func Place(n int, placed map[int32]int, candidates []Candidate) []int32 {
	if len(candidates) == 0 || n <= 0 {
		return nil
	}
	type slot struct {
		Candidate
		topic int
	}
	slots := make([]slot, len(candidates))
	racks := map[string]int{}
	for i, c := range candidates {
		slots[i] = slot{Candidate: c, topic: placed[c.ID]}
		racks[c.Rack] += placed[c.ID]
	}
	chosen := make([]int32, 0, n)
	for range n {
		best := 0
		for i := range slots {
			a, b := slots[i], slots[best]
			if cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(racks[a.Rack], racks[b.Rack]),
				cmp.Compare(a.Load, b.Load), cmp.Compare(a.ID, b.ID)) < 0 {
				best = i
			}
		}
		slots[best].topic++
		slots[best].Load++
		racks[slots[best].Rack]++
		chosen = append(chosen, slots[best].ID)
	}
	return chosen
}

// Candidates lists the brokers that serve, with their load, sorted by id.
func Candidates(f *facts.Facts) []Candidate {
	load := map[int32]int{}
	for _, t := range f.Topics {
		if t.Phase == discovery.PhaseDeleting {
			continue
		}
		for id, n := range placedOn(f, t.UUID) {
			load[id] += n
		}
	}
	var list []Candidate
	for _, id := range f.ServingIDs() {
		list = append(list, Candidate{ID: id, Rack: f.Brokers[id].Rack, Load: load[id]})
	}
	return list
}

// placedOn counts a topic's partitions by their first replica.
func placedOn(f *facts.Facts, uuid string) map[int32]int {
	n := map[int32]int{}
	for _, s := range f.Shards[uuid] {
		for _, p := range s.Partitions {
			if len(p.Replicas) > 0 {
				n[p.Replicas[0]]++
			}
		}
	}
	return n
}

// unplaced lists the partitions of a topic that the store does not list.
// Holes are listed and therefore left alone (see facts.Hole).
func unplaced(f *facts.Facts, t facts.Topic) []int32 {
	var list []int32
	for shard := range facts.ShardsOf(t.Partitions) {
		have := len(f.Shards[t.UUID][shard].Partitions)
		for slot := have; slot < facts.SlotsOf(t.Partitions, shard); slot++ {
			list = append(list, int32(shard*discovery.ShardPartitions+slot))
		}
	}
	return list
}

// Fresh is the state of a partition just placed: nobody leads it until its
// broker takes it, at epoch 1.
func Fresh(replica int32) discovery.PartitionState {
	return discovery.PartitionState{Replicas: []int32{replica}, Leader: -1, ISR: []int32{replica}}
}

// extend returns the shards that change when the partitions are placed on the
// chosen brokers, by shard number. Partitions must be those of unplaced.
func extend(f *facts.Facts, uuid string, partitions, chosen []int32) map[int]discovery.Shard {
	changed := map[int]discovery.Shard{}
	for i, p := range partitions {
		n := facts.Part{UUID: uuid, Partition: p}.Shard()
		s, ok := changed[n]
		if !ok {
			s = facts.CloneShard(f.Shards[uuid][n].Shard)
		}
		s.Partitions = append(s.Partitions, Fresh(chosen[i]))
		changed[n] = s
	}
	return changed
}

// sortedKeys of a map by shard number.
func sortedKeys(m map[int]discovery.Shard) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
