package publish

import (
	"fmt"
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
}

// next is the run after one more message of the given size: round robin over
// the partitions that have a leader. False when none has.
func (r run) next(parts []upstream.Partition, size int, now time.Time) (run, bool) {
	if r.records > 0 && r.records < runRecords && r.bytes+size <= runBytes && now.Sub(r.begun) < runTime &&
		int(r.partition) < len(parts) && parts[r.partition].Leader >= 0 {
		r.records++
		r.bytes += size
		return r, true
	}
	for i := range parts {
		p := &parts[(int(r.partition)+1+i)%len(parts)]
		if p.Leader >= 0 {
			return run{partition: p.ID, begun: now, bytes: size, records: 1}, true
		}
	}
	return r, false
}

// choose is the partition of a message: the one it names, the one of its key,
// or the run's among those that are free. A message with a key or a named partition is never passed on
// to another partition: its order would be lost. Errors: partition_not_found;
// brokers_unavailable when the leader is away, so that nothing was sent.
func choose(t *upstream.Topic, free []upstream.Partition, m *Message, r run, now time.Time) (int32, run, *api.Error) {
	count := int32(len(t.Partitions))
	if count == 0 {
		return 0, r, away("topic " + t.Name + " has no partitions yet")
	}
	var id int32
	switch {
	case m.Partition != nil:
		id = *m.Partition
		if id < 0 || id >= count {
			return 0, r, api.NewError(api.CodePartitionNotFound,
				fmt.Sprintf("topic %s has no partition %d: it has 0 to %d", t.Name, id, count-1))
		}
	case m.Key != nil:
		id = PartitionOf(m.Key, count)
	default:
		next, ok := r.next(free, m.size(), now)
		if !ok {
			return 0, r, away("no partition of topic " + t.Name + " has a leader")
		}
		return next.partition, next, nil
	}
	if t.Partitions[id].Leader < 0 {
		return 0, r, away(fmt.Sprintf("partition %d of topic %s has no leader: its broker is away", id, t.Name))
	}
	return id, r, nil
}

// away says that nothing was sent because brokers are away.
func away(message string) *api.Error {
	e := api.NewError(api.CodeBrokersUnavailable, message)
	e.RetryAfterMillis = 1000
	return e
}
