package plan

import (
	"cmp"
	"slices"
)

// Move is one partition that changes its owner; From or To is "" when it had
// none or gets none.
type Move struct {
	TopicPartition
	From, To string
}

// Owners are the assignments the other way round, as Input wants them.
func (a Assignments) Owners() map[TopicPartition]string {
	owners := map[TopicPartition]string{}
	for id, topics := range a {
		for t, ps := range topics {
			for _, p := range ps {
				owners[TopicPartition{t, p}] = id
			}
		}
	}
	return owners
}

// Moves are the differences between the owners now and a plan, by topic and
// partition.
func Moves(owners map[TopicPartition]string, plan Assignments) []Move {
	var moves []Move
	planned := plan.Owners()
	for tp, to := range planned {
		if owners[tp] != to {
			moves = append(moves, Move{tp, owners[tp], to})
		}
	}
	for tp, from := range owners {
		if _, ok := planned[tp]; !ok && from != "" {
			moves = append(moves, Move{tp, from, ""})
		}
	}
	slices.SortFunc(moves, func(a, b Move) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return moves
}
