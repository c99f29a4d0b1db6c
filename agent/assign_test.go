package agent

import (
	"errors"
	"strings"
	"testing"

	"sidestream/broker"
)

// New partitions go where a client says, as those of a new topic do, also beyond the shard that the present ones are in.
// An assignment was refused, so that tools which compute one (Cruise Control, a declarative operator) could not add any.
func TestNewPartitionsGoWhereTheyAreAssigned(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two", "three")
	one := hosts[0]
	made := one.create("t", 60)
	ctx, cancel := shortly()
	defer cancel()
	var assignment [][]int32
	for i := range 80 {
		assignment = append(assignment, []int32{int32(1 + i%2)}) // none on the third
	}
	if err := one.CreatePartitions(ctx, "t", 140, assignment...); err != nil {
		t.Fatal(err)
	}
	now := one.View().Topics["t"].Partitions
	if len(now) != 140 {
		t.Fatalf("%d partitions, want 140", len(now))
	}
	for i, p := range now {
		want := int32(0)
		if i < 60 {
			want = made.Partitions[i].Leader
		} else {
			want = assignment[i-60][0]
		}
		if p.Leader != want || len(p.Replicas) != 1 || p.Replicas[0] != want {
			t.Errorf("partition %d is %+v, want it on %d", i, p, want)
		}
	}
	// By the cluster again, beside them.
	if err := one.CreatePartitions(ctx, "t", 142); err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		count      int32
		assignment [][]int32
		want       error
		says       string
	}{
		{144, [][]int32{{1}}, broker.ErrInvalidPartitions, "gets 2 more, and 1 are assigned"},
		{143, [][]int32{{9}}, broker.ErrInvalidPartitions, "broker 9"},
		{143, [][]int32{{1, 2}}, broker.ErrInvalidReplication, "name one"},
		{143, [][]int32{{}}, broker.ErrInvalidReplication, "name one"},
	} {
		err := one.CreatePartitions(ctx, "t", x.count, x.assignment...)
		if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("case %d: got %v, want %v that says %q", i, err, x.want, x.says)
		}
	}
	if n := len(one.View().Topics["t"].Partitions); n != 142 {
		t.Errorf("%d partitions after what was refused", n)
	}
}
