package agent

import (
	"cmp"
	"maps"
	"slices"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// situation is all that the decision what to do depends on.
type situation struct {
	self    int32
	session string // "": not registered at present
	// alone: the store could not be read for the whole start wait.
	alone bool
	facts *facts.Facts
	led   map[facts.Part]standing
	held  map[facts.Part]broker.Held
}

// todo is what brings the broker and the store in line. The lists are sorted.
type todo struct {
	take   []broker.Lead // raise the epoch in the store, then lead; Epoch is yet to be set
	lead   []broker.Lead // lead again as described here, at the epoch agreed before
	serve  []broker.Lead // lead at the epoch of the folder, without the store
	resign []facts.Part  // stop serving: the store gives it to another
	remove []facts.Part  // delete the files, if any, and take ourselves out of the replicas

	unknown   []facts.Part // on disk, but the store has no key for them
	elsewhere []facts.Part // on disk, but the store gives them to others
	beyond    int          // partitions with several replicas, which this version cannot serve
}

// decide compares what the store says with what the broker does. It is pure.
//
// Files are listed for removal only when their topic's UUID is marked deleting
// in a store of our own cluster. Without the store, or while its cluster-id is
// missing, what the folder holds is served at the epoch that it was last led
// at: with one replica nobody else can have been given the lead, so that is
// safe; the epoch is raised when the store is back. In a store of another
// cluster nothing is taken, and what is led goes on.
func decide(s situation) todo {
	var t todo
	switch s.facts.Cluster {
	case facts.Same:
		t.byStore(s)
	case facts.Missing:
		t.byFolder(s)
	case facts.Unread:
		if s.alone {
			t.byFolder(s)
		}
	case facts.Foreign:
	}
	t.sort()
	return t
}

// byStore follows the store of our own cluster.
func (t *todo) byStore(s situation) {
	known := s.facts.ByUUID()
	for uuid, topic := range known {
		if topic.Phase == discovery.PhaseDeleting {
			t.leave(s, topic)
			continue
		}
		id, err := broker.ParseUUID(uuid)
		if err != nil {
			continue
		}
		for number, shard := range s.facts.Shards[uuid] {
			for slot, st := range shard.Partitions {
				t.partition(s, topic, id, int32(number*discovery.ShardPartitions+slot), st)
			}
		}
	}
	for part, h := range s.held {
		topic, ok := known[part.UUID]
		if !ok {
			t.unknown = append(t.unknown, part)
			continue
		}
		if topic.Phase == discovery.PhaseDeleting {
			continue // leave has it
		}
		st, listed := s.facts.State(part)
		switch {
		case !listed:
			t.unknown = append(t.unknown, part)
		case facts.Hole(st):
			// The topic was rebuilt by another agent that did not know where this
			// partition is: it is served until a rebuild here fills the gap.
			t.unknown = append(t.unknown, part)
			t.serveHeld(s, part, h)
		case !slices.Contains(st.Replicas, s.self):
			t.elsewhere = append(t.elsewhere, part)
		}
	}
}

// partition decides one partition of a topic that is wanted.
func (t *todo) partition(s situation, topic facts.Topic, id broker.UUID, number int32, st discovery.PartitionState) {
	part := facts.Part{UUID: topic.UUID, Partition: number}
	now, led := s.led[part]
	switch {
	case facts.Hole(st):
	case !slices.Contains(st.Replicas, s.self):
		if led {
			t.resign = append(t.resign, part)
		}
	case len(st.Replicas) > 1:
		t.beyond++
	default:
		want := broker.Lead{Topic: topic.Name, ID: id, Partition: number, Count: topic.Partitions,
			Replicas: st.Replicas, ISR: st.Replicas, Configs: topic.Configs}
		agreed := led && now.session != "" && now.session == s.session && now.lead.Epoch >= st.Epoch
		switch {
		case !agreed && s.session == "":
			// Not registered: what is led goes on, the epoch is raised later.
		case !agreed:
			t.take = append(t.take, want)
		case now.failed || !sameDescription(now.lead, want):
			want.Epoch = now.lead.Epoch
			t.lead = append(t.lead, want)
		}
	}
}

// leave removes what this broker has of a topic that is being deleted.
func (t *todo) leave(s situation, topic facts.Topic) {
	parts := map[facts.Part]bool{}
	for part := range s.held {
		if part.UUID == topic.UUID {
			parts[part] = true
		}
	}
	for number, shard := range s.facts.Shards[topic.UUID] {
		for slot, st := range shard.Partitions {
			if slices.Contains(st.Replicas, s.self) {
				parts[facts.Part{UUID: topic.UUID, Partition: int32(number*discovery.ShardPartitions + slot)}] = true
			}
		}
	}
	t.remove = slices.AppendSeq(t.remove, maps.Keys(parts))
}

// byFolder serves what the folder holds, unless the last that was read of the
// store gave it to another or marked it deleting.
func (t *todo) byFolder(s situation) {
	known := s.facts.ByUUID()
	for part, h := range s.held {
		if st, listed := s.facts.State(part); listed && !facts.Hole(st) && !slices.Equal(st.Replicas, []int32{s.self}) {
			continue
		}
		if known[part.UUID].Phase == discovery.PhaseDeleting {
			continue
		}
		t.serveHeld(s, part, h)
	}
}

func (t *todo) serveHeld(s situation, part facts.Part, h broker.Held) {
	if now, led := s.led[part]; led && !now.failed {
		return
	}
	self := []int32{s.self}
	t.serve = append(t.serve, broker.Lead{Topic: h.Topic, ID: h.ID, Partition: h.Partition, Count: h.Count,
		Epoch: h.LeaderEpoch, Replicas: self, ISR: self, Configs: h.Configs})
}

func sameDescription(a, b broker.Lead) bool {
	return a.Count == b.Count && slices.Equal(a.Replicas, b.Replicas) && maps.Equal(a.Configs, b.Configs)
}

func (t *todo) sort() {
	byLead := func(a, b broker.Lead) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID.String(), b.ID.String()), cmp.Compare(a.Partition, b.Partition))
	}
	byPart := func(a, b facts.Part) int {
		return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Partition, b.Partition))
	}
	for _, l := range [][]broker.Lead{t.take, t.lead, t.serve} {
		slices.SortFunc(l, byLead)
	}
	for _, l := range [][]facts.Part{t.resign, t.remove, t.unknown, t.elsewhere} {
		slices.SortFunc(l, byPart)
	}
}
