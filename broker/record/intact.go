package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// CheckRecords checks the records of a batch that a producer sent without
// compression: as many as the header counts, their offset deltas 0, 1, 2 …,
// every length within its record, nothing left over. A batch that lies about
// them has a good checksum all the same, and readers would take its offsets for
// their neighbours' or lose messages of others. Compressed batches are not
// looked into; package packed is for them. Cost: some nanoseconds a record, no allocation.
//
// A highest timestamp that is not that of the records is corrected, in the batch
// and its checksum, since searches by time and retention go by it. So does
// Kafka's broker (Kafka, LogValidator and DefaultRecordBatch.setMaxTimestamp),
// because there are clients that leave it at -1. The header that is returned is
// the batch's as it is now.
func CheckRecords(batch []byte, h Header) (Header, error) {
	if h.Codec() != None {
		return h, nil
	}
	if t := h.FirstTimestamp; t > math.MaxInt64-shortest || t < math.MinInt64+shortest {
		return h, fmt.Errorf("%w: first timestamp %d is no time in milliseconds", ErrInvalid, t)
	}
	b := batch[HeaderSize:]
	at := 0
	latest := int64(math.MinInt64) // timestamp delta
	for i := int32(0); i < h.Count; i++ {
		before, times := i, uint64(0)
		if at, i, times = plain(b, at, i, h.Count); i > before {
			latest = max(latest, int64(times>>1))
		}
		if i == h.Count {
			break
		}
		length, start := number(b, at)
		if start < 0 || length < 0 || length > int64(len(b)-start) {
			return h, &BadRecordError{i, h.Count, fmt.Sprintf("its length is missing or beyond the %d bytes left", len(b)-at)}
		}
		at = start + int(length)
		what, delta := lie(b[start:at], int64(i), h.FirstTimestamp)
		if what != "" {
			return h, &BadRecordError{i, h.Count, what}
		}
		latest = max(latest, delta)
	}
	if at < len(b) {
		return h, fmt.Errorf("%w: %d bytes after its %d records", ErrInvalid, len(b)-at, h.Count)
	}
	return Redate(batch, h, h.FirstTimestamp+latest), nil
}

// BadRecordError is ErrInvalid of a batch for what is wrong with one of its records.
type BadRecordError struct {
	Index int32 // in the batch, from 0
	Count int32 // of the batch's records
	What  string
}

func (e *BadRecordError) Error() string {
	return fmt.Sprintf("record %d of %d: %v: %s", e.Index, e.Count, ErrInvalid, e.What)
}

// Unwrap says what kind of error it is.
func (e *BadRecordError) Unwrap() error { return ErrInvalid }

// Redate corrects the highest timestamp of a batch to the one that was found in
// its records, and its checksum, unless the broker's clock dated them. It returns
// the header as it is now.
func Redate(batch []byte, h Header, found int64) Header {
	found = max(found, -1) // which stands for no timestamp; times before 1970 are none
	if h.LogAppendTime() || h.MaxTimestamp == found {
		return h
	}
	h.MaxTimestamp = found
	binary.BigEndian.PutUint64(batch[offMaxTimestamp:], uint64(found))
	h.CRC = CRC(batch)
	binary.BigEndian.PutUint32(batch[offCRC:], h.CRC)
	return h
}

// shortest bounds the timestamp deltas that plain reads.
const shortest = 1 << 13

// plain steps over the records from a position and number on that are of the
// usual kind, in good order: with lengths and deltas of one byte or two, no time
// before the first one's, and no headers. Nearly all are so; it stops at the first other one, which is looked at
// with care, and returns its position and number, and the highest timestamp delta
// on the way, doubled as the zigzag has it.
func plain(b []byte, at int, i, n int32) (next int, number int32, latest uint64) {
	for ; i < n; i++ {
		length, p := short(b, at)
		end := p + int(length>>1)
		if length&1 != 0 || p < 0 || end > len(b) || p >= end {
			break
		}
		r := b[:end]
		time, p := short(r, p+1) // after the byte of attributes
		offset, p := short(r, p)
		key, p := short(r, p)
		if offset != uint64(i)<<1 || key&1 != 0 && key != null {
			break
		}
		p += int(key >> 1)
		value, p := short(r, p)
		if value&1 != 0 && value != null {
			break
		}
		p += int(value >> 1)
		headers, p := short(r, p)
		if headers != 0 || p != end || time&1 != 0 {
			break
		}
		latest = max(latest, time)
		at = end
	}
	return at, i, latest
}

// null is the length of a key or value that is null, -1, as short reads it.
const null = 1

// short reads a varint of one byte or two without undoing the zigzag, and returns
// the position after it: one far below 0 when there is none.
func short(b []byte, at int) (v uint64, next int) {
	if uint(at) >= uint(len(b)) {
		return 0, nowhere
	}
	low := uint64(b[at])
	if low < 0x80 {
		return low, at + 1
	}
	if at++; at < len(b) && b[at] < 0x80 {
		return low&0x7f | uint64(b[at])<<7, at + 1
	}
	return 0, nowhere
}

const nowhere = math.MinInt32

// lie says what is wrong with one record, whose length has been taken off; ""
// when nothing is, and then also the record's timestamp delta.
func lie(r []byte, delta, first int64) (what string, timestamp int64) {
	timestamp, at := number(r, 1) // after the byte of attributes
	offset, at := number(r, at)
	if at < 0 {
		return "it is cut short", 0
	}
	if offset != delta {
		return fmt.Sprintf("offset delta %d where %d is due", offset, delta), 0
	}
	if sum := first + timestamp; (sum > first) != (timestamp > 0) {
		return fmt.Sprintf("timestamp delta %d after %d is no time in milliseconds", timestamp, first), 0
	}
	at = skip(r, at, -1) // key
	at = skip(r, at, -1) // value
	headers, at := number(r, at)
	if at < 0 || headers < 0 || headers > int64(len(r))/2 {
		return "its key, value or number of headers does not fit its length", 0
	}
	for range headers {
		at = skip(r, at, 0) // a name cannot be null
		at = skip(r, at, -1)
	}
	if at != len(r) {
		return "its headers do not end where it does", 0
	}
	return "", timestamp
}

// number reads a varint at a position and returns the position after it, -1
// when there is none or the position is no good. Nearly all have one byte or two.
func number(b []byte, at int) (v int64, next int) {
	if uint(at) < uint(len(b)) {
		low := uint32(b[at])
		if low < 0x80 {
			return int64(low>>1) ^ -int64(low&1), at + 1
		}
		if at+1 < len(b) && b[at+1] < 0x80 {
			u := low&0x7f | uint32(b[at+1])<<7
			return int64(u>>1) ^ -int64(u&1), at + 2
		}
	}
	return longNumber(b, at)
}

func longNumber(b []byte, at int) (v int64, next int) {
	if uint(at) >= uint(len(b)) {
		return 0, -1
	}
	v, n := binary.Varint(b[at:])
	if n <= 0 {
		return 0, -1
	}
	return v, at + n
}

// skip steps over a length, at least least (-1 stands for null), and as many
// bytes.
func skip(b []byte, at int, least int64) (next int) {
	v, at := number(b, at)
	if at < 0 || v < least || v > int64(len(b)-at) {
		return -1
	}
	return at + int(max(v, 0))
}
