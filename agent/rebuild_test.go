package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

func TestMerge(t *testing.T) {
	g := heldTopic{topic: "a", id: mustUUID(uuidA), parts: []broker.Held{
		{Topic: "a", ID: mustUUID(uuidA), Partition: 1, Count: 3, LeaderEpoch: 7, Configs: map[string]string{"retention.ms": "1"}}}}
	there := func(uuid string, phase discovery.Phase, count int32) *facts.Topic {
		return &facts.Topic{Topic: discovery.Topic{Name: "a", UUID: uuid, Phase: phase, Partitions: count}, Version: 4}
	}
	shard := func(states ...discovery.PartitionState) map[int]facts.Shard {
		return map[int]facts.Shard{0: {Shard: discovery.Shard{Partitions: states}, Version: 5}}
	}
	for name, c := range map[string]struct {
		s         stored
		topic     bool
		shards    int
		written   []int32
		unchanged int
		conflict  string
	}{
		"nothing there":        {stored{}, true, 1, []int32{1}, 0, ""},
		"shards without topic": {stored{shards: shard(on(2, 1), hole, hole)}, true, 1, []int32{1}, 0, ""},
		"a gap":                {stored{there(uuidA, discovery.PhaseLive, 3), shard(on(2, 1), hole, hole)}, false, 1, []int32{1}, 0, ""},
		"all there":            {stored{there(uuidA, discovery.PhaseLive, 3), shard(on(2, 1), on(1, 9), hole)}, false, 0, nil, 1, ""},
		"count too small":      {stored{there(uuidA, discovery.PhaseLive, 1), shard(on(2, 1))}, true, 1, []int32{1}, 0, ""},
		"given to another":     {stored{there(uuidA, discovery.PhaseLive, 3), shard(on(2, 1), on(3, 9), hole)}, false, 0, nil, 0, "a-1: the store gives it to broker [3]"},
		"another topic":        {stored{there(uuidB, discovery.PhaseLive, 3), nil}, false, 0, nil, 0, "another topic of that name"},
		"being deleted":        {stored{there(uuidA, discovery.PhaseDeleting, 3), shard(hole, hole, hole)}, false, 0, nil, 0, "being deleted"},
		"being created":        {stored{there(uuidA, discovery.PhaseCreating, 3), nil}, false, 0, nil, 0, "being created"},
	} {
		t.Run(name, func(t *testing.T) {
			m := merge(1, g, c.s, time.Unix(0, 0))
			if (m.topic != nil) != c.topic || len(m.shards) != c.shards || !slices.Equal(m.written, c.written) || m.unchanged != c.unchanged {
				t.Errorf("got %+v", m)
			}
			if (c.conflict == "") != (len(m.conflicts) == 0) || len(m.conflicts) > 0 && !strings.Contains(m.conflicts[0], c.conflict) {
				t.Errorf("conflicts %q; want %q", m.conflicts, c.conflict)
			}
			if m.topic != nil && (m.topic.Partitions != 3 || m.topic.UUID != uuidA || m.topic.Phase != discovery.PhaseLive) {
				t.Errorf("topic %+v", m.topic)
			}
			for _, s := range m.shards {
				if len(s.Partitions) != 3 {
					t.Errorf("the shard lists %d of 3 partitions", len(s.Partitions))
				}
				if st := s.Partitions[1]; st.Epoch != 8 || !slices.Equal(st.Replicas, []int32{1}) {
					t.Errorf("partition 1 is %+v; want epoch 8, above the 7 that is held", st)
				}
			}
		})
	}
}

// A cluster's brokers hold a topic's partitions; each rebuilds its part, in any
// order and more than once. Every held partition then has its holder at an
// epoch above what was held, the others are gaps, nothing is placed anew.
func TestRebuildOfAllGivesEveryPartitionItsHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := int32(rapid.IntRange(1, 150).Draw(t, "partitions"))
		brokers := int32(rapid.IntRange(1, 4).Draw(t, "brokers"))
		holder := map[int32]int32{}
		groups := map[int32]*heldTopic{}
		for p := range count {
			id := int32(rapid.IntRange(0, int(brokers)).Draw(t, "holder")) // 0: lost
			if id == 0 {
				continue
			}
			holder[p] = id
			if groups[id] == nil {
				groups[id] = &heldTopic{topic: "a", id: mustUUID(uuidA)}
			}
			// A folder may not have heard yet that the topic grew.
			known := max(p+1, int32(rapid.IntRange(int(p+1), int(count)).Draw(t, "known")))
			groups[id].parts = append(groups[id].parts, broker.Held{Topic: "a", ID: mustUUID(uuidA), Partition: p, Count: known, LeaderEpoch: p % 7})
		}
		var order []int32
		for id := range groups {
			order = append(order, id)
		}
		slices.Sort(order)
		order = rapid.Permutation(append(order, order...)).Draw(t, "order")

		s := stored{shards: map[int]facts.Shard{}}
		version := uint64(0)
		seen := map[int32]bool{}
		for _, id := range order {
			m := merge(id, *groups[id], s, time.Unix(int64(version), 0))
			if len(m.conflicts) > 0 {
				t.Fatalf("conflicts: %v", m.conflicts)
			}
			if seen[id] && len(m.written) > 0 {
				t.Fatalf("broker %d wrote %v the second time", id, m.written)
			}
			seen[id] = true
			version++
			for n, next := range m.shards {
				for i, st := range s.shards[n].Partitions {
					if !facts.Hole(st) && fmt.Sprint(st) != fmt.Sprint(next.Partitions[i]) {
						t.Fatalf("partition %d of shard %d was %+v and became %+v", i, n, st, next.Partitions[i])
					}
				}
				s.shards[n] = facts.Shard{Shard: next, Version: version}
			}
			if m.topic != nil {
				s.topic = &facts.Topic{Topic: *m.topic, Version: version}
			}
		}
		if len(holder) == 0 {
			return
		}
		f := facts.Empty()
		f.Shards[uuidA] = s.shards
		for p := range s.topic.Partitions {
			st, listed := f.State(facts.Part{UUID: uuidA, Partition: p})
			if !listed {
				t.Fatalf("partition %d of %d is not listed: the controller would place it", p, s.topic.Partitions)
			}
			id, held := holder[p]
			if held != !facts.Hole(st) {
				t.Fatalf("partition %d is %+v; held %v", p, st, held)
			}
			if held && (!slices.Equal(st.Replicas, []int32{id}) || st.Epoch <= p%7) {
				t.Fatalf("partition %d is %+v; held by %d at epoch %d", p, st, id, p%7)
			}
		}
		for p := range holder {
			if p >= s.topic.Partitions {
				t.Fatalf("partition %d is held, but the topic has %d", p, s.topic.Partitions)
			}
		}
	})
}

func TestGroupHeldLeavesOutANameWithTwoTopics(t *testing.T) {
	groups, conflicts := groupHeld([]broker.Held{
		{Topic: "a", ID: mustUUID(uuidA), Partition: 1}, {Topic: "a", ID: mustUUID(uuidB), Partition: 0},
		{Topic: "b", ID: mustUUID(uuidB), Partition: 5}, {Topic: "b", ID: mustUUID(uuidB), Partition: 2},
	})
	if len(groups) != 1 || groups[0].topic != "b" || groups[0].parts[0].Partition != 2 {
		t.Errorf("groups %+v", groups)
	}
	if len(conflicts) != 1 || !strings.Contains(conflicts[0], `"a"`) {
		t.Errorf("conflicts %q", conflicts)
	}
}
