package agent

import (
	"fmt"
	"slices"
	"testing"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// A host falls silent: the controller ends its session long before the
// session's own end, and only its partitions are without a leader.
func TestASilentBrokersPartitionsHaveNoLeader(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two", "three")
	one, three := hosts[0], hosts[2]
	one.create("t", 3)
	three.kill()
	one.await("its partition without a leader", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 2 -1]" })
	hosts[1].await("the same elsewhere", func() bool { return fmt.Sprint(hosts[1].leaders("t")) == "[1 2 -1]" })
	f, _ := one.mirror.Latest()
	if st := f.Shards[f.Topics["t"].UUID][0].Partitions[2]; st.Leader != 3 || st.Replicas[0] != 3 {
		t.Errorf("the state of the dead broker's partition became %+v; want it as it was", st)
	}
	if n := len(one.host.leading()); n != 1 {
		t.Errorf("broker 1 leads %d partitions; want its own only", n)
	}
	// New topics go to those who are there.
	if v := one.create("u", 4); contains(leadersOf(v), 3) {
		t.Errorf("a topic was placed on a dead broker: %v", leadersOf(v))
	}
	three.start(c)
	three.ready()
	one.await("all back", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 2 3]" })
}

// The controller falls silent: a stand-by ends its session, and another is
// elected. Nobody watched over the controller, so until its session ended by
// itself no topic could be created and its partitions kept their leader.
func TestASilentControllerIsReplaced(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two", "three")
	hosts[0].create("t", 3)
	first := hosts[0].View().Controller
	hosts[first-1].kill()
	others := slices.Delete(slices.Clone(hosts), int(first-1), int(first))
	for _, h := range others {
		h.await("another controller, and no leader where the dead one led", func() bool {
			v := h.View()
			return v.Controller > 0 && v.Controller != first && v.Topics["t"].Partitions[first-1].Leader == -1
		})
	}
	if v := others[0].create("u", 2); contains(leadersOf(v), first) {
		t.Errorf("a topic was placed on the dead controller: %v", leadersOf(v))
	}
}

func TestWhoJudgesWhom(t *testing.T) {
	f := facts.Empty()
	f.Cluster, f.Controller = facts.Same, 3
	for id := range int32(6) {
		f.Brokers[id] = discovery.Broker{ID: id, Port: id, Session: fmt.Sprint("s", id)} // broker 0 is starting
	}
	var standing []int32
	for id := range int32(6) {
		if standsBy(f, id) {
			standing = append(standing, id)
		}
	}
	if fmt.Sprint(standing) != "[1 2]" {
		t.Errorf("stand-bys of controller 3: %v", standing)
	}
	ids := func(list []discovery.Broker) string {
		var ids []int32
		for _, b := range list {
			ids = append(ids, b.ID)
		}
		slices.Sort(ids)
		return fmt.Sprint(ids)
	}
	if got := ids(judges(f, 3, true)); got != "[1 2 4 5]" {
		t.Errorf("the controller judges %s", got)
	}
	if got := ids(judges(f, 1, false)); got != "[3]" {
		t.Errorf("a stand-by judges %s", got)
	}
	f.Controller = -1
	if standsBy(f, 1) || len(judges(f, 1, false)) != 0 {
		t.Error("there is nobody to judge without a controller")
	}
	f.Controller, f.Cluster = 3, facts.Missing
	if standsBy(f, 1) {
		t.Error("nobody is judged by what a wiped store said")
	}
}

func leadersOf(v *broker.TopicView) []int32 {
	var list []int32
	for _, p := range v.Partitions {
		list = append(list, p.Leader)
	}
	return list
}
