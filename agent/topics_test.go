package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/broker"
	"sidestream/discovery"
)

func TestTopicsComeGrowAndGo(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two", "three")
	one, two := hosts[0], hosts[1]
	if one.ID() != 1 || two.ID() != 2 || hosts[2].ID() != 3 {
		t.Fatalf("ids %d %d %d", one.ID(), two.ID(), hosts[2].ID())
	}

	made := two.create("orders", 6)
	per := map[int32]int{}
	for i, p := range made.Partitions {
		per[p.Leader]++
		if p.Epoch != 1 || len(p.Replicas) != 1 || p.Replicas[0] != p.Leader {
			t.Errorf("partition %d is %+v", i, p)
		}
	}
	if per[1] != 2 || per[2] != 2 || per[3] != 2 {
		t.Errorf("leaders %v; want two partitions on each", per)
	}
	for _, h := range hosts {
		h.await("everybody sees the topic", func() bool { return h.leaders("orders") != nil && !contains(h.leaders("orders"), -1) })
		h.await("its broker leads its share", func() bool { return len(h.host.leading()) == 2 })
	}

	ctx, cancel := shortly()
	defer cancel()
	if err := one.CreatePartitions(ctx, "orders", 130); err != nil {
		t.Fatal(err)
	}
	if got := len(one.View().Topics["orders"].Partitions); got != 130 {
		t.Errorf("%d partitions; want 130", got)
	}
	for i, p := range made.Partitions {
		if now := one.View().Topics["orders"].Partitions[i]; now.Leader != p.Leader {
			t.Errorf("partition %d moved from %d to %d", i, p.Leader, now.Leader)
		}
	}
	for _, h := range hosts {
		h.await("every folder knows the new count", func() bool {
			h.disk.mu.Lock()
			defer h.disk.mu.Unlock()
			for _, p := range h.disk.parts {
				if p.Count != 130 {
					return false
				}
			}
			return true
		})
	}

	hosts[2].delete("orders")
	if len(c.keys(discovery.PrefixTopics)) != 0 || len(c.keys(discovery.PrefixState)) != 0 {
		t.Errorf("keys are left: %v %v", c.keys(discovery.PrefixTopics), c.keys(discovery.PrefixState))
	}
	for _, h := range hosts {
		if n := len(h.disk.held()); n != 0 {
			t.Errorf("%s still holds %d partitions", h.name, n)
		}
	}
	if again := one.create("orders", 3); again.ID == made.ID {
		t.Error("the new topic has the old one's id")
	}
}

func contains(list []int32, id int32) bool {
	for _, x := range list {
		if x == id {
			return true
		}
	}
	return false
}

func TestBadTopicsAreRefused(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("there", 1)
	ctx, cancel := shortly()
	defer cancel()
	for name, x := range map[string]struct {
		spec broker.TopicSpec
		want error
		says string
	}{
		"no name":             {broker.TopicSpec{Partitions: 1, Replication: 1}, broker.ErrInvalidName, "1 to 249"},
		"a slash":             {broker.TopicSpec{Name: "a/b", Partitions: 1, Replication: 1}, broker.ErrInvalidName, "a-z"},
		"no partitions":       {broker.TopicSpec{Name: "a", Replication: 1}, broker.ErrInvalidPartitions, "use 1 to 10000"},
		"too many":            {broker.TopicSpec{Name: "a", Partitions: 10001, Replication: 1}, broker.ErrInvalidPartitions, "use 1 to 10000"},
		"three replicas":      {broker.TopicSpec{Name: "a", Partitions: 1, Replication: 3}, broker.ErrInvalidReplication, "use 1"},
		"an unknown config":   {broker.TopicSpec{Name: "a", Partitions: 1, Replication: 1, Configs: map[string]string{"colour": "red"}}, broker.ErrInvalidConfig, "colour"},
		"a bad config":        {broker.TopicSpec{Name: "a", Partitions: 1, Replication: 1, Configs: map[string]string{"retention.ms": "long"}}, broker.ErrInvalidConfig, "retention.ms"},
		"there already":       {broker.TopicSpec{Name: "there", Partitions: 1, Replication: 1}, broker.ErrTopicExists, "there"},
		"assigned to nobody":  {broker.TopicSpec{Name: "a", Partitions: -1, Replication: -1, Assignment: map[int32][]int32{0: {9}}}, broker.ErrInvalidPartitions, "broker 9"},
		"assigned with a gap": {broker.TopicSpec{Name: "a", Partitions: -1, Replication: -1, Assignment: map[int32][]int32{0: {1}, 2: {1}}}, broker.ErrInvalidPartitions, "number 1"},
		"assigned to two":     {broker.TopicSpec{Name: "a", Partitions: -1, Replication: -1, Assignment: map[int32][]int32{0: {1, 2}}}, broker.ErrInvalidReplication, "name one"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := one.CreateTopic(ctx, x.spec)
			if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("got %v; want %v that says %q", err, x.want, x.says)
			}
		})
	}
	if err := one.DeleteTopic(ctx, "nowhere"); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("deleting an unknown topic gave %v", err)
	}
	if err := one.CreatePartitions(ctx, "nowhere", 3); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("growing an unknown topic gave %v", err)
	}
	for _, n := range []int32{0, 1, 10001} {
		if err := one.CreatePartitions(ctx, "there", n); !errors.Is(err, broker.ErrInvalidPartitions) {
			t.Errorf("growing to %d gave %v", n, err)
		}
	}
	if n := len(c.keys(discovery.PrefixTopics)); n != 1 {
		t.Errorf("%d topics; want only the good one", n)
	}
}

func TestValidateOnlyWritesNothing(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	v, err := one.CreateTopic(context.Background(), broker.TopicSpec{Name: "a", Partitions: -1, Replication: -1, ValidateOnly: true})
	if err != nil || len(v.Partitions) != 4 || v.Partitions[0].Leader != -1 {
		t.Errorf("got %+v, %v", v, err)
	}
	if len(c.keys(discovery.PrefixTopics)) != 0 {
		t.Error("a topic was written")
	}
}

func TestAnAssignmentIsFollowed(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	ctx, cancel := shortly()
	defer cancel()
	v, err := hosts[0].CreateTopic(ctx, broker.TopicSpec{Name: "a", Partitions: -1, Replication: -1, Assignment: map[int32][]int32{0: {2}, 1: {2}, 2: {1}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int32{2, 2, 1} {
		if v.Partitions[i].Leader != want {
			t.Errorf("partition %d is led by %d; want %d", i, v.Partitions[i].Leader, want)
		}
	}
}

// What the broker cannot lead raises an alarm, and is tried until it can.
func TestABrokerThatCannotLead(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.disk.mu.Lock()
	one.disk.refuse = true
	one.disk.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if _, err := one.CreateTopic(ctx, broker.TopicSpec{Name: "a", Partitions: 1, Replication: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v; want the deadline", err)
	}
	one.await("the alarm", func() bool { return one.hasAlarm("cannot be led") })
	one.disk.mu.Lock()
	one.disk.refuse = false
	one.disk.mu.Unlock()
	one.await("the leader", func() bool { return len(one.leaders("a")) == 1 && one.leaders("a")[0] == 1 })
	one.await("no alarm", func() bool { return len(one.Alarms()) == 0 })
}

// With the store away a broker that had no block of ids in hand refused every
// new producer, so that a sidecar that restarted could write nothing.
func TestProducerIDsWithoutTheStore(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	c.store.SetDown(true)
	given := map[int64]bool{}
	for range 1000 {
		ctx, cancel := shortly()
		first, n, err := one.NextProducerIDs(ctx)
		cancel()
		if err != nil || n != drawn || first < drawnLow || first%drawn != 0 || given[first] {
			t.Fatalf("got %d, %d, %v after %d others", first, n, err, len(given))
		}
		given[first] = true
	}
	c.store.SetDown(false)
	ctx, cancel := shortly()
	defer cancel()
	if first, n, err := one.NextProducerIDs(ctx); err != nil || n != idBlock || first >= drawnLow {
		t.Errorf("with the store back: %d, %d, %v", first, n, err)
	}
	for bits, want := range map[uint64]int64{0: 1 << 62, 1<<64 - 1: 1<<63 - 16, 1<<63 | 37: 1<<62 + 32} {
		if got := drawProducerIDs(bits); got != want {
			t.Errorf("the block of %#x begins at %d; want %d", bits, got, want)
		}
	}
}

func TestProducerIDsAreNeverGivenTwice(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	given := map[int64]bool{}
	take := func(h *storageHost) int64 {
		t.Helper()
		ctx, cancel := shortly()
		defer cancel()
		first, n, err := h.NextProducerIDs(ctx)
		if err != nil || n != idBlock {
			t.Fatalf("got %d, %d, %v", first, n, err)
		}
		if given[first] || first%idBlock != 0 {
			t.Fatalf("block %d was given before, or is askew", first)
		}
		given[first] = true
		return first
	}
	for range 5 {
		take(hosts[0])
		take(hosts[1])
	}
	c.store.LoseReplies(1)
	last := take(hosts[0])
	time.Sleep(20 * time.Millisecond) // more milliseconds than blocks were given
	c.store.Wipe()
	if after := take(hosts[1]); after <= last {
		t.Errorf("after a wipe block %d follows %d", after, last)
	}
}

// Replies get lost, commits fail: creation and deletion converge all the same.
func TestTopicsConvergeThoughRepliesAreLost(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	for i := range 4 {
		c.store.LoseReplies(i + 1)
		made := hosts[i%2].create("t", 70)
		if len(made.Partitions) != 70 {
			t.Fatalf("%d partitions", len(made.Partitions))
		}
		c.store.LoseReplies(i + 1)
		hosts[(i+1)%2].delete("t")
		hosts[0].await("all keys gone", func() bool {
			return len(c.keys(discovery.PrefixTopics)) == 0 && len(c.keys(discovery.PrefixState)) == 0
		})
	}
	for _, h := range hosts {
		if n := len(h.disk.held()); n != 0 {
			t.Errorf("%s still holds %d partitions", h.name, n)
		}
	}
}

// The controller stops at every step of placing and of deleting a topic of
// many shards; its successor goes on from there.
func TestANewControllerGoesOn(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	one.await("one is controller", func() bool { return one.View().Controller == 1 })
	one.create("first", 2)

	two.client.SetCut(true) // it sees nothing of what follows until the controller is gone
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	_, _ = one.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: 4200, Replication: 1})
	cancel()
	one.kill()
	two.client.SetCut(false)
	// The dead controller's session ends by suspicion only once another is
	// controller; here an operator ends it.
	lock := c.keys(discovery.KeyController)
	if len(lock) == 1 {
		if err := c.store.DestroySession(context.Background(), lock[0].Session); err != nil {
			t.Fatal(err)
		}
	}
	two.await("a new controller", func() bool { return two.View().Controller == 2 })
	if len(c.keys(discovery.KeyTopic("t"))) == 0 {
		return // the commit had not been made
	}
	two.await("everything placed", func() bool {
		f, _ := two.mirror.Latest()
		n := 0
		for _, s := range f.Shards[f.Topics["t"].UUID] {
			n += len(s.Partitions)
		}
		return n == 4200 && f.Topics["t"].Phase == discovery.PhaseLive
	})
	one.start(c)
	one.ready()
	two.delete("t")
	two.await("keys gone", func() bool { return len(c.keys(discovery.KeyTopic("t"))) == 0 })
}

// dying is a store that goes away with the next commit of a topic: applied or
// not, nobody hears of it.
type dying struct {
	discovery.Store
	memory *discovery.Memory
	armed  atomic.Bool
}

func (d *dying) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	if strings.HasPrefix(ops[0].Key, discovery.PrefixTopics) && d.armed.CompareAndSwap(true, false) {
		_, _ = d.Store.Commit(ctx, ops...)
		d.memory.SetDown(true)
		return nil, fmt.Errorf("made up: %w", discovery.ErrUnknownOutcome)
	}
	return d.Store.Commit(ctx, ops...)
}

// What a client is told while the store is away. It was "request timed out",
// which says that nobody knows whether the topic was made, with the words of a
// connection that is not the client's.
func TestATopicWithoutTheStore(t *testing.T) {
	c := newTestCluster(t)
	one := c.host("one")
	var store *dying
	one.wrap = func(s discovery.Store) discovery.Store {
		store = &dying{Store: s, memory: c.store}
		return store
	}
	one.start(c)
	one.ready()
	one.create("t", 1)
	ctx, cancel := shortly()
	defer cancel()
	spec := broker.TopicSpec{Name: "new", Partitions: 1, Replication: 1}
	tries := map[string]func() error{
		"create": func() error { _, err := one.CreateTopic(ctx, spec); return err },
		"delete": func() error { return one.DeleteTopic(ctx, "t") },
		"grow":   func() error { return one.CreatePartitions(ctx, "t", 3) },
		"alter": func() error {
			return one.AlterTopic(ctx, "t", func(map[string]string) (map[string]string, error) {
				return map[string]string{"retention.ms": "1000"}, nil
			})
		},
	}
	c.store.SetDown(true)
	for what, try := range tries {
		err := try()
		if !errors.Is(err, broker.ErrUnavailable) || errors.Is(err, broker.ErrUnknownOutcome) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.store.SetDown(false)
	one.await("the store's return", func() bool { return len(one.Alarms()) == 0 && one.liveSession() != nil })
	if len(c.keys(discovery.KeyTopic("new"))) != 0 {
		t.Error("the topic was made after all")
	}
	// In the middle of it nobody knows, and must not claim to.
	for what, try := range tries {
		if what == "delete" {
			continue // last
		}
		store.armed.Store(true)
		if err := try(); !errors.Is(err, broker.ErrUnknownOutcome) || errors.Is(err, broker.ErrUnavailable) {
			t.Errorf("%s in mid-air: %v", what, err)
		}
		c.store.SetDown(false)
	}
	store.armed.Store(true)
	if err := tries["delete"](); !errors.Is(err, broker.ErrUnknownOutcome) {
		t.Errorf("delete in mid-air: %v", err)
	}
	c.store.SetDown(false)
}
