package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPlanSpreadsAndStays(t *testing.T) {
	members := func(ids ...string) (ms []Member) {
		for _, id := range ids {
			ms = append(ms, Member{ID: id, Topics: []string{"orders"}})
		}
		return ms
	}
	first := Plan(Input{Members: members("a", "b"), Partitions: map[string]int32{"orders": 4}})
	want := Assignments{"a": {"orders": {0, 2}}, "b": {"orders": {1, 3}}}
	if !reflect.DeepEqual(first, want) {
		t.Fatalf("a fresh plan is %v, want %v", first, want)
	}
	joined := Plan(Input{Members: members("a", "b", "c"), Partitions: map[string]int32{"orders": 4}, Owners: first.Owners()})
	if moves := Moves(first.Owners(), joined); len(moves) != 1 || moves[0].To != "c" {
		t.Errorf("a third member of four partitions costs %v, want one move to it", moves)
	}
	left := Plan(Input{Members: members("b", "c"), Partitions: map[string]int32{"orders": 4}, Owners: joined.Owners()})
	for _, m := range Moves(joined.Owners(), left) {
		if m.From != "a" {
			t.Errorf("when a leaves, %v moves too", m)
		}
	}
}

func TestPlanWithOddInput(t *testing.T) {
	in := Input{
		Members: []Member{
			{ID: "a", Topics: []string{"orders", "orders", "nowhere"}},
			{ID: "a", Topics: []string{"clicks"}},
			{ID: "idle"},
		},
		Partitions: map[string]int32{"orders": 1, "clicks": 1, "unread": 3, "empty": 0},
		Owners: map[TopicPartition]string{
			{"orders", 0}: "idle", // does not pull it
			{"orders", 7}: "a",    // is not there
			{"unread", 0}: "gone",
		},
	}
	want := Assignments{"a": {"orders": {0}, "clicks": {0}}, "idle": {}}
	if got := Plan(in); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Plan(Input{Partitions: map[string]int32{"orders": 2}}); len(got) != 0 {
		t.Errorf("without members the plan is %v", got)
	}
}

func TestPlanFreesTheOneWithChoice(t *testing.T) {
	// b alone may take x; a and b may take y. b must give up y for it.
	in := Input{
		Members:    []Member{{"a", []string{"y"}}, {"b", []string{"x", "y"}}},
		Partitions: map[string]int32{"x": 4, "y": 4},
		Owners:     map[TopicPartition]string{{"y", 0}: "b", {"y", 1}: "b", {"y", 2}: "a", {"y", 3}: "a"},
	}
	want := Assignments{"a": {"y": {0, 1, 2, 3}}, "b": {"x": {0, 1, 2, 3}}}
	if got := Plan(in); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPlanMovesThroughAThird(t *testing.T) {
	// a has all of x, which b may take too; c may take only y, all of which b
	// has. Evening out a and c needs a chain over b.
	in := Input{
		Members:    []Member{{"a", []string{"x"}}, {"b", []string{"x", "y"}}, {"c", []string{"y"}}},
		Partitions: map[string]int32{"x": 3, "y": 3},
		Owners: map[TopicPartition]string{
			{"x", 0}: "a", {"x", 1}: "a", {"x", 2}: "a", {"y", 0}: "b", {"y", 1}: "b", {"y", 2}: "c",
		},
	}
	got := Plan(in)
	for id := range got {
		if n := size(got, id); n != 2 {
			t.Errorf("%s has %d of 6 partitions: %v", id, n, got)
		}
	}
	if moves := Moves(in.Owners, got); len(moves) != 2 {
		t.Errorf("the chain costs %v, want two moves", moves)
	}
}

func TestMovesListsWhatIsLost(t *testing.T) {
	moves := Moves(map[TopicPartition]string{{"x", 0}: "a", {"x", 1}: "a"}, Assignments{"b": {"x": {1}}})
	want := []Move{{TopicPartition{"x", 0}, "a", ""}, {TopicPartition{"x", 1}, "a", "b"}}
	if !reflect.DeepEqual(moves, want) {
		t.Errorf("got %v, want %v", moves, want)
	}
}

func size(a Assignments, id string) (n int) {
	for _, ps := range a[id] {
		n += len(ps)
	}
	return n
}

// checkWhole fails unless each partition of a pulled topic is assigned once, to
// one that pulls it, and all lists are sorted.
func checkWhole(t *rapid.T, in Input, got Assignments) {
	seen := map[TopicPartition]bool{}
	pulled := map[string]bool{}
	for _, m := range in.Members {
		if got[m.ID] == nil {
			t.Fatalf("member %s has no entry", m.ID)
		}
		for _, topic := range m.Topics {
			pulled[topic] = true
		}
		for topic, ps := range got[m.ID] {
			if !slices.Contains(m.Topics, topic) {
				t.Fatalf("%s got topic %s, which it does not pull", m.ID, topic)
			}
			if !slices.IsSorted(ps) {
				t.Fatalf("%s has %v", m.ID, ps)
			}
			for _, p := range ps {
				tp := TopicPartition{topic, p}
				if seen[tp] || p < 0 || p >= in.Partitions[topic] {
					t.Fatalf("%v is assigned twice or does not exist", tp)
				}
				seen[tp] = true
			}
		}
	}
	want := 0
	for topic, n := range in.Partitions {
		if pulled[topic] {
			want += int(n)
		}
	}
	if len(seen) != want || len(got) != len(in.Members) {
		t.Fatalf("%d of %d partitions are assigned, to %d of %d members", len(seen), want, len(got), len(in.Members))
	}
}

// TestPlanEqualTopics walks groups whose members all pull the same topics
// through joins, leaves and crashes.
func TestPlanEqualTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := map[string]int32{}
		left := rapid.IntRange(1, 1000).Draw(t, "partitions")
		topics := rapid.IntRange(1, 4).Draw(t, "topics")
		names := []string{}
		total := 0
		for i := range topics {
			n := left / (topics - i)
			if i < topics-1 {
				n = rapid.IntRange(0, left).Draw(t, "count")
			}
			name := fmt.Sprintf("t%d", i)
			partitions[name] = int32(n)
			names = append(names, name)
			left -= n
			total += n
		}
		live := map[string]bool{}
		owners := map[TopicPartition]string{}
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			before := len(live)
			// The first step joins many; a later one joins or loses one or some.
			change := 1
			if step == 0 {
				change = rapid.IntRange(1, 50).Draw(t, "members")
			} else if rapid.IntRange(0, 3).Draw(t, "many") == 0 {
				change = rapid.IntRange(1, 10).Draw(t, "change")
			}
			joins := step == 0 || before < 50-change && rapid.Bool().Draw(t, "join")
			var gone []string
			for range change {
				if joins {
					live[fmt.Sprintf("m%03d", rapid.IntRange(0, 999).Draw(t, "id"))] = true
				} else if len(live) > 1 {
					id := rapid.SampledFrom(slices.Sorted(maps.Keys(live))).Draw(t, "leaver")
					delete(live, id)
					gone = append(gone, id)
				}
			}
			var members []Member
			for id := range live {
				members = append(members, Member{id, names})
			}
			in := Input{Members: members, Partitions: partitions, Owners: owners}
			got := Plan(in)
			checkWhole(t, in, got)

			lo, hi, needed := total, 0, 0
			for id := range live {
				lo, hi = min(lo, size(got, id)), max(hi, size(got, id))
			}
			if hi > lo+1 {
				t.Fatalf("loads between %d and %d", lo, hi)
			}
			moves := Moves(owners, got)
			if step > 0 {
				// What must move: the leavers' all, and the joiners' shares.
				had := map[string]int{}
				for _, id := range owners {
					had[id]++
				}
				for _, id := range gone {
					needed += had[id]
				}
				needed += max(0, len(live)-before) * (total / len(live))
				if joins && len(moves) > needed+max(1, len(live)-before) || !joins && len(moves) > needed {
					t.Fatalf("%d moves where %d must", len(moves), needed)
				}
			}
			owners = got.Owners()
			slices.Reverse(in.Members)
			in.Owners = owners
			if again := Plan(in); !reflect.DeepEqual(again, got) {
				t.Fatalf("planning again moved %v", Moves(owners, again))
			}
		}
	})
}

// TestPlanUnequalTopics checks against a naive search that no chain of moves
// would make the loads more even, and that nothing moves without need.
func TestPlanUnequalTopics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Partitions: map[string]int32{}, Owners: map[TopicPartition]string{}}
		var names []string
		for i := range rapid.IntRange(1, 6).Draw(t, "topics") {
			names = append(names, fmt.Sprintf("t%d", i))
			in.Partitions[names[i]] = rapid.Int32Range(1, 20).Draw(t, "count")
		}
		for i := range rapid.IntRange(1, 10).Draw(t, "members") {
			m := Member{ID: fmt.Sprintf("m%d", i)}
			for _, name := range names {
				if rapid.Bool().Draw(t, "pulls") {
					m.Topics = append(m.Topics, name)
				}
			}
			in.Members = append(in.Members, m)
		}
		for name, n := range in.Partitions {
			for p := range n {
				in.Owners[TopicPartition{name, p}] = fmt.Sprintf("m%d", rapid.IntRange(0, 12).Draw(t, "owner"))
			}
		}
		got := Plan(in)
		checkWhole(t, in, got)
		for _, from := range in.Members {
			// Everyone that a partition's weight can reach from here.
			reach := map[string]bool{from.ID: true}
			for grown := true; grown; {
				grown = false
				for _, a := range in.Members {
					for _, b := range in.Members {
						for topic, ps := range got[a.ID] {
							if reach[a.ID] && !reach[b.ID] && len(ps) > 0 && slices.Contains(b.Topics, topic) {
								reach[b.ID], grown = true, true
							}
						}
					}
				}
			}
			for id := range reach {
				if size(got, id) <= size(got, from.ID)-2 {
					t.Fatalf("%s has %d, and %s could have more than its %d", from.ID, size(got, from.ID), id, size(got, id))
				}
			}
		}
		in.Owners = got.Owners()
		if moves := Moves(in.Owners, Plan(in)); len(moves) > 0 {
			t.Fatalf("planning again moved %v", moves)
		}
	})
}
