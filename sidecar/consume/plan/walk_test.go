package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// group is a group in the course of its life, all of whose members pull all
// topics, as those of one pattern do.
type group struct {
	members    map[string]bool
	partitions map[string]int32
	owners     map[TopicPartition]string // as assigned last
	named      int                       // members and topics so far
}

func (g *group) input() Input {
	topics := slices.Sorted(maps.Keys(g.partitions))
	in := Input{Partitions: maps.Clone(g.partitions), Owners: maps.Clone(g.owners)}
	for id := range g.members {
		in.Members = append(in.Members, Member{id, topics})
	}
	return in
}

func (g *group) total() (n int) {
	for _, p := range g.partitions {
		n += int(p)
	}
	return n
}

func (g *group) name(kind string) string {
	g.named++
	return fmt.Sprintf("%s%03d", kind, g.named)
}

// least is the least number of partitions that must go to another than they
// have, if any, for loads that are even within one.
func (g *group) least() int {
	had := map[string]int{}
	free := g.total()
	for tp, id := range g.owners {
		if g.members[id] && tp.Partition < g.partitions[tp.Topic] {
			had[id]++
			free--
		}
	}
	var counts []int
	for id := range g.members {
		counts = append(counts, had[id])
	}
	slices.Sort(counts)
	slices.Reverse(counts)
	// Those with the most keep the larger shares.
	each, larger := g.total()/len(counts), g.total()%len(counts)
	must := free
	for i, n := range counts {
		share := each
		if i < larger {
			share++
		}
		must += max(0, n-share)
	}
	return must
}

// step changes one thing and says which.
func (g *group) step(t *rapid.T) string {
	kind := rapid.SampledFrom([]string{"join", "leave", "crash", "topic", "grow", "gone", "planner"}).Draw(t, "step")
	switch kind {
	case "join":
		if len(g.members) < 50 {
			g.members[g.name("m")] = true
		}
	case "leave", "crash": // to the plan they are the same: the member is not there
		if len(g.members) > 1 {
			delete(g.members, rapid.SampledFrom(slices.Sorted(maps.Keys(g.members))).Draw(t, "who"))
		}
	case "topic":
		if room := 1000 - g.total(); room > 0 {
			g.partitions[g.name("t")] = int32(rapid.IntRange(1, min(room, 64)).Draw(t, "partitions"))
		}
	case "grow":
		if room := 1000 - g.total(); room > 0 && len(g.partitions) > 0 {
			g.partitions[rapid.SampledFrom(slices.Sorted(maps.Keys(g.partitions))).Draw(t, "which")] += int32(rapid.IntRange(1, min(room, 32)).Draw(t, "more"))
		}
	case "gone":
		if len(g.partitions) > 1 {
			delete(g.partitions, rapid.SampledFrom(slices.Sorted(maps.Keys(g.partitions))).Draw(t, "which"))
		}
	case "planner":
		// The planner dies between the writes of two assignments while it plans
		// for a member that has just come: some partitions are in both plans, some
		// in neither, and its successor reads what it finds.
		if len(g.members) < 50 {
			g.members[g.name("m")] = true
		}
		after := Plan(g.input()).Owners()
		mixed := map[TopicPartition]string{}
		for id := range g.members {
			from := g.owners
			if rapid.Bool().Draw(t, "written") {
				from = after
			}
			for tp, owner := range from {
				if owner == id {
					mixed[tp] = id
				}
			}
		}
		g.owners = mixed
	}
	return kind
}

// TestPlanThroughALife walks a group of up to 50 members and 1,000 partitions
// through joins, leaves, crashes of members and planners, and topics that come,
// grow and go: every plan is whole and even within one, moves the least possible,
// and is followed by none.
func TestPlanThroughALife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &group{members: map[string]bool{}, partitions: map[string]int32{}, owners: map[TopicPartition]string{}}
		left := rapid.IntRange(1, 900).Draw(t, "partitions")
		for range rapid.IntRange(1, 20).Draw(t, "topics") {
			n := rapid.IntRange(0, left).Draw(t, "count")
			g.partitions[g.name("t")] = int32(n)
			left -= n
		}
		for range rapid.IntRange(1, 50).Draw(t, "members") {
			g.members[g.name("m")] = true
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			in := g.input()
			got := Plan(in)
			checkWhole(t, in, got)
			lo, hi := g.total(), 0
			for id := range g.members {
				lo, hi = min(lo, size(got, id)), max(hi, size(got, id))
			}
			if hi > lo+1 {
				t.Fatalf("loads between %d and %d", lo, hi)
			}
			moves := slices.DeleteFunc(Moves(g.owners, got), func(m Move) bool { return m.To == "" })
			if least := g.least(); len(moves) != least {
				t.Fatalf("%d moves where %d must be", len(moves), least)
			}
			g.owners = got.Owners()
			if again := Plan(g.input()); !reflect.DeepEqual(again, got) {
				t.Fatalf("planning again moved %v", Moves(g.owners, again))
			}
			before := maps.Clone(g.owners)
			if kind := g.step(t); kind == "topic" || kind == "grow" {
				for _, m := range Moves(before, Plan(g.input())) {
					if m.From != "" {
						t.Fatalf("new partitions moved %v", m)
					}
				}
			}
		}
	})
}

// TestPlanOfDifferentPatterns compares plans for members that pull different
// topics with all that are possible, after one of them has joined or left: the
// loads are as even as can be, and at most one more partition moves than must.
func TestPlanOfDifferentPatterns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Partitions: map[string]int32{}}
		var names []string
		left := 7
		for i := range rapid.IntRange(1, 4).Draw(t, "topics") {
			n := rapid.IntRange(0, left).Draw(t, "count")
			left -= n
			names = append(names, fmt.Sprintf("t%d", i))
			in.Partitions[names[i]] = int32(n)
		}
		for i := range rapid.IntRange(2, 4).Draw(t, "members") {
			m := Member{ID: fmt.Sprintf("m%d", i)}
			for _, name := range names {
				if rapid.Bool().Draw(t, "pulls") {
					m.Topics = append(m.Topics, name)
				}
			}
			in.Members = append(in.Members, m)
		}
		all := in.Members
		one := rapid.IntRange(0, len(all)-1).Draw(t, "who")
		without := slices.Delete(slices.Clone(all), one, one+1)
		first, second := without, all
		if rapid.Bool().Draw(t, "leaves") {
			first, second = all, without
		}
		in.Members = first
		before := Plan(in).Owners()
		in.Members, in.Owners = second, before
		got := Plan(in)
		checkWhole(t, in, got)
		loads, least := best(in)
		if have := loadsOf(got); !slices.Equal(have, loads) {
			t.Fatalf("loads %v where %v are possible", have, loads)
		}
		moves := slices.DeleteFunc(Moves(before, got), func(m Move) bool { return m.To == "" })
		if len(moves) > least+1 {
			t.Fatalf("%d moves where %d suffice: %v", len(moves), least, moves)
		}
	})
}

func loadsOf(a Assignments) (loads []int) {
	for id := range a {
		loads = append(loads, size(a, id))
	}
	slices.Sort(loads)
	slices.Reverse(loads)
	return loads
}

// best tries all plans: the most even loads, highest first, and the fewest moves
// that lead to such.
func best(in Input) (loads []int, moves int) {
	var tps []TopicPartition
	for _, topic := range slices.Sorted(maps.Keys(in.Partitions)) {
		for p := range in.Partitions[topic] {
			tps = append(tps, TopicPartition{topic, p})
		}
	}
	load := make([]int, len(in.Members))
	var try func(i, moved int)
	try = func(i, moved int) {
		if i == len(tps) {
			now := slices.Clone(load)
			slices.Sort(now)
			slices.Reverse(now)
			if c := slices.Compare(now, loads); loads == nil || c < 0 || c == 0 && moved < moves {
				loads, moves = now, moved
			}
			return
		}
		pulled := false
		for m, member := range in.Members {
			if !slices.Contains(member.Topics, tps[i].Topic) {
				continue
			}
			pulled = true
			more := 1
			if in.Owners[tps[i]] == member.ID {
				more = 0
			}
			load[m]++
			try(i+1, moved+more)
			load[m]--
		}
		if !pulled {
			try(i+1, moved)
		}
	}
	try(0, 0)
	return loads, moves
}
