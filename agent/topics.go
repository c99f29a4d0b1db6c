package agent

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"sidestream/broker"
)

// TopicList is the answer to GET /topics: what this agent knows of the topics,
// also while brokers or the coordination store are away.
type TopicList struct {
	ID     int32         `json:"id"`             // of the broker that answers
	AsOf   time.Time     `json:"as_of,omitzero"` // as in Outage
	Nodes  []NodeStatus  `json:"brokers"`
	Topics []TopicStatus `json:"topics"`
	Outage Outage        `json:"outage"`
}

// NodeStatus is a broker that serves.
type NodeStatus struct {
	ID      int32  `json:"id"`
	Address string `json:"address"`
	Rack    string `json:"rack,omitempty"`
}

// TopicStatus is a topic with its partitions by number.
type TopicStatus struct {
	Topic      string          `json:"topic"`
	UUID       string          `json:"uuid"`
	Partitions []TopicPartView `json:"partitions"`
}

// TopicPartView is one partition. What only its leader knows is there where that
// is the broker that answers.
type TopicPartView struct {
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"` // -1: none, or one that is silent
	Epoch     int32   `json:"epoch"`
	Replicas  []int32 `json:"replicas"`
	ISR       []int32 `json:"isr"`
	Start     *int64  `json:"start,omitempty"`
	End       *int64  `json:"end,omitempty"`
	Bytes     *int64  `json:"bytes,omitempty"` // of its log on the disk
}

// Topics describes all topics, or the one of that name, sorted by name.
func (a *Agent) Topics(only string) TopicList {
	view, now := a.View(), time.Now()
	list := TopicList{ID: a.ID(), AsOf: a.storeSeen(now), Nodes: []NodeStatus{}, Topics: []TopicStatus{}, Outage: a.Outage()}
	for _, n := range view.Brokers {
		list.Nodes = append(list.Nodes, NodeStatus{ID: n.ID, Address: net.JoinHostPort(n.Host, strconv.Itoa(int(n.Port))), Rack: n.Rack})
	}
	f, _ := a.mirror.Latest()
	silent := a.silent(f, now)
	var held map[heldPart]broker.Held
	if b := a.theBroker(); b != nil {
		held = map[heldPart]broker.Held{}
		for _, h := range b.Held() {
			held[heldPart{h.ID, h.Partition}] = h
		}
	}
	for _, t := range slices.SortedFunc(maps.Values(view.Topics), func(a, b *broker.TopicView) int { return cmp.Compare(a.Name, b.Name) }) {
		if only != "" && t.Name != only {
			continue
		}
		list.Topics = append(list.Topics, topicStatus(t, list.ID, silent, held))
	}
	return list
}

type heldPart struct {
	id        broker.UUID
	partition int32
}

func topicStatus(t *broker.TopicView, self int32, silent map[int32]bool, held map[heldPart]broker.Held) TopicStatus {
	s := TopicStatus{Topic: t.Name, UUID: t.ID.String(), Partitions: make([]TopicPartView, 0, len(t.Partitions))}
	for i, p := range t.Partitions {
		v := TopicPartView{Partition: int32(i), Leader: p.Leader, Epoch: p.Epoch, Replicas: append([]int32{}, p.Replicas...), ISR: append([]int32{}, p.ISR...)}
		if silent[p.Leader] {
			v.Leader = -1
		}
		if h, ok := held[heldPart{t.ID, v.Partition}]; ok && p.Leader == self {
			v.Start, v.End, v.Bytes = &h.Start, &h.End, &h.Bytes
		}
		s.Partitions = append(s.Partitions, v)
	}
	return s
}
