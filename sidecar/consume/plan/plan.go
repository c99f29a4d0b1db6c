// Package plan decides which member of a consumer group takes which partition.
// It is a pure function from values to values: the same input gives the same
// plan wherever it is computed.
package plan

import (
	"cmp"
	"slices"
)

// TopicPartition names a partition by its topic's name.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Member is one sidecar and the topics that its applications pull.
type Member struct {
	ID     string
	Topics []string
}

// Input is what a plan is made from.
type Input struct {
	Members    []Member                  // in any order; of two of one ID the topics are joined
	Partitions map[string]int32          // partition count by topic
	Owners     map[TopicPartition]string // member that has it now, by the plan before or by its lock
}

// Assignments are the partitions by member, then by topic, sorted. Every member
// has an entry, if an empty one. A partition of a topic that no member pulls is
// in none.
type Assignments map[string]map[string][]int32

// Plan assigns every partition of the topics that members pull, each to a
// member that pulls its topic.
//
// Even: where all members pull the same topics, the numbers of partitions over
// all topics differ by one at most. Where they do not, the loads are as even as
// their topics allow: there is no chain of moves (a partition from A to B, one of
// B's to C, …) that would take from a member and give to one with at least two
// fewer.
//
// Sticky: a partition stays where it is unless its owner has gone, does not pull
// its topic any more, or the loads are not even; with equal topics the number of
// moves is then the least possible. Each topic is spread as well as that allows.
func Plan(in Input) Assignments {
	s := newState(in)
	for _, tp := range s.keep(in) {
		s.give(tp, s.lightest(tp.Topic))
	}
	for s.improve() {
	}
	out := make(Assignments, len(s.ids))
	for m, id := range s.ids {
		out[id] = map[string][]int32{}
		for topic, ps := range s.has[m] {
			if len(ps) > 0 {
				out[id][topic] = slices.Sorted(slices.Values(ps))
			}
		}
	}
	return out
}

// state is a plan in the making. Members are numbered in the order of their IDs.
type state struct {
	ids    []string
	topics []string             // sorted
	subs   map[string][]int     // members by topic, ascending
	pulls  []map[string]bool    // topics by member
	has    []map[string][]int32 // partitions by member and topic
	load   []int
}

func newState(in Input) *state {
	s := &state{subs: map[string][]int{}}
	topics := map[string]map[string]bool{}
	for _, m := range in.Members {
		if topics[m.ID] == nil {
			topics[m.ID] = map[string]bool{}
			s.ids = append(s.ids, m.ID)
		}
		for _, t := range m.Topics {
			if in.Partitions[t] > 0 {
				topics[m.ID][t] = true
			}
		}
	}
	slices.Sort(s.ids)
	for i, id := range s.ids {
		s.pulls = append(s.pulls, topics[id])
		s.has = append(s.has, map[string][]int32{})
		for t := range topics[id] {
			s.subs[t] = append(s.subs[t], i)
		}
	}
	for t := range s.subs {
		s.topics = append(s.topics, t)
	}
	slices.Sort(s.topics)
	s.load = make([]int, len(s.ids))
	return s
}

// keep gives every partition to the owner that may keep it, and returns the
// others: those of topics with the fewest members first, as they have the least
// choice.
func (s *state) keep(in Input) (free []TopicPartition) {
	for _, t := range s.topics {
		for p := range in.Partitions[t] {
			tp := TopicPartition{t, p}
			m, found := slices.BinarySearch(s.ids, in.Owners[tp])
			if found && s.pulls[m][t] {
				s.give(tp, m)
			} else {
				free = append(free, tp)
			}
		}
	}
	slices.SortStableFunc(free, func(a, b TopicPartition) int {
		return cmp.Compare(len(s.subs[a.Topic]), len(s.subs[b.Topic]))
	})
	return free
}

func (s *state) give(tp TopicPartition, m int) {
	s.has[m][tp.Topic] = append(s.has[m][tp.Topic], tp.Partition)
	s.load[m]++
}

// lightest is the member that pulls the topic and has the least; of several the
// one that has the least of the topic, then the first.
func (s *state) lightest(topic string) int {
	return slices.MinFunc(s.subs[topic], func(a, b int) int {
		return cmp.Or(
			cmp.Compare(s.load[a], s.load[b]),
			cmp.Compare(len(s.has[a][topic]), len(s.has[b][topic])),
			cmp.Compare(a, b))
	})
}

// improve makes one chain of moves from a member to one that has at least two
// fewer, the heaviest first and the shortest chain first; false when there is
// none. Each chain lowers the sum of the squares of the loads, so it ends, and
// without such a chain the loads are optimal (Harvey, Ladner, Lovász, Tamir:
// Semi-matchings for bipartite graphs).
func (s *state) improve() bool {
	order := make([]int, len(s.ids))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.load[b], s.load[a]) })
	lowest := 0
	if n := len(order); n > 0 {
		lowest = s.load[order[n-1]]
	}
	for _, from := range order {
		if s.load[from] < lowest+2 {
			return false
		}
		if chain := s.chain(from); chain != nil {
			for i := len(chain) - 1; i > 0; i-- {
				s.move(chain[i-1], chain[i])
			}
			return true
		}
	}
	return false
}

// chain is the shortest way for a partition's weight from a member to one that
// has at least two fewer (of several, the lightest, then the first), or nil.
func (s *state) chain(from int) []int {
	before := make([]int, len(s.ids))
	for i := range before {
		before[i] = -1
	}
	before[from] = from
	for level := []int{from}; len(level) > 0; {
		var next []int
		best := -1
		for _, a := range level {
			for b := range s.ids {
				if before[b] >= 0 || !s.canMove(a, b) {
					continue
				}
				before[b] = a
				next = append(next, b)
				if s.load[b] <= s.load[from]-2 && (best < 0 || s.load[b] < s.load[best]) {
					best = b
				}
			}
		}
		if best >= 0 {
			var chain []int
			for m := best; m != from; m = before[m] {
				chain = append(chain, m)
			}
			chain = append(chain, from)
			slices.Reverse(chain)
			return chain
		}
		level = next
	}
	return nil
}

func (s *state) canMove(a, b int) bool {
	for t, ps := range s.has[a] {
		if len(ps) > 0 && s.pulls[b][t] {
			return true
		}
	}
	return false
}

// move gives one partition of a to b, of the topic of which a has the most more
// than b.
func (s *state) move(a, b int) {
	topic, most := "", 0
	for _, t := range s.topics {
		if n := len(s.has[a][t]); n > 0 && s.pulls[b][t] {
			if more := n - len(s.has[b][t]); topic == "" || more > most {
				topic, most = t, more
			}
		}
	}
	ps := s.has[a][topic]
	p := slices.Max(ps)
	s.has[a][topic] = slices.DeleteFunc(ps, func(x int32) bool { return x == p })
	s.load[a]--
	s.give(TopicPartition{topic, p}, b)
}
