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
// looked into. Cost: some nanoseconds a record, no allocation.
func CheckRecords(batch []byte, h Header) error {
	if h.Codec() != None {
		return nil
	}
	b := batch[HeaderSize:]
	at := 0
	for i := range h.Count {
		if next := plain(b, at, uint64(i)); next > 0 {
			at = next
			continue
		}
		length, start := number(b, at)
		if start < 0 || length < 0 || length > int64(len(b)-start) {
			return fmt.Errorf("record %d of %d: %w: its length is missing or beyond the %d bytes left", i, h.Count, ErrInvalid, len(b)-at)
		}
		at = start + int(length)
		if what := lie(b[start:at], int64(i)); what != "" {
			return fmt.Errorf("record %d of %d: %w: %s", i, h.Count, ErrInvalid, what)
		}
	}
	if at < len(b) {
		return fmt.Errorf("%w: %d bytes after its %d records", ErrInvalid, len(b)-at, h.Count)
	}
	return nil
}

// plain steps over the record at a position if it is one of the usual kind, in
// good order, and returns the position after it: with lengths and deltas of one
// byte or two, and no headers. Nearly all are so; everything else gives 0 and is
// looked at with care.
func plain(b []byte, at int, delta uint64) (next int) {
	length, at := short(b, at)
	end := at + int(length>>1)
	if length&1 != 0 || at < 0 || end > len(b) || at >= end {
		return 0
	}
	b = b[:end]
	_, at = short(b, at+1) // timestamp delta, after the byte of attributes
	offset, at := short(b, at)
	key, at := short(b, at)
	if offset != delta<<1 || key&1 != 0 && key != null {
		return 0
	}
	at += int(key >> 1)
	value, at := short(b, at)
	if value&1 != 0 && value != null {
		return 0
	}
	at += int(value >> 1)
	headers, at := short(b, at)
	if headers != 0 || at != end {
		return 0
	}
	return end
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
// when nothing is.
func lie(r []byte, delta int64) string {
	_, at := number(r, 1) // timestamp delta, after the byte of attributes
	offset, at := number(r, at)
	if at < 0 {
		return "it is cut short"
	}
	if offset != delta {
		return fmt.Sprintf("offset delta %d where %d is due", offset, delta)
	}
	at = skip(r, at, -1) // key
	at = skip(r, at, -1) // value
	headers, at := number(r, at)
	if at < 0 || headers < 0 || headers > int64(len(r))/2 {
		return "its key, value or number of headers does not fit its length"
	}
	for range headers {
		at = skip(r, at, 0) // a name cannot be null
		at = skip(r, at, -1)
	}
	if at != len(r) {
		return "its headers do not end where it does"
	}
	return ""
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
