package upstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record/unpack"
	"sidestream/sdk/api"
)

// Inspected is what lies at an offset.
type Inspected struct {
	// Record is the first that can be read at or above the offset; nil when
	// there is none, or when what lies there cannot be read.
	Record *kgo.Record
	// Why it cannot be read; "" when it can, or when nothing is there.
	Why string
	// After is the first offset after what cannot be read; -1 when the brokers
	// do not even show that.
	After int64
	// Raw are the bytes of what cannot be read, as the brokers store them: one
	// batch, or what there is of it.
	Raw []byte
	// Oversized says that it cannot be read for its size alone: the batch takes
	// more memory than is allowed. Millis is then its first record's time.
	Oversized bool
	Millis    int64

	claim *unpack.Claim
}

// Release says that the record is not used any more.
func (i Inspected) Release() { i.claim.Release() }

// inspectBytes is what Inspect asks for: the batch at the offset, which brokers
// give whole, and some of what follows, which tells where it ends.
const inspectBytes = 4 << 20

// inspectRoom is what the records of that may take beyond the batch at the
// offset.
const inspectRoom = 1 << 20

// Inspect looks at an offset of a partition where a reader found what it cannot
// read: whether that is still so, and what is there, which the caller releases.
// Errors are as of Peek.
func (u *Upstream) Inspect(ctx context.Context, topic string, partition int32, offset int64) (Inspected, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	t, err := u.Topic(ctx, topic)
	if err != nil {
		return Inspected{}, err
	}
	p, ok := t.Partition(partition)
	if !ok || p.Leader < 0 {
		return Inspected{}, unavailable(fmt.Sprintf("partition %d of topic %s has no leader", partition, topic))
	}
	rp, err := u.fetchRaw(ctx, p, topic, offset, inspectBytes, readCommitted)
	if err != nil {
		return Inspected{}, u.unreachable(err)
	}
	switch err := kerr.ErrorForCode(rp.ErrorCode); {
	case errors.Is(err, kerr.CorruptMessage):
		return Inspected{Why: err.Error(), After: -1}, nil
	case errors.Is(err, kerr.OffsetOutOfRange):
		return Inspected{}, api.NewError(api.CodeBadRequest, fmt.Sprintf("partition %d of topic %s does not have offset %d", partition, topic, offset))
	case err != nil:
		return Inspected{}, unavailable(fmt.Sprintf("partition %d of topic %s: %v", partition, topic, err))
	}
	ends, err := u.EndOffsets(ctx, topic)
	end, ok := ends[partition]
	if !ok {
		return Inspected{}, unavailable(fmt.Sprintf("the end of partition %d of topic %s is not known now: %v", partition, topic, err))
	}
	return u.unpacking.inspect(ctx, topic, partition, offset, end, rp)
}

// NextReadable looks for the first offset, from one on, at which the brokers
// find nothing corrupt, at so many offsets at most. When it is not found, or an
// error came, next is where to go on looking. Errors are as of Peek.
func (u *Upstream) NextReadable(ctx context.Context, topic string, partition int32, from int64, most int) (next int64, found bool, err error) {
	t, err := u.Topic(ctx, topic)
	if err != nil {
		return from, false, err
	}
	p, ok := t.Partition(partition)
	if !ok || p.Leader < 0 {
		return from, false, unavailable(fmt.Sprintf("partition %d of topic %s has no leader", partition, topic))
	}
	for range most {
		call, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
		rp, err := u.fetchRaw(call, p, topic, from, 1, readCommitted)
		cancel()
		if err != nil {
			return from, false, u.unreachable(err)
		}
		switch err := kerr.ErrorForCode(rp.ErrorCode); {
		case err == nil:
			return from, true, nil
		case !errors.Is(err, kerr.CorruptMessage):
			return from, false, unavailable(fmt.Sprintf("partition %d of topic %s: %v", partition, topic, err))
		}
		from++
	}
	return from, false, nil
}

// inspect is Inspect of an answer.
func (u *Unpacking) inspect(ctx context.Context, topic string, partition int32, offset, end int64, rp *kmsg.FetchResponseTopicPartition) (Inspected, error) {
	claim := u.Claim()
	d, err := u.Decode(ctx, claim, Answer{Topic: topic, Partition: partition, Offset: offset, End: end, Room: inspectRoom}, rp)
	if err != nil {
		claim.Release()
		return Inspected{}, notUnpacked(topic, partition, err)
	}
	for _, r := range d.Part.Records {
		if r.Offset >= offset {
			return Inspected{Record: r, claim: claim}, nil
		}
	}
	claim.Release()
	corrupt := d.Corrupt
	if corrupt == nil || corrupt.Offset > offset {
		return Inspected{}, nil
	}
	return Inspected{Why: corrupt.Why, After: corrupt.After, Raw: corrupt.Raw, Oversized: corrupt.Oversized, Millis: corrupt.Millis}, nil
}
