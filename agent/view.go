package agent

import (
	"cmp"
	"maps"
	"slices"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// standing is what this agent's broker leads now.
type standing struct {
	lead    broker.Lead
	session string // under which its epoch was agreed; "": served as the folder says
	failed  bool   // the broker refused: to be tried again
}

// viewInput is what a view is made of.
type viewInput struct {
	self      broker.Node // Port 0: not serving yet
	clusterID string
	facts     *facts.Facts
	led       map[facts.Part]standing
	last      *broker.View
}

// buildView makes the broker's view of the cluster. A partition whose leader
// is not registered has leader -1; our own count only once they are served.
// What the broker leads stays visible though the store does not mention it (it
// was wiped, and is not rebuilt yet), with what was known last of its topic.
func buildView(in viewInput) *broker.View {
	v := &broker.View{ClusterID: in.clusterID, Controller: -1, Topics: map[string]*broker.TopicView{}, Partial: in.facts.Cluster != facts.Same}
	for _, id := range in.facts.ServingIDs() {
		if b := in.facts.Brokers[id]; id != in.self.ID {
			v.Brokers = append(v.Brokers, broker.Node{ID: b.ID, Host: b.Host, Port: b.Port, Rack: b.Rack})
		}
	}
	if in.self.Port != 0 {
		v.Brokers = append(v.Brokers, in.self)
	}
	slices.SortFunc(v.Brokers, func(a, b broker.Node) int { return cmp.Compare(a.ID, b.ID) })
	if _, alive := v.Node(in.facts.Controller); alive {
		v.Controller = in.facts.Controller
	}
	for name, t := range in.facts.Topics {
		if t.Phase == discovery.PhaseDeleting {
			continue
		}
		id, err := broker.ParseUUID(t.UUID)
		if err != nil {
			continue
		}
		v.Topics[name] = topicView(in, v, t, id)
	}
	addUnlisted(in, v)
	return v
}

func topicView(in viewInput, v *broker.View, t facts.Topic, id broker.UUID) *broker.TopicView {
	tv := &broker.TopicView{Name: t.Name, ID: id, Configs: t.Configs, Partitions: make([]broker.PartitionView, t.Partitions)}
	var last *broker.TopicView
	if in.last != nil {
		if l := in.last.Topics[t.Name]; l != nil && l.ID == id {
			last = l
		}
	}
	for i := range tv.Partitions {
		part := facts.Part{UUID: t.UUID, Partition: int32(i)}
		pv := broker.PartitionView{Leader: -1}
		st, listed := in.facts.State(part)
		switch {
		case listed && !facts.Hole(st):
			pv = broker.PartitionView{Leader: st.Leader, Epoch: st.Epoch, Replicas: st.Replicas, ISR: st.ISR}
		case last != nil && i < len(last.Partitions):
			pv = recall(last.Partitions[i]) // its holder has not rebuilt its part yet
		}
		tv.Partitions[i] = settle(in, v, part, pv)
	}
	return tv
}

// recall is a partition as the last view had it, with the leader that it has
// when it is up.
func recall(pv broker.PartitionView) broker.PartitionView {
	if pv.Leader == -1 && len(pv.Replicas) == 1 {
		pv.Leader = pv.Replicas[0]
	}
	return pv
}

// settle decides the leader: we lead what our broker serves and nothing else,
// and another leads while it is registered.
func settle(in viewInput, v *broker.View, part facts.Part, pv broker.PartitionView) broker.PartitionView {
	if s, ok := in.led[part]; ok && !s.failed && in.self.Port != 0 {
		return broker.PartitionView{Leader: in.self.ID, Epoch: s.lead.Epoch, Replicas: s.lead.Replicas, ISR: s.lead.ISR}
	}
	if _, alive := v.Node(pv.Leader); !alive || pv.Leader == in.self.ID {
		pv.Leader = -1
	}
	return pv
}

// addUnlisted adds the topics that the broker serves though the store has no
// key for them.
func addUnlisted(in viewInput, v *broker.View) {
	known := in.facts.ByUUID()
	for part, s := range in.led {
		if _, ok := known[part.UUID]; ok {
			continue
		}
		tv := v.Topics[s.lead.Topic]
		switch {
		case tv == nil:
			tv = &broker.TopicView{Name: s.lead.Topic, ID: s.lead.ID, Configs: maps.Clone(s.lead.Configs)}
			if in.last != nil {
				if l := in.last.Topics[s.lead.Topic]; l != nil && l.ID == s.lead.ID {
					tv.Partitions = slices.Clone(l.Partitions)
				}
			}
			for i := range tv.Partitions {
				tv.Partitions[i] = settle(in, v, facts.Part{UUID: part.UUID, Partition: int32(i)}, recall(tv.Partitions[i]))
			}
			v.Topics[s.lead.Topic] = tv
		case tv.ID != s.lead.ID:
			continue // the name belongs to another topic by now
		}
		for int32(len(tv.Partitions)) < max(s.lead.Count, s.lead.Partition+1) {
			tv.Partitions = append(tv.Partitions, broker.PartitionView{Leader: -1})
		}
		tv.Partitions[s.lead.Partition] = settle(in, v, part, tv.Partitions[s.lead.Partition])
	}
}
