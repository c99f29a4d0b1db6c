package agent

import (
	"errors"
	"testing"

	"sidestream/broker"
	"sidestream/discovery"
)

func TestCommittedOffsetsAreTheClustersAndGoWithTheirTopic(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	made, kept := one.create("goes", 2), one.create("stays", 1)
	ctx, cancel := shortly()
	defer cancel()
	err := one.CommitOffsets(ctx, "g", map[broker.PartitionID]broker.CommittedOffset{
		{Topic: made.ID, Partition: 1}: {Offset: 5, LeaderEpoch: 1, Metadata: "m"},
		{Topic: kept.ID, Partition: 0}: {Offset: 6, LeaderEpoch: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := two.CommittedOffsets(ctx, "g")
	if o := got[broker.PartitionID{Topic: made.ID, Partition: 1}]; err != nil || len(got) != 2 || o.Offset != 5 || o.Metadata != "m" {
		t.Fatalf("another broker reads %v, %v", got, err)
	}
	two.delete("goes")
	one.await("its offsets go with the topic", func() bool { return len(c.keys(discovery.PrefixCommitted)) == 1 })
	if got, err := two.CommittedOffsets(ctx, "g"); err != nil || len(got) != 1 {
		t.Errorf("left %v, %v", got, err)
	}
	if groups, err := two.CommittedGroups(ctx); err != nil || len(groups) != 1 {
		t.Errorf("groups %v, %v", groups, err)
	}
	if err := two.DropOffsets(ctx, "g", nil); err != nil {
		t.Error(err)
	}
}

// An empty answer would send consumers back to the start.
func TestOffsetsOfAWipedStoreAreAnErrorAndNotNothing(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	ctx, cancel := shortly()
	defer cancel()
	if _, err := c.store.Commit(ctx, discovery.DeletePrefix("")); err != nil {
		t.Fatal(err)
	}
	one.await("it sees the store empty", func() bool { return one.mayChange() != nil })
	if _, err := one.CommittedOffsets(ctx, "g"); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if err := one.CommitOffsets(ctx, "g", nil); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestConfigsAreAlteredOnline(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two")
	one, two := hosts[0], hosts[1]
	one.create("t", 4)
	ctx, cancel := shortly()
	defer cancel()
	set := func(configs map[string]string) (map[string]string, error) {
		configs["retention.ms"] = "1000"
		return configs, nil
	}
	if err := one.AlterTopic(ctx, "t", set); err != nil {
		t.Fatal(err)
	}
	if got := one.View().Topics["t"].Configs["retention.ms"]; got != "1000" {
		t.Errorf("the view that answered has %q", got)
	}
	for _, h := range hosts {
		h.await("every broker leads with the new configs", func() bool {
			for _, l := range h.host.leading() {
				if l.Configs["retention.ms"] != "1000" {
					return false
				}
			}
			return len(h.host.leading()) == 2
		})
	}
	bad := func(map[string]string) (map[string]string, error) {
		return map[string]string{"retention.ms": "soon"}, nil
	}
	if err := two.AlterTopic(ctx, "t", bad); !errors.Is(err, broker.ErrInvalidConfig) {
		t.Errorf("a bad value: %v", err)
	}
	mine := errors.New("mine")
	if err := two.AlterTopic(ctx, "t", func(map[string]string) (map[string]string, error) { return nil, mine }); !errors.Is(err, mine) {
		t.Errorf("an error of the change: %v", err)
	}
	if err := two.AlterTopic(ctx, "nowhere", set); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("an unknown topic: %v", err)
	}
	if err := one.AlterTopic(ctx, "t", set); err != nil {
		t.Errorf("no change: %v", err)
	}
}
