package upstream

import (
	"fmt"

	"sidestream/broker/record/unpack"
)

// Unpacking bounds what batches take that are being unpacked: each, and all of
// the process together. Whoever reads records in this process shares one. It is
// safe for concurrent use.
type Unpacking struct {
	limit  unpack.Unpacker
	memory *unpack.Memory
}

// What a record takes in memory beside its bytes, about and at most, and each of
// its headers: millions of empty ones fit into a small batch.
const (
	recordWeight = 256
	headerWeight = 64
	// leastOldMessage is the least size of a message of the formats before 2:
	// offset, size, checksum, magic, attributes, and the lengths of key and value.
	leastOldMessage = 26
)

// NewUnpacking lets a batch take limit bytes, and all together memory bytes, but
// enough for one in any case.
func NewUnpacking(limit, memory int64) *Unpacking {
	u := unpack.Unpacker{Limit: limit}
	return &Unpacking{limit: u, memory: unpack.NewMemory(max(memory, u.Worst()))}
}

// Size is how many bytes all batches together may take that are being unpacked.
func (u *Unpacking) Size() int64 { return u.memory.Size() }

// Claim is a reader's part of the memory.
func (u *Unpacking) Claim() *unpack.Claim { return u.memory.Claim() }

// oversized is why a batch is not delivered.
func (u *Unpacking) oversized() string {
	return fmt.Sprintf("its batch takes more than %d bytes of memory when it is unpacked (kafka.max_unpacked_bytes)", u.limit.Limit)
}

// notUnpacked is what to say when there was no time to unpack an answer.
func notUnpacked(topic string, partition int32, err error) error {
	return unavailable(fmt.Sprintf("partition %d of topic %s: the memory for batches that are being unpacked was not free in time (kafka.unpack_memory): %v", partition, topic, err))
}

// Unpacking is what bounds unpacking in this process.
func (u *Upstream) Unpacking() *Unpacking { return u.unpacking }
