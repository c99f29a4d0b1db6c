package agent

import (
	"testing"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

func register(f *facts.Facts, ids ...int32) *facts.Facts {
	for _, id := range ids {
		f.Brokers[id] = discovery.Broker{ID: id, Host: "host", Port: 9000 + id, Rack: "r"}
	}
	return f
}

func TestBuildView(t *testing.T) {
	self := broker.Node{ID: 1, Host: "me", Port: 9001}
	a0 := facts.Part{UUID: uuidA, Partition: 0}
	lead := broker.Lead{Topic: "a", ID: mustUUID(uuidA), Count: 2, Epoch: 6, Replicas: []int32{1}, ISR: []int32{1}}
	leading := map[facts.Part]standing{a0: {lead: lead, session: "s"}}
	known := func(leader int32, replicas ...int32) *broker.View {
		return &broker.View{Topics: map[string]*broker.TopicView{"a": {Name: "a", ID: mustUUID(uuidA), Partitions: []broker.PartitionView{
			{Leader: 1, Epoch: 6, Replicas: []int32{1}}, {Leader: leader, Epoch: 2, Replicas: replicas}}}}}
	}
	leaders := func(t *broker.TopicView) []int32 {
		if t == nil {
			return nil
		}
		list := []int32{}
		for _, p := range t.Partitions {
			list = append(list, p.Leader)
		}
		return list
	}
	for name, c := range map[string]struct {
		in   viewInput
		want []int32 // leaders of topic a; nil: not there
	}{
		"leaders that are registered": {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), on(2, 3)), 1, 2), led: leading}, []int32{1, 2}},
		"a leader that is not":        {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), on(2, 3)), 1), led: leading}, []int32{1, -1}},
		"own, not served yet":         {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), on(2, 3)), 1, 2)}, []int32{-1, 2}},
		"own, though not registered":  {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), on(2, 3)), 2), led: leading}, []int32{1, 2}},
		"own, but the broker refuses": {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5)), 1), led: map[facts.Part]standing{a0: {lead: lead, failed: true}}}, []int32{-1}},
		"placed, not taken":           {viewInput{facts: register(picture(discovery.PhaseLive, discovery.PartitionState{Replicas: []int32{2}, Leader: -1}), 1, 2)}, []int32{-1}},
		"deleting":                    {viewInput{facts: register(picture(discovery.PhaseDeleting, on(1, 5)), 1), led: leading}, nil},
		"unknown, but led":            {viewInput{facts: register(facts.Empty(), 1), led: leading}, []int32{1, -1}},
		"unknown, known before":       {viewInput{facts: register(facts.Empty(), 1, 2), led: leading, last: known(2, 2)}, []int32{1, 2}},
		"unknown, its leader away":    {viewInput{facts: register(facts.Empty(), 1), led: leading, last: known(2, 2)}, []int32{1, -1}},
		"unknown, its leader back":    {viewInput{facts: register(facts.Empty(), 1, 2), led: leading, last: known(-1, 2)}, []int32{1, 2}},
		"a gap, known before":         {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), hole), 1, 2), led: leading, last: known(2, 2)}, []int32{1, 2}},
		"a gap, never known":          {viewInput{facts: register(picture(discovery.PhaseLive, on(1, 5), hole), 1, 2), led: leading}, []int32{1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.self = self
			v := buildView(c.in)
			got := leaders(v.Topics["a"])
			if len(got) != len(c.want) || (got == nil) != (c.want == nil) {
				t.Fatalf("leaders %v; want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("leaders %v; want %v", got, c.want)
				}
				if got[i] == 1 && v.Topics["a"].Partitions[i].Epoch != 6 {
					t.Errorf("own epoch is %d; want 6, at which the broker leads", v.Topics["a"].Partitions[i].Epoch)
				}
			}
			if _, ok := v.Node(1); !ok {
				t.Error("the broker is missing in its own view")
			}
		})
	}
}

func TestViewHasNoBrokerWithoutAddressAndNoAbsentController(t *testing.T) {
	f := register(facts.Empty(), 2)
	f.Brokers[3] = discovery.Broker{ID: 3}
	f.Controller = 3
	v := buildView(viewInput{self: broker.Node{ID: 1}, facts: f})
	if len(v.Brokers) != 1 || v.Brokers[0].ID != 2 || v.Controller != -1 {
		t.Errorf("brokers %+v, controller %d", v.Brokers, v.Controller)
	}
	f.Controller = 2
	if v := buildView(viewInput{self: broker.Node{ID: 1}, facts: f}); v.Controller != 2 {
		t.Errorf("controller %d; want 2", v.Controller)
	}
}

func TestViewKeepsANameForTheTopicInTheStore(t *testing.T) {
	f := register(picture(discovery.PhaseLive, on(2, 1)), 1, 2)
	old := broker.Lead{Topic: "a", ID: mustUUID(uuidB), Count: 1, Epoch: 3}
	v := buildView(viewInput{self: broker.Node{ID: 1, Host: "me", Port: 1}, facts: f,
		led: map[facts.Part]standing{{UUID: uuidB}: {lead: old, session: "s"}}})
	if v.Topics["a"].ID != mustUUID(uuidA) {
		t.Errorf("topic a is %v; want that of the store", v.Topics["a"].ID)
	}
}

// A broker that has just started must not say that topics are not there, while
// it has not read which are.
func TestViewIsPartialWhileTheStoreIsNotRead(t *testing.T) {
	for cluster, want := range map[facts.Cluster]bool{facts.Unread: true, facts.Missing: true, facts.Foreign: true, facts.Same: false} {
		f := facts.Empty()
		f.Cluster = cluster
		if got := buildView(viewInput{facts: f}).Partial; got != want {
			t.Errorf("%v: partial is %v", cluster, got)
		}
	}
}
