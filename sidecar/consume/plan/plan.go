// Package plan decides which member of a consumer group takes which partition.
// It is a pure function from values to values.
package plan

import "slices"

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
	Members    []Member
	Partitions map[string]int32          // partition count by topic
	Owners     map[TopicPartition]string // member that has it now, by the plan before or by its lock
}

// Assignments are the partitions by member, then by topic, sorted. Every member
// has an entry, if an empty one.
type Assignments map[string]map[string][]int32

// Plan assigns every partition that a member's topics name to one of those
// members. TODO: sticky and even.
func Plan(in Input) Assignments {
	out := Assignments{}
	for _, m := range in.Members {
		out[m.ID] = map[string][]int32{}
	}
	for topic, n := range in.Partitions {
		for p := range n {
			for i := range in.Members {
				m := in.Members[(i+int(p))%len(in.Members)]
				if slices.Contains(m.Topics, topic) {
					out[m.ID][topic] = append(out[m.ID][topic], p)
					break
				}
			}
		}
	}
	return out
}

// Move is one partition that changes its owner; From or To is "" when it had
// none or gets none.
type Move struct {
	TopicPartition
	From, To string
}

// Moves are the differences between the owners now and a plan, by topic and
// partition.
func Moves(owners map[TopicPartition]string, plan Assignments) []Move { return nil }
