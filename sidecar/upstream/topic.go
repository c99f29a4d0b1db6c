package upstream

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// MaxMessageBytes is the topic's max.message.bytes: the largest record batch
// that its brokers take. False when they do not tell.
func (u *Upstream) MaxMessageBytes(ctx context.Context, topic string) (int, bool) {
	configs, err := u.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil || len(configs) != 1 || configs[0].Err != nil {
		return 0, false
	}
	for _, c := range configs[0].Configs {
		if c.Key == "max.message.bytes" && c.Value != nil {
			n, err := strconv.Atoi(*c.Value)
			return n, err == nil && n > 0
		}
	}
	return 0, false
}
