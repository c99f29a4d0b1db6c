package publish

import (
	"fmt"
	"slices"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// A run is the messages without a key that go to one partition before the next
// one's turn: long enough that batches are big, short enough that all
// partitions get the same over time. At a low rate each message is a run.
const (
	runBytes   = 64 << 10
	runRecords = 512
	runTime    = 5 * time.Millisecond
)

// run is where messages without a key go now. The zero value begins anywhere.
type run struct {
	partition int32
	begun     time.Time
	bytes     int
	records   int

	// given is how many messages each partition got. Runs differ in length, by
	// time and by where requests end, so turns alone would not be even.
	given []int64
}

// next is the partition of one more message of the given size: the run's, or
// else, of those that have a leader, the one that got the least, in turns where
// several did. False when none has.
func (r *run) next(parts []upstream.Partition, size int, now time.Time) (int32, bool) {
	if r.records > 0 && r.records < runRecords && r.bytes+size <= runBytes && now.Sub(r.begun) < runTime &&
		int(r.partition) < len(parts) && parts[r.partition].Leader >= 0 {
		r.records++
		r.bytes += size
		r.given[r.partition]++
		return r.partition, true
	}
	for len(r.given) < len(parts) { // a new one owes nothing
		r.given = append(r.given, slices.Max(append(r.given, 0)))
	}
	best := -1
	for k := range parts {
		i := (int(r.partition) + 1 + k) % len(parts)
		if parts[i].Leader >= 0 && (best < 0 || r.given[i] < r.given[best]) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	for i := range parts { // nor does one that is away
		if parts[i].Leader < 0 {
			r.given[i] = max(r.given[i], r.given[best])
		}
	}
	r.partition, r.begun, r.bytes, r.records = int32(best), now, size, 1
	r.given[best]++
	return r.partition, true
}

// choose is the partition of a message: the one it names, the one of its key,
// or the run's among those that are free. A message with a key or a named
// partition is never passed on to another partition: its order would be lost.
// Errors: partition_not_found; brokers_unavailable when the leader is away, so
// that nothing was sent.
func choose(t *upstream.Topic, free []upstream.Partition, m *Message, r *run, now time.Time) (int32, *api.Error) {
	count := int32(len(t.Partitions))
	if count == 0 {
		return 0, away("topic " + t.Name + " has no partitions yet")
	}
	var id int32
	switch {
	case m.Partition != nil:
		id = *m.Partition
		if id < 0 || id >= count {
			return 0, api.NewError(api.CodePartitionNotFound,
				fmt.Sprintf("topic %s has no partition %d: it has 0 to %d", t.Name, id, count-1))
		}
	case m.Key != nil:
		id = PartitionOf(m.Key, count)
	default:
		id, ok := r.next(free, m.size(), now)
		if !ok {
			return 0, away("no partition of topic " + t.Name + " has a leader")
		}
		return id, nil
	}
	if t.Partitions[id].Leader < 0 {
		return id, away(fmt.Sprintf("partition %d of topic %s has no leader: its broker is away", id, t.Name))
	}
	return id, nil
}

// away says that nothing was sent because brokers are away.
func away(message string) *api.Error {
	e := api.NewError(api.CodeBrokersUnavailable, message)
	e.RetryAfterMillis = 1000
	return e
}
