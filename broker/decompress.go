package broker

import (
	"context"

	"sidestream/broker/record"
	"sidestream/broker/record/unpack"
)

// unpacking unpacks batches to look into them: for a search by time, for compaction, and for keys that must be there. A
// small batch may be made to unpack to gigabytes, so each is bounded, and what all together take at a time.
type unpacking struct {
	limit  unpack.Unpacker
	memory *unpack.Memory
}

func newUnpacking(limit int64) unpacking {
	return unpacking{unpack.Unpacker{Limit: limit}, unpack.NewMemory(2 * limit)}
}

// decompress gives the records of a compressed batch. They are the caller's until it calls done; while others have all
// the memory it waits for them.
func (u unpacking) decompress(codec record.Codec, src []byte) (plain []byte, done func(), err error) {
	c := u.memory.Claim()
	plain, err = u.limit.Unpack(context.Background(), c, codec, src)
	if err != nil {
		c.Release()
		return nil, nil, err
	}
	return plain, c.Release, nil
}
