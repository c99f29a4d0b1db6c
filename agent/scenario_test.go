package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

func TestARestartTakesItsPartitionsAtAHigherEpoch(t *testing.T) {
	for name, end := range map[string]func(*storageHost){"stopped": (*storageHost).stop, "killed": (*storageHost).kill} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			hosts := c.started("one", "two")
			one, two := hosts[0], hosts[1]
			two.create("t", 4)
			two.await("two leads half", func() bool { return len(two.host.leading()) == 2 })
			before := two.host.leading()

			end(two)
			if name == "stopped" {
				if n := len(c.keys(discovery.KeyBroker(2))); n != 0 {
					t.Error("a clean stop left the broker's key")
				}
				two.disk.mu.Lock()
				if !two.disk.clean {
					t.Error("a clean stop did not close the broker")
				}
				two.disk.mu.Unlock()
				one.await("half of the leaders gone", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 -1 1 -1]" })
			}
			two.start(c)
			two.ready()
			if two.ID() != 2 {
				t.Fatalf("the folder's broker is %d after a restart; want 2", two.ID())
			}
			after := two.host.leading()
			if len(after) != len(before) {
				t.Fatalf("leads %d partitions after the restart; want %d", len(after), len(before))
			}
			for part, l := range before {
				if after[part].Epoch <= l.Epoch {
					t.Errorf("partition %d is led at epoch %d after %d", part.Partition, after[part].Epoch, l.Epoch)
				}
			}
			one.await("all leaders back", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 2 1 2]" })
			two.await("and in its own view", func() bool { return fmt.Sprint(two.leaders("t")) == "[1 2 1 2]" })
		})
	}
}

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

func TestATopicDeletedWhileABrokerIsDown(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	one.create("t", 4)
	two.await("its part on disk", func() bool { return len(two.disk.held()) == 2 })
	two.stop()
	one.delete("t")
	if one.View().Topics["t"] != nil {
		t.Error("a topic that is being deleted is in the view")
	}
	one.await("its own files gone", func() bool { return len(one.disk.held()) == 0 })
	if n := len(two.disk.held()); n != 2 {
		t.Fatalf("the broker that is down holds %d partitions; want 2", n)
	}
	ctx, cancel := shortly()
	defer cancel()
	_, err := one.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: 1, Replication: 1})
	if !errors.Is(err, broker.ErrTopicExists) || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("creating it again gave %v", err)
	}
	if err := one.DeleteTopic(ctx, "t"); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("deleting it again gave %v", err)
	}
	two.start(c)
	two.ready()
	two.await("its files gone", func() bool { return len(two.disk.held()) == 0 })
	one.await("the keys gone", func() bool {
		return len(c.keys(discovery.PrefixTopics)) == 0 && len(c.keys(discovery.PrefixState)) == 0
	})
	one.create("t", 1)
}

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

func copyIdentity(t *testing.T, from, to *storageHost, change func(string) string) {
	t.Helper()
	b, err := os.ReadFile(from.dir + "/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to.dir+"/identity.json", []byte(change(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACopiedFolderIsRefused(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 1)

	// The copy of a folder whose broker is alive.
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	if err := same.wait(); !errors.Is(err, errCopy) || !strings.Contains(err.Error(), "one of the two folders is a copy") {
		t.Errorf("a copy with the same nonce ended with %v", err)
	}

	// Another folder that claims the same id.
	other := c.host("other")
	copyIdentity(t, one, other, func(s string) string { return strings.ReplaceAll(s, one.nonce(), "another-nonce") })
	other.start(c)
	if err := other.wait(); !errors.Is(err, discovery.ErrIDTaken) {
		t.Errorf("another folder with the id ended with %v", err)
	}
	if len(same.host.leading())+len(other.host.leading()) != 0 {
		t.Error("a refused broker led something")
	}
	if fmt.Sprint(one.leaders("t")) != "[1]" || one.liveSession() == nil {
		t.Error("the true broker was disturbed")
	}

	// The same folder, locked.
	twin := c.host("twin")
	twin.cfg.DataDir = one.dir
	twin.start(c)
	if err := twin.wait(); err == nil || !strings.Contains(err.Error(), "is in use by process") {
		t.Errorf("a second process on the folder ended with %v", err)
	}
}

// A copy that was started while the first could not be seen takes the id; the
// first, when it sees that, ends rather than serve the same partitions twice.
func TestTheFirstEndsWhenACopyTookItsID(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 1)
	one.client.SetCut(true)
	lock := c.keys(discovery.KeyBroker(1))
	if err := c.store.DestroySession(context.Background(), lock[0].Session); err != nil {
		t.Fatal(err)
	}
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	same.ready()
	one.client.SetCut(false)
	if err := one.wait(); !errors.Is(err, errCopy) {
		t.Errorf("the first ended with %v", err)
	}
}

func TestAnIDThatIsNotTheFolders(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.stop()
	one.cfg.ID = 7
	one.start(c)
	if err := one.wait(); err == nil || !strings.Contains(err.Error(), "is that of broker 1") {
		t.Errorf("got %v", err)
	}
	two := c.host("two")
	two.cfg.ID = 5
	two.start(c)
	two.ready()
	if two.ID() != 5 {
		t.Errorf("id %d; want the configured 5", two.ID())
	}
}

// An id given as a flag was not kept in the folder: a later start without it
// chose another id and left the partitions to a broker that there was no more,
// and then the right id was refused.
func TestAConfiguredIDIsKept(t *testing.T) {
	c := newTestCluster(t)
	one := c.host("one")
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	one.create("t", 2)
	one.stop()
	one.cfg.ID = 0
	one.start(c)
	one.ready()
	if got := fmt.Sprint(one.leaders("t")); one.ID() != 7 || got != "[7 7]" || len(one.Alarms()) != 0 {
		t.Errorf("started without its id the folder is broker %d, leaders %s, alarms %q", one.ID(), got, one.Alarms())
	}

	// A copy of it while it runs is refused, though nobody gives it an id.
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	if err := same.wait(); !errors.Is(err, errCopy) {
		t.Errorf("the copy of a running folder ended with %v", err)
	}

	// An id that is taken is not kept: the folder is free to be another's.
	other := c.host("other")
	other.cfg.ID = 7
	other.start(c)
	if err := other.wait(); !errors.Is(err, discovery.ErrIDTaken) {
		t.Errorf("another folder with the id ended with %v", err)
	}
	other.cfg.ID = 8
	other.start(c)
	other.ready()
}

// A folder with partitions that has lost its id is not given a new one, as it
// was: the error says which ids are meant.
func TestPartitionsWithoutAnID(t *testing.T) {
	c := newTestCluster(t)
	one := c.host("one")
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	one.create("t", 2)
	one.stop()
	copyIdentity(t, one, one, func(s string) string { return strings.Replace(s, `"id": "7"`, `"id": ""`, 1) })
	one.cfg.ID = 0
	one.start(c)
	err := one.wait()
	if !errors.Is(err, errNoID) || !strings.Contains(err.Error(), "2 partitions") || !strings.Contains(err.Error(), "[7]") || !strings.Contains(err.Error(), "--id") {
		t.Fatalf("a folder without its id ended with %v", err)
	}
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	if got := fmt.Sprint(one.leaders("t")); got != "[7 7]" {
		t.Errorf("with its id again, leaders are %s", got)
	}
}

// An id is never given again, though its broker is down and holds nothing.
func TestAnIDIsReserved(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.stop()
	two := c.host("two")
	two.start(c)
	two.ready()
	if two.ID() != 2 {
		t.Errorf("the second folder has id %d; want 2", two.ID())
	}
}
