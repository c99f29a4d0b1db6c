package upstream

import (
	"fmt"
	"slices"
	"strings"
)

// Topic is what the brokers' metadata says of a topic.
type Topic struct {
	Name       string
	UUID       string      // canonical 8-4-4-4-12 form; "" when the brokers have none (before Kafka 2.8)
	Internal   bool        // the brokers' own, such as __consumer_offsets
	Partitions []Partition // by number: Partitions[i].ID == i, unless the brokers left one out
}

// Partition is one partition of a topic.
type Partition struct {
	ID       int32
	Leader   int32 // -1: none, or one that is not among the live brokers
	Epoch    int32 // leader epoch; -1 when the brokers have none
	Replicas []int32
	ISR      []int32
}

// Partition finds a partition by its number.
func (t Topic) Partition(id int32) (Partition, bool) {
	if id >= 0 && int(id) < len(t.Partitions) && t.Partitions[id].ID == id {
		return t.Partitions[id], true
	}
	i := slices.IndexFunc(t.Partitions, func(p Partition) bool { return p.ID == id })
	if i < 0 {
		return Partition{}, false
	}
	return t.Partitions[i], true
}

// PartialError reports partitions that could not be asked, beside the answer
// for all others: their leader is away or refused.
type PartialError struct {
	Topic      string
	Partitions map[int32]error // the reason of each
}

func (e *PartialError) Error() string {
	ids := make([]int32, 0, len(e.Partitions))
	for id := range e.Partitions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteString("; ")
		}
		if i == 3 {
			fmt.Fprintf(&b, "and %d more", len(ids)-i)
			break
		}
		fmt.Fprintf(&b, "partition %d: %v", id, e.Partitions[id])
	}
	return fmt.Sprintf("%d partitions of topic %s did not answer: %s", len(ids), e.Topic, b.String())
}
