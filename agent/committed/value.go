package committed

import (
	"encoding/json"
	"maps"
	"time"
	"unicode/utf8"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

// keyOf names one key of the store: 64 partitions of a topic in a group.
type keyOf struct {
	group string
	topic cluster.UUID
	shard int
}

func (k keyOf) String() string { return discovery.KeyCommitted(k.group, k.topic.String(), k.shard) }

// split orders offsets by the key that each belongs under.
func split(group string, offsets map[cluster.PartitionID]cluster.CommittedOffset) map[keyOf]map[int32]cluster.CommittedOffset {
	out := map[keyOf]map[int32]cluster.CommittedOffset{}
	for id, o := range offsets {
		k := keyOf{group, id.Topic, int(id.Partition) / discovery.ShardPartitions}
		if out[k] == nil {
			out[k] = map[int32]cluster.CommittedOffset{}
		}
		out[k][id.Partition] = o
	}
	return out
}

// overlay is the stored value with the newer offsets put over it, partition by partition.
func overlay(stored discovery.Committed, newer map[int32]cluster.CommittedOffset, now time.Time) discovery.Committed {
	next := discovery.Committed{Offsets: maps.Clone(stored.Offsets), Writer: discovery.NewNonce()}
	if next.Offsets == nil {
		next.Offsets = map[int32]discovery.CommittedOffset{}
	}
	for p, o := range newer {
		next.Offsets[p] = pack(o, now)
	}
	return next
}

// pack is the stored form of an offset. The shorter way to write the metadata
// is taken, so that 64 times the longest metadata fit in one value.
func pack(o cluster.CommittedOffset, now time.Time) discovery.CommittedOffset {
	out := discovery.CommittedOffset{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Time: now.Unix()}
	if text, err := json.Marshal(o.Metadata); err == nil && utf8.ValidString(o.Metadata) && len(text) <= 4*(len(o.Metadata)+2)/3+2 {
		out.Metadata = o.Metadata
	} else {
		out.Metadata64 = []byte(o.Metadata)
	}
	return out
}

func unpack(o discovery.CommittedOffset) cluster.CommittedOffset {
	out := cluster.CommittedOffset{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
	if len(o.Metadata64) > 0 {
		out.Metadata = string(o.Metadata64)
	}
	return out
}
