package cluster

import "hash/fnv"

// PartitionID names a partition for ever: a topic of the same name that comes later has another UUID.
type PartitionID struct {
	Topic     UUID
	Partition int32
}

// CommittedOffset is where a consumer goes on, as it said so itself.
type CommittedOffset struct {
	Offset      int64
	LeaderEpoch int32  // -1 when it gave none
	Metadata    string // any bytes, kept to the letter
}

// Coordinator is the broker that answers for a group, the same whoever asks: the live broker with the highest hash, so
// that another's coming or going moves only its own share of the groups. False when no broker lives.
func (v *View) Coordinator(group string) (Node, bool) {
	var best Node
	var highest uint64
	found := false
	for _, n := range v.Brokers {
		h := fnv.New64a()
		_, _ = h.Write([]byte{byte(n.ID >> 24), byte(n.ID >> 16), byte(n.ID >> 8), byte(n.ID)})
		_, _ = h.Write([]byte(group))
		score := mix(h.Sum64())
		if !found || score > highest || score == highest && n.ID < best.ID {
			best, highest, found = n, score, true
		}
	}
	return best, found
}

// mix spreads the last bytes over all bits (the finalizer of MurmurHash3), which FNV alone does not.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
