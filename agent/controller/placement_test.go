package controller

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

func TestPlace(t *testing.T) {
	for name, c := range map[string]struct {
		n      int
		placed map[int32]int
		on     []Candidate
		want   []int32
	}{
		"nobody":                     {3, nil, nil, nil},
		"nothing":                    {0, nil, []Candidate{{ID: 1}}, nil},
		"one broker takes all":       {3, nil, []Candidate{{ID: 7}}, []int32{7, 7, 7}},
		"in turn":                    {5, nil, []Candidate{{ID: 1}, {ID: 2}, {ID: 3}}, []int32{1, 2, 3, 1, 2}},
		"the idle one first":         {1, nil, []Candidate{{ID: 1, Load: 4}, {ID: 2, Load: 3}}, []int32{2}},
		"racks before load":          {2, nil, []Candidate{{ID: 1, Rack: "a"}, {ID: 2, Rack: "a"}, {ID: 3, Rack: "b", Load: 50}}, []int32{1, 3}},
		"what the topic has counts":  {2, map[int32]int{1: 2, 2: 1}, []Candidate{{ID: 1}, {ID: 2}, {ID: 3}}, []int32{3, 2}},
		"brokers evenly, racks then": {4, nil, []Candidate{{ID: 1, Rack: "a"}, {ID: 2, Rack: "a"}, {ID: 3, Rack: "b"}, {ID: 4, Rack: "b"}}, []int32{1, 3, 2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Place(c.n, c.placed, c.on); !slices.Equal(got, c.want) {
				t.Errorf("got %v; want %v", got, c.want)
			}
		})
	}
}

func candidates(t *rapid.T) []Candidate {
	n := rapid.IntRange(1, 9).Draw(t, "brokers")
	racks := rapid.IntRange(1, 4).Draw(t, "racks")
	list := make([]Candidate, n)
	for i := range list {
		list[i] = Candidate{ID: int32(i + 1), Rack: fmt.Sprint(rapid.IntRange(1, racks).Draw(t, "rack")), Load: rapid.IntRange(0, 50).Draw(t, "load")}
	}
	return list
}

func TestPlaceSpreadsATopicEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := candidates(t)
		n := rapid.IntRange(1, 200).Draw(t, "partitions")
		got := Place(n, nil, list)
		if len(got) != n {
			t.Fatalf("%d partitions placed; want %d", len(got), n)
		}
		if again := Place(n, nil, list); !slices.Equal(got, again) {
			t.Fatal("the same question has two answers")
		}
		per := map[int32]int{}
		racks, used := map[string]bool{}, map[string]bool{}
		for _, c := range list {
			racks[c.Rack] = true
		}
		for _, id := range got {
			per[id]++
			used[list[id-1].Rack] = true
		}
		for _, c := range list {
			if per[c.ID] < n/len(list) || per[c.ID] > (n+len(list)-1)/len(list) {
				t.Fatalf("broker %d has %d of %d partitions on %d brokers", c.ID, per[c.ID], n, len(list))
			}
		}
		if want := min(n, len(racks)); len(used) < want {
			t.Fatalf("%d partitions use %d of %d racks", n, len(used), len(racks))
		}
	})
}

// Topics of one partition each, as many small topics are, load all brokers
// alike.
func TestPlaceEvensOutSmallTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := make([]Candidate, rapid.IntRange(1, 9).Draw(t, "brokers"))
		for i := range list {
			list[i] = Candidate{ID: int32(i + 1)}
		}
		for range rapid.IntRange(1, 100).Draw(t, "topics") {
			list[Place(1, nil, list)[0]-1].Load++
		}
		least := slices.MinFunc(list, func(a, b Candidate) int { return a.Load - b.Load }).Load
		most := slices.MaxFunc(list, func(a, b Candidate) int { return a.Load - b.Load }).Load
		if most-least > 1 {
			t.Fatalf("loads from %d to %d", least, most)
		}
	})
}

// Growing a topic gives the same spread as making it larger at once, and moves
// nothing.
func TestExtendFillsOnlyWhatIsNotListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := int32(rapid.IntRange(0, 200).Draw(t, "before"))
		after := before + int32(rapid.IntRange(1, 200).Draw(t, "more"))
		f := facts.Empty()
		f.Shards["u"] = map[int]facts.Shard{}
		for n := range facts.ShardsOf(before) {
			var s discovery.Shard
			for range facts.SlotsOf(before, n) {
				p := Fresh(9)
				if rapid.Bool().Draw(t, "hole") {
					p = discovery.PartitionState{Leader: -1}
				}
				s.Partitions = append(s.Partitions, p)
			}
			f.Shards["u"][n] = facts.Shard{Shard: s, Version: 1}
		}
		missing := unplaced(f, facts.Topic{Topic: discovery.Topic{UUID: "u", Partitions: after}})
		if len(missing) != int(after-before) || missing[0] != before || missing[len(missing)-1] != after-1 {
			t.Fatalf("unplaced are %v; want %d to %d", missing, before, after-1)
		}
		changed := extend(f, "u", missing, Place(len(missing), nil, []Candidate{{ID: 1}, {ID: 2}}))
		for n, s := range changed {
			old := f.Shards["u"][n].Partitions
			if len(s.Partitions) != facts.SlotsOf(after, n) {
				t.Fatalf("shard %d has %d partitions; want %d", n, len(s.Partitions), facts.SlotsOf(after, n))
			}
			for i, p := range s.Partitions {
				if i < len(old) {
					if facts.Hole(p) != facts.Hole(old[i]) {
						t.Fatalf("partition %d of shard %d was changed", i, n)
					}
				} else if len(p.Replicas) != 1 || p.Leader != -1 || p.Epoch != 0 {
					t.Fatalf("a new partition is %+v", p)
				}
			}
		}
	})
}
