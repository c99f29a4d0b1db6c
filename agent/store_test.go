package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"sidestream/broker"
	"sidestream/discovery"
)

func TestAWipedStore(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	one.create("t", 4)
	one.create("u", 70)
	cluster := one.Status().ClusterID
	two.await("everything on disk", func() bool { return len(one.disk.held()) == 2+35 && len(two.disk.held()) == 2+35 })
	heldOne, heldTwo := one.disk.held(), two.disk.held()
	ledOne := len(one.host.leading())

	c.store.Wipe()
	for _, h := range hosts {
		h.await("the alarm", func() bool { return h.hasAlarm("cluster-id missing: run metadata rebuild") })
		h.await("registered again", func() bool { return len(c.keys(discovery.KeyBroker(h.ID()))) == 1 })
		h.await("the leaders as before", func() bool { return fmt.Sprint(h.leaders("t")) == "[1 2 1 2]" })
	}
	ctx, cancel := shortly()
	defer cancel()
	if _, err := one.CreateTopic(ctx, broker.TopicSpec{Name: "new", Partitions: 1, Replication: 1}); !errors.Is(err, broker.ErrUnavailable) || !strings.Contains(err.Error(), "rebuild") {
		t.Errorf("creating a topic gave %v", err)
	}
	if _, _, err := one.NextProducerIDs(ctx); err != nil {
		t.Errorf("no producer ids while wiped: %v", err)
	}

	// A newcomer must not found another cluster, nor take an id.
	three := c.host("three")
	three.start(c)
	three.await("the newcomer's alarm", func() bool { return three.hasAlarm("the store was wiped") })

	// One that restarts serves what its folder holds.
	two.stop()
	two.start(c)
	two.ready()
	two.await("served from the folder", func() bool { return len(two.host.leading()) == len(heldTwo) })
	for part, l := range two.host.leading() {
		if l.Epoch != heldTwo[part] {
			t.Errorf("%v is served at epoch %d; want the folder's %d", part, l.Epoch, heldTwo[part])
		}
	}
	if len(c.keys(discovery.KeyClusterID)) != 0 {
		t.Fatal("somebody made a cluster-id")
	}

	if _, err := one.Rebuild(ctx, discovery.NewUUID()); !errors.Is(err, ErrRebuild) {
		t.Errorf("rebuilding another cluster gave %v", err)
	}
	r, err := one.Rebuild(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if !r.ClusterIDWritten || len(r.Topics) != 2 || len(r.Partitions) != ledOne || len(r.Conflicts) != 0 {
		t.Errorf("the first rebuild says %+v", r)
	}
	// Half rebuilt: the other half goes on, and is not placed anew.
	two.await("its part is unknown", func() bool { return two.hasAlarm("unknown to the store") })
	if n := len(two.host.leading()); n != len(heldTwo) {
		t.Errorf("half rebuilt, broker 2 leads %d; want %d", n, len(heldTwo))
	}
	one.await("its part taken", func() bool { return len(one.Alarms()) == 0 })
	if got := fmt.Sprint(two.leaders("t")); got != "[1 2 1 2]" && got != "[-1 2 -1 2]" {
		t.Errorf("half rebuilt, broker 2 sees leaders %s", got)
	}
	r, err = two.Rebuild(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if r.ClusterIDWritten || len(r.Partitions) != len(heldTwo) || len(r.Conflicts) != 0 {
		t.Errorf("the second rebuild says %+v", r)
	}
	if r, err = two.Rebuild(ctx, cluster); err != nil || len(r.Partitions) != 0 || r.Unchanged != len(heldTwo) {
		t.Errorf("a third rebuild says %+v, %v", r, err)
	}
	three.ready()
	for _, h := range hosts {
		h.await("no alarm", func() bool { return len(h.Alarms()) == 0 })
		h.await("the leaders as before", func() bool { return fmt.Sprint(h.leaders("t")) == "[1 2 1 2]" })
		if h.disk.removals() != 0 {
			t.Errorf("%s removed %d partitions", h.name, h.disk.removals())
		}
	}
	for part, epoch := range heldOne {
		if l := one.host.leading()[part]; l.Epoch <= epoch {
			t.Errorf("%v is led at epoch %d after the rebuild; it was %d", part, l.Epoch, epoch)
		}
	}
	if three.ID() == 1 || three.ID() == 2 {
		t.Errorf("the newcomer took id %d", three.ID())
	}
	three.create("after", 3)
	three.delete("t")
	for _, h := range hosts {
		h.await("the deleted topic's files gone", func() bool { return !h.disk.holds("t") })
	}
}

// The keys vanish, the sessions live on, as with a recursive delete.
func TestDeletedKeys(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one := hosts[0]
	one.create("t", 2)
	held := one.disk.held()
	cluster := one.Status().ClusterID
	if _, err := c.store.Commit(context.Background(), discovery.DeletePrefix("")); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		h.await("the alarm", func() bool { return h.hasAlarm("cluster-id missing") })
		h.await("registered again", func() bool { return len(c.keys(discovery.KeyBroker(h.ID()))) == 1 })
	}
	ctx, cancel := shortly()
	defer cancel()
	for _, h := range hosts {
		if _, err := h.Rebuild(ctx, cluster); err != nil {
			t.Fatal(err)
		}
	}
	one.await("a controller", func() bool { return one.View().Controller > 0 })
	one.await("led at a higher epoch", func() bool {
		for part, epoch := range held {
			if one.host.leading()[part].Epoch <= epoch {
				return false
			}
		}
		return len(one.Alarms()) == 0
	})
	one.create("again", 2)
}

func TestAForeignStore(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 2)
	ctx := context.Background()
	set := func(id string) {
		ops := []discovery.Op{discovery.Set(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: id})),
			discovery.Set(discovery.KeyVersions("99"), discovery.Encode(discovery.Versions{Counter: uint64(time.Now().UnixNano())}))}
		if _, err := c.store.Commit(ctx, ops...); err != nil {
			t.Fatal(err)
		}
	}
	ours := one.Status().ClusterID
	set("another")
	one.await("the alarm", func() bool { return one.hasAlarm("the store belongs to cluster another") })
	// Whatever that store says, nothing is removed.
	f, _ := one.mirror.Latest()
	topic := f.Topics["t"]
	topic.Phase, topic.Writer = discovery.PhaseDeleting, "x"
	if _, err := c.store.Commit(ctx, discovery.Set(discovery.KeyTopic("t"), discovery.Encode(topic.Topic))); err != nil {
		t.Fatal(err)
	}
	one.stop()
	one.start(c)
	one.ready()
	one.await("the alarm again", func() bool { return one.hasAlarm("the store belongs to cluster another") })
	if one.disk.removals() != 0 || len(one.host.leading()) != 0 || len(c.keys(discovery.PrefixBrokers)) != 0 {
		t.Errorf("in a foreign store: removed %d, leads %v, registered %v", one.disk.removals(), one.host.leading(), c.keys(discovery.PrefixBrokers))
	}
	short, cancel := shortly()
	defer cancel()
	if _, err := one.Rebuild(short, ours); !errors.Is(err, ErrRebuild) {
		t.Errorf("a rebuild in a foreign store gave %v", err)
	}
	set(ours)
	one.await("removed now that it is our own store's word", func() bool { return one.disk.removals() == 2 })
}

func TestTheStoreAway(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	one.create("t", 4)
	two.await("all on disk", func() bool { return len(two.host.leading()) == 2 && len(one.host.leading()) == 2 })
	led := one.host.leading()
	two.stop()
	one.await("half of the leaders gone", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 -1 1 -1]" })

	c.store.SetDown(true)
	// One that starts now serves what its folder holds.
	two.start(c)
	two.ready()
	two.await("served from the folder", func() bool { return len(two.host.leading()) == 2 })
	held := two.disk.held()
	for part, l := range two.host.leading() {
		if l.Epoch != held[part] || l.Epoch != 1 {
			t.Errorf("%v is served at epoch %d; want the folder's 1", part, l.Epoch)
		}
	}
	if got := fmt.Sprint(two.leaders("t")); got != "[-1 2 -1 2]" {
		t.Errorf("on its own it sees leaders %s", got)
	}
	ctx, cancel := shortly()
	defer cancel()
	if _, err := two.CreateTopic(ctx, broker.TopicSpec{Name: "x", Partitions: 1, Replication: 1}); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("creating a topic without the store gave %v", err)
	}
	two.await("the alarm", func() bool { return two.hasAlarm("coordination store") })
	// What runs does not notice.
	if !maps.EqualFunc(led, one.host.leading(), func(a, b broker.Lead) bool { return a.Epoch == b.Epoch }) || one.host.resignations() != 0 {
		t.Errorf("the outage changed what broker 1 leads: %v", one.host.leading())
	}
	c.store.SetDown(false)
	two.await("epochs raised", func() bool {
		for _, l := range two.host.leading() {
			if l.Epoch != 2 {
				return false
			}
		}
		return len(two.Alarms()) == 0
	})
	one.await("all leaders", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 2 1 2]" })
	one.create("after", 2)
}

// The store ends the session of a broker that lives: it registers again and
// goes on, at a higher epoch.
func TestALostSession(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 1)
	old := one.liveSession().ID()
	if err := c.store.DestroySession(context.Background(), old); err != nil {
		t.Fatal(err)
	}
	one.await("a new session and epoch", func() bool {
		s := one.liveSession()
		for _, l := range one.host.leading() {
			return s != nil && s.ID() != old && l.Epoch == 2
		}
		return false
	})
	if one.host.resignations() != 0 {
		t.Error("the partition was resigned meanwhile")
	}
	one.create("after", 1)
}
