package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record"
	"sidestream/broker/record/unpack"
)

// CorruptError tells of records that nobody can read, in the middle of a log:
// what lies before them was decoded, what lies after them can be.
type CorruptError struct {
	Topic     string
	Partition int32
	Offset    int64 // the first that cannot be read
	After     int64 // the first after them, as far as their batch's header can be trusted
	Why       string
	Raw       []byte // their batch as the brokers store it, or what there is of it; nil when that is not known
	// Oversized says that they would be read if they unpacked to less; Millis is
	// the time of the first of them then.
	Oversized bool
	Millis    int64
}

func (e *CorruptError) Error() string {
	which := fmt.Sprintf("offset %d", e.Offset)
	if e.After > e.Offset+1 {
		which = fmt.Sprintf("offsets %d to %d", e.Offset, e.After-1)
	}
	return fmt.Sprintf("%s of partition %d of topic %s cannot be read: %s; what follows begins at offset %d", which, e.Partition, e.Topic, e.Why, e.After)
}

// Answer is a partition of a fetch to decode, and how far.
type Answer struct {
	Topic     string
	Partition int32
	Offset    int64 // that was asked for
	// End is the log's end, asked for after the answer came; -1: not known. No
	// checksum covers a batch's first offset, so a spoiled one is told only by
	// lying above the end, and would make its reader believe that it has read all
	// that is in between. Brokers find the batches that follow such a one behind
	// it only, so it is passed over where they begin.
	End int64
	// Room is how many bytes the records may take, about and beyond the first
	// batch: behind those the answer counts as cut off. 0: no matter.
	Room int64
	// Admit is asked, if it is there, whether the first batch may take so many
	// bytes.
	Admit func(bytes int64) bool
}

// Decoded is what became of an answer.
type Decoded struct {
	Part    kgo.FetchPartition
	Next    int64 // where to go on from
	Corrupt *CorruptError
	Bytes   int  // of the answer that were decoded
	Full    bool // Admit did not: nothing was decoded
}

// Decode decodes a partition of a fetch that asked for committed records only. It
// goes as far as the first batch that is not sound, and tells of that batch when
// it is the next one to read.
//
// kgo decodes, but it takes records as they come: one with an offset outside of
// its batch moves the position over other producers' records, and one that
// lacks leaves a gap that counts as compacted. So each batch is checked first.
// An error code in the answer is in the partition's Err, and nothing more.
//
// Batches are unpacked within the unpacking's limit, and the claim takes what
// they need in memory, records and all, before it is there. A claim that has
// nothing waits for its turn; err is ctx's. Release it when the records are gone
// or counted elsewhere.
func (u *Unpacking) Decode(ctx context.Context, claim *unpack.Claim, a Answer, rp *kmsg.FetchResponseTopicPartition) (d Decoded, err error) {
	opts := kgo.ProcessFetchPartitionOpts{
		Offset: a.Offset, IsolationLevel: kgo.ReadCommitted(), Topic: a.Topic, Partition: a.Partition,
	}
	c := checker{ctx: ctx, u: u, claim: claim, answer: a, good: a.Offset}
	if rp.ErrorCode != 0 {
		d.Part, d.Next = kgo.ProcessFetchPartition(opts, rp, &c, nil)
		return d, nil
	}
	size, bad := c.check(rp.RecordBatches)
	if c.failed != nil {
		return Decoded{Next: a.Offset}, c.failed
	}
	if c.full {
		return Decoded{Next: a.Offset, Full: true}, nil
	}
	sound := *rp
	sound.RecordBatches = c.without(rp.RecordBatches[:size])
	var raw []byte
	if bad != nil {
		var next int64
		raw, next = batchAt(rp.RecordBatches[size:], a.End)
		// A batch that is not sound may say that it ends anywhere, and what is
		// passed over is lost to the reader: the batch that follows knows better.
		if next > a.Offset {
			bad.after = min(bad.after, next)
		}
	}
	opts.DisableCRCValidation = !c.old // the check has done it, but of the old formats
	part, next := kgo.ProcessFetchPartition(opts, &sound, &c, nil)
	c.restoreTimes(part.Records)
	switch {
	case c.failed != nil:
		return Decoded{Next: a.Offset}, c.failed
	case c.old && errors.Is(part.Err, unpack.ErrNoRoom): // another time
		part.Err = nil
	case part.Err != nil: // of an old format, or a fault of the check
		raw = nil
		bad = &unsound{after: next + 1, why: part.Err.Error()}
		if errors.Is(part.Err, record.ErrTooLarge) {
			bad.why, bad.oversized, bad.after = u.oversized(), true, oldAfter(rp.RecordBatches, next)
		}
		part.Err = nil
	case !c.old && next < c.good:
		raw = nil
		bad = &unsound{after: c.good, why: "the decoder stops before the end of its batch"}
	}
	d = Decoded{Part: part, Next: next, Bytes: size}
	if bad == nil {
		return d, nil
	}
	if last := max(rp.HighWatermark, a.End); last > next {
		bad.after = min(bad.after, last)
	}
	d.Corrupt = &CorruptError{Topic: a.Topic, Partition: a.Partition, Offset: next, After: max(bad.after, next+1), Why: bad.why, Raw: raw,
		Oversized: bad.oversized, Millis: bad.millis}
	return d, nil
}

// oldAfter is the first offset after the message set of an old format that holds
// an offset: a set of several is at the place of its last message.
func oldAfter(in []byte, offset int64) int64 {
	for len(in) > 0 {
		h, whole := headerOf(in)
		if !whole || h.base >= offset {
			return max(h.base, offset) + 1
		}
		in = in[h.size:]
	}
	return offset + 1
}

// batchAt is the batch at the beginning of b, or what there is of it, and where
// the sound batch after it begins: -1 when none follows.
func batchAt(b []byte, end int64) (raw []byte, next int64) {
	h, whole := headerOf(b)
	if !whole {
		return b, -1
	}
	return b[:h.size], soundAt(b[h.size:], end)
}

// soundAt is where the batch at the beginning of b begins, -1 when it is not
// there whole, not sound, or above the log's end.
func soundAt(b []byte, end int64) int64 {
	h, whole := headerOf(b)
	if !whole || h.check(b[:h.size]) != nil || end >= 0 && h.last >= end {
		return -1
	}
	return h.base
}

// unsound is a batch that must not be decoded.
type unsound struct {
	after     int64 // the first offset after it, by its header
	why       string
	oversized bool
	millis    int64
}

// checker checks the batches of one answer. It keeps what it decompressed for
// the decoder, whose decompressor it is.
type checker struct {
	ctx    context.Context
	u      *Unpacking
	claim  *unpack.Claim
	answer Answer

	good   int64 // the first offset after the sound batches
	taken  int64 // bytes that the records of the sound batches take, in memory of their own or not
	old    bool  // there are message sets of before Kafka 0.11
	full   bool  // the first batch was not admitted
	failed error // ctx's
	plain  map[*byte][]byte
	cuts   [][2]int        // where there are batches not to decode among the sound ones
	times  map[int64]int64 // by offset: milliseconds that kgo's clock cannot hold
}

// check returns how many bytes of an answer to decode, and the batch at which
// they end if it is not sound. A batch that is not there whole is no fault,
// unless it is the first: brokers fill answers up with what fits.
func (c *checker) check(in []byte) (size int, bad *unsound) {
	type place struct {
		at         int
		base, last int64
	}
	var before *place
	for at := 0; at < len(in); {
		b := in[at:]
		h, whole := headerOf(b)
		if !whole {
			if at == 0 {
				return 0, &unsound{after: c.answer.Offset + 1, why: "its batch is cut off or its length is wrong"}
			}
			return at, nil
		}
		if h.magic == 0 || h.magic == 1 {
			c.old = true
			at += h.size
			continue
		}
		if h.size >= headerSize && h.lastDelta >= 0 && h.last < c.answer.Offset {
			at += h.size // whoever sought past a batch does not care what is in it
			continue
		}
		if err := h.check(b[:h.size]); err != nil {
			return at, &unsound{after: h.last + 1, why: err.Error()}
		}
		if c.answer.End >= 0 && h.last >= c.answer.End {
			next := soundAt(in[at+h.size:], c.answer.End)
			if next >= 0 && next <= c.good {
				c.cuts = append(c.cuts, [2]int{at, at + h.size})
				at += h.size
				continue
			}
			return at, &unsound{after: c.good + int64(h.lastDelta) + 1, why: fmt.Sprintf("its batch says that it begins at offset %d, and the log ends at %d", h.base, c.answer.End)}
		}
		if before != nil && h.base <= before.last {
			// One of both is in the wrong place, and nothing tells which.
			return before.at, &unsound{after: h.base, why: fmt.Sprintf("a batch of offsets %d to %d is followed by one that begins at %d", before.base, before.last, h.base)}
		}
		switch err := c.checkRecords(h, b[headerSize:h.size], before == nil); {
		case errors.Is(err, errStop):
			return at, nil
		case errors.Is(err, record.ErrTooLarge):
			return at, &unsound{after: h.last + 1, why: c.u.oversized(), oversized: true, millis: h.firstMillis()}
		case err != nil:
			return at, &unsound{after: h.last + 1, why: err.Error()}
		}
		c.good = max(c.good, h.last+1)
		before = &place{at, h.base, h.last}
		at += h.size
	}
	return len(in), nil
}

// without is in without what must not be decoded of it.
func (c *checker) without(in []byte) []byte {
	if len(c.cuts) == 0 {
		return in
	}
	var out []byte
	at := 0
	for _, cut := range c.cuts {
		out = append(out, in[at:min(cut[0], len(in))]...)
		at = min(cut[1], len(in))
	}
	return append(out, in[at:]...)
}

// errStop says that the answer is not decoded further for now.
var errStop = errors.New("no room for a further batch")

// checkRecords checks the records of a batch, compressed as they may be, and
// takes the memory for them. A claim that had nothing waits for it, one that had
// some stops.
func (c *checker) checkRecords(h header, records []byte, first bool) error {
	had := c.claim.Held()
	plain, size, err := c.unpackRecords(h, records)
	if errors.Is(err, unpack.ErrNoRoom) && had == 0 {
		// It has some and waits for more, as others may: it begins again once there
		// is enough for all that it may need.
		c.claim.Release()
		if err = c.claim.Ensure(c.ctx, c.u.limit.Worst()); err == nil {
			plain, size, err = c.unpackRecords(h, records)
		}
		c.claim.Trim()
	}
	switch {
	case errors.Is(err, unpack.ErrNoRoom):
		err = errStop
	case c.ctx.Err() != nil && errors.Is(err, c.ctx.Err()):
		c.failed, err = err, errStop
	case err != nil:
	case first && c.answer.Admit != nil && !c.answer.Admit(size):
		c.full, err = true, errStop
	case !first && c.answer.Room > 0 && c.taken+size > 2*c.answer.Room:
		err = errStop
	}
	if err != nil {
		c.claim.Give(c.claim.Held() - had)
		return err
	}
	c.taken += size
	if h.codec() != 0 && len(records) > 0 {
		if c.plain == nil {
			c.plain = map[*byte][]byte{}
		}
		c.plain[unsafe.SliceData(records)] = plain
	}
	return nil
}

// unpackRecords unpacks the records of a batch, checks them, and takes the memory
// for them; size is what they take with what is made of each.
func (c *checker) unpackRecords(h header, records []byte) (plain []byte, size int64, err error) {
	codec := record.Codec(h.codec())
	plain, err = c.u.limit.Unpack(c.ctx, c.claim, codec, records)
	switch {
	case errors.Is(err, record.ErrInvalid):
		return nil, 0, fmt.Errorf("its records cannot be decompressed: %w", err)
	case err != nil:
		return nil, 0, err
	}
	headers, err := h.eachRecord(plain, func(delta int32, millis int64) {
		if millis > maxMillis || millis < -maxMillis {
			if c.times == nil {
				c.times = map[int64]int64{}
			}
			c.times[h.base+int64(delta)] = millis
		}
	})
	if err != nil {
		return nil, 0, err
	}
	made := int64(h.count)*recordWeight + headers*headerWeight
	own := made // beside what the answer has
	if codec != record.None {
		own += int64(len(plain))
	}
	if own > c.u.limit.Limit {
		return nil, 0, record.ErrTooLarge
	}
	return plain, int64(len(plain)) + made, c.claim.Take(c.ctx, made)
}

// Decompress gives the decoder what the check has unpacked.
func (c *checker) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if len(src) > 0 {
		if plain, ok := c.plain[unsafe.SliceData(src)]; ok {
			return plain, nil
		}
	}
	if !c.old {
		return nil, errors.New("records that were not checked")
	}
	plain, err := c.u.limit.Unpack(c.ctx, c.claim, record.Codec(codec), src)
	if err == nil && int64(len(plain))/leastOldMessage*recordWeight > c.u.limit.Limit {
		err = record.ErrTooLarge
	}
	if err != nil && c.ctx.Err() != nil {
		c.failed = err
	}
	return plain, err
}

// maxMillis is the last millisecond that 64 bits of nanoseconds hold, in the
// year 2262: kgo counts so, and wraps around beyond it.
const maxMillis = (1<<63 - 1) / int64(time.Millisecond)

// restoreTimes gives records the time that they say.
func (c *checker) restoreTimes(records []*kgo.Record) {
	if len(c.times) == 0 {
		return
	}
	for _, r := range records {
		if millis, ok := c.times[r.Offset]; ok {
			r.Timestamp = time.UnixMilli(millis)
		}
	}
}
