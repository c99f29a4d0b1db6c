package publish

import "encoding/binary"

// PartitionOf is the partition of a key among count, exactly as Kafka's default
// partitioner chooses it, so that every producer of a topic agrees.
// Source: org.apache.kafka.clients.producer.internals.BuiltInPartitioner,
// partitionForKey: toPositive(murmur2(key)) % count.
func PartitionOf(key []byte, count int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % count
}

// murmur2 is the 32-bit MurmurHash2 with Kafka's seed, from
// org.apache.kafka.common.utils.Utils.murmur2. It reads little-endian words.
func murmur2(b []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
