package agent

import (
	"errors"
	"strings"
	"testing"

	"sidestream/broker"
	"sidestream/discovery"
)

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
