package upstream

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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
}

func (e *CorruptError) Error() string {
	which := fmt.Sprintf("offset %d", e.Offset)
	if e.After > e.Offset+1 {
		which = fmt.Sprintf("offsets %d to %d", e.Offset, e.After-1)
	}
	return fmt.Sprintf("%s of partition %d of topic %s cannot be read: %s; what follows begins at offset %d", which, e.Partition, e.Topic, e.Why, e.After)
}

// Decode decodes a partition of a fetch that asked for offset on, committed
// records only. next is where to go on from. It goes as far as the first batch
// that is not sound, and tells of that batch when it is the next one to read.
//
// kgo decodes, but it takes records as they come: one with an offset outside of
// its batch moves the position over other producers' records, and one that
// lacks leaves a gap that counts as compacted. So each batch is checked first.
// An error code in the answer is in the partition's Err, and nothing more.
func Decode(topic string, partition int32, offset int64, rp *kmsg.FetchResponseTopicPartition, decompressor kgo.Decompressor) (kgo.FetchPartition, int64, *CorruptError) {
	return DecodeWithin(topic, partition, offset, -1, rp, decompressor)
}

// DecodeWithin is Decode of an answer that is known to lie below the log's end,
// as asked for after the answer came. No checksum covers a batch's first offset,
// so a spoiled one is told only by lying above it, and would make its reader
// believe that it has read all that is in between. Brokers find the batches that
// follow such a one behind it only, so it is passed over where they begin.
func DecodeWithin(topic string, partition int32, offset, end int64, rp *kmsg.FetchResponseTopicPartition, decompressor kgo.Decompressor) (kgo.FetchPartition, int64, *CorruptError) {
	opts := kgo.ProcessFetchPartitionOpts{
		Offset: offset, IsolationLevel: kgo.ReadCommitted(), Topic: topic, Partition: partition,
	}
	if rp.ErrorCode != 0 {
		part, next := kgo.ProcessFetchPartition(opts, rp, decompressor, nil)
		return part, next, nil
	}
	c := checker{offset: offset, end: end, decompressor: decompressor, good: offset}
	size, bad := c.check(rp.RecordBatches)
	sound := *rp
	sound.RecordBatches = c.without(rp.RecordBatches[:size])
	var raw []byte
	if bad != nil {
		var next int64
		raw, next = batchAt(rp.RecordBatches[size:], end)
		// A batch that is not sound may say that it ends anywhere, and what is
		// passed over is lost to the reader: the batch that follows knows better.
		if next > offset {
			bad.after = min(bad.after, next)
		}
	}
	opts.DisableCRCValidation = !c.old // the check has done it, but of the old formats
	part, next := kgo.ProcessFetchPartition(opts, &sound, &c, nil)
	c.restoreTimes(part.Records)
	switch {
	case part.Err != nil: // of an old format, or a fault of the check
		raw = nil
		bad = &unsound{after: next + 1, why: part.Err.Error()}
		part.Err = nil
	case !c.old && next < c.good:
		raw = nil
		bad = &unsound{after: c.good, why: "the decoder stops before the end of its batch"}
	}
	if bad == nil {
		return part, next, nil
	}
	if last := max(rp.HighWatermark, end); last > next {
		bad.after = min(bad.after, last)
	}
	return part, next, &CorruptError{Topic: topic, Partition: partition, Offset: next, After: max(bad.after, next+1), Why: bad.why, Raw: raw}
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
	after int64 // the first offset after it, by its header
	why   string
}

// checker checks the batches of one answer. It keeps what it decompressed for
// the decoder, whose decompressor it is.
type checker struct {
	offset       int64 // what lies below is not asked for
	end          int64 // of the log; -1: not known
	decompressor kgo.Decompressor
	good         int64 // the first offset after the sound batches
	old          bool  // there are message sets of before Kafka 0.11
	plain        map[*byte][]byte
	cuts         [][2]int        // where there are batches not to decode among the sound ones
	times        map[int64]int64 // by offset: milliseconds that kgo's clock cannot hold
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
				return 0, &unsound{c.offset + 1, "its batch is cut off or its length is wrong"}
			}
			return at, nil
		}
		if h.magic == 0 || h.magic == 1 {
			c.old = true
			at += h.size
			continue
		}
		if h.size >= headerSize && h.lastDelta >= 0 && h.last < c.offset {
			at += h.size // whoever sought past a batch does not care what is in it
			continue
		}
		if err := h.check(b[:h.size]); err != nil {
			return at, &unsound{h.last + 1, err.Error()}
		}
		if c.end >= 0 && h.last >= c.end {
			next := soundAt(in[at+h.size:], c.end)
			if next >= 0 && next <= c.good {
				c.cuts = append(c.cuts, [2]int{at, at + h.size})
				at += h.size
				continue
			}
			return at, &unsound{c.good + int64(h.lastDelta) + 1, fmt.Sprintf("its batch says that it begins at offset %d, and the log ends at %d", h.base, c.end)}
		}
		if before != nil && h.base <= before.last {
			// One of both is in the wrong place, and nothing tells which.
			return before.at, &unsound{h.base, fmt.Sprintf("a batch of offsets %d to %d is followed by one that begins at %d", before.base, before.last, h.base)}
		}
		if err := c.checkRecords(h, b[headerSize:h.size]); err != nil {
			return at, &unsound{h.last + 1, err.Error()}
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

// checkRecords checks the records of a batch, compressed as they may be.
func (c *checker) checkRecords(h header, records []byte) error {
	if codec := kgo.CompressionCodecType(h.codec()); codec != kgo.CodecNone {
		plain, err := c.decompressor.Decompress(records, codec)
		if err != nil {
			return fmt.Errorf("its records cannot be decompressed: %w", err)
		}
		if len(records) > 0 {
			if c.plain == nil {
				c.plain = map[*byte][]byte{}
			}
			c.plain[unsafe.SliceData(records)] = plain
		}
		records = plain
	}
	return h.eachRecord(records, func(delta int32, millis int64) {
		if millis > maxMillis || millis < -maxMillis {
			if c.times == nil {
				c.times = map[int64]int64{}
			}
			c.times[h.base+int64(delta)] = millis
		}
	})
}

// Decompress gives the decoder what the check has decompressed.
func (c *checker) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if len(src) > 0 {
		if plain, ok := c.plain[unsafe.SliceData(src)]; ok {
			return plain, nil
		}
	}
	if !c.old {
		return nil, errors.New("records that were not checked")
	}
	return c.decompressor.Decompress(src, codec)
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
