package consume

import (
	"slices"
	"strings"
	"time"

	"sidestream/discovery"
)

// Status is what the manager is doing, for people.
type Status struct {
	Groups        []GroupStatus `json:"groups"`
	BufferedBytes int64         `json:"buffered_bytes"`
	Draining      bool          `json:"draining,omitempty"`
	// CheckpointTrouble is why positions are not written to the coordination store
	// for now; absent while they are. They are kept on this host meanwhile.
	CheckpointTrouble string `json:"checkpoint_trouble,omitempty"`
}

// GroupStatus is one group that this sidecar is in.
type GroupStatus struct {
	Group      string            `json:"group"`
	Topics     []string          `json:"topics"`
	Ownership  string            `json:"ownership"` // proven, unproven, lost, or none while it is joining
	Planning   bool              `json:"planning"`
	Plan       uint64            `json:"plan"`
	Partitions []PartitionStatus `json:"partitions"`
}

// PartitionStatus is one partition that this sidecar owns, takes or releases.
type PartitionStatus struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	State      string `json:"state"`
	Generation uint64 `json:"generation"`
	SeekEpoch  uint64 `json:"seek_epoch"`
	Position   int64  `json:"position"`
	End        int64  `json:"end"` // as of the last fetch, -1 before it
	InFlight   int    `json:"in_flight"`
	Prefetched int    `json:"prefetched"`
	Bytes      int    `json:"bytes"`
	Trouble    string `json:"trouble,omitempty"`
}

// Status tells what this sidecar does in its groups; it asks nobody.
func (m *Manager) Status() any {
	now := time.Now()
	st := Status{Groups: []GroupStatus{}, BufferedBytes: m.reader.budget.held.Load(), Draining: m.isDraining(), CheckpointTrouble: m.checkpointer.Trouble()}
	gs := m.all()
	slices.SortFunc(gs, func(a, b *group) int { return strings.Compare(a.name, b.name) })
	for _, g := range gs {
		st.Groups = append(st.Groups, g.status(now))
	}
	return st
}

func (g *group) status(now time.Time) GroupStatus {
	out := GroupStatus{Group: g.name, Topics: g.topics(), Ownership: "none", Partitions: []PartitionStatus{}}
	if sess := g.session(); sess != nil {
		out.Ownership = sess.Ownership().String()
		if unproven, hold := g.proof(); unproven || hold {
			out.Ownership = discovery.Unproven.String()
		}
	}
	if a := g.assigned(); a != nil {
		out.Plan = a.Plan
	}
	g.mu.Lock()
	out.Planning = g.planning
	g.mu.Unlock()
	for _, s := range g.all() {
		for _, o := range s.list() {
			v := o.view(now)
			if v.dead != "" {
				v.trouble = "a dead letter cannot be written: " + v.dead
			}
			out.Partitions = append(out.Partitions, PartitionStatus{
				Topic: o.key.Topic, Partition: o.key.Partition, State: v.state.String(),
				Generation: v.generation, SeekEpoch: v.epoch, Position: v.position.Low, End: v.end,
				InFlight: v.inFlight, Prefetched: v.waiting, Bytes: v.bytes, Trouble: v.trouble,
			})
		}
	}
	return out
}
