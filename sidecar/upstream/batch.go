package upstream

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kbin"
)

// header is what the check needs of a record batch's header (Kafka protocol
// guide, "Record Batch").
type header struct {
	base, last  int64 // first and last offset
	size        int   // of the whole batch in bytes
	magic       int8
	crc         uint32
	attributes  int16
	lastDelta   int32
	first, most int64 // timestamps, in milliseconds
	count       int32
}

const (
	headerSize = 61 // up to the records
	prefixSize = 17 // up to and with magic, alike in all formats

	appendTimeBit = 1 << 3 // all records have the time of the append
	controlBit    = 1 << 5 // the records are markers of transactions
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// headerOf reads the header of the batch at the beginning of b, and whether all
// of the batch is there.
func headerOf(b []byte) (h header, whole bool) {
	if len(b) < prefixSize {
		return h, false
	}
	size := int64(int32(binary.BigEndian.Uint32(b[8:]))) + 12
	if size < prefixSize || size > int64(len(b)) {
		return h, false
	}
	h.base, h.size, h.magic = int64(binary.BigEndian.Uint64(b)), int(size), int8(b[16])
	h.last = h.base
	if h.size < headerSize {
		return h, true
	}
	h.crc = binary.BigEndian.Uint32(b[17:])
	h.attributes = int16(binary.BigEndian.Uint16(b[21:]))
	h.lastDelta = int32(binary.BigEndian.Uint32(b[23:]))
	h.first = int64(binary.BigEndian.Uint64(b[27:]))
	h.most = int64(binary.BigEndian.Uint64(b[35:]))
	h.count = int32(binary.BigEndian.Uint32(b[57:]))
	h.last = h.base + int64(h.lastDelta)
	return h, true
}

func (h header) codec() int8 { return int8(h.attributes & 7) }

// firstMillis is the time of the first record.
func (h header) firstMillis() int64 {
	if h.attributes&appendTimeBit != 0 {
		return h.most
	}
	return h.first
}

func (h header) isControl() bool { return h.attributes&controlBit != 0 }

// check checks the header of the batch b and its checksum.
func (h header) check(b []byte) error {
	switch {
	case h.magic != 2:
		return fmt.Errorf("its batch is of format %d, and 0 to 2 are known", h.magic)
	case len(b) < headerSize:
		return fmt.Errorf("its batch has %d bytes, fewer than its header", len(b))
	case crc32.Checksum(b[21:], castagnoli) != h.crc:
		return fmt.Errorf("its batch's checksum is wrong")
	case h.base < 0 || h.lastDelta < 0 || h.last < h.base:
		return fmt.Errorf("its batch says that it begins at offset %d and ends %d after it", h.base, h.lastDelta)
	case h.count < 0 || int64(h.count) > int64(h.lastDelta)+1:
		return fmt.Errorf("its batch says that it has %d records in %d offsets", h.count, int64(h.lastDelta)+1)
	case h.codec() > 4:
		return fmt.Errorf("its batch is compressed by codec %d, and 0 to 4 are known", h.codec())
	}
	return nil
}

// eachRecord checks the batch's records, decompressed, against its header, and
// calls f with the offset delta and the time of each. Where compaction took
// records there are gaps, and the count is of those that are left. It reads
// with the decoder's own functions, so that both always agree. It returns how
// many headers all records have.
func (h header) eachRecord(b []byte, f func(delta int32, millis int64)) (headers int64, err error) {
	before := int32(-1)
	for i := range h.count {
		length, n := kbin.Varint(b)
		if n <= 0 || length < 0 || int(length) > len(b)-n {
			return headers, fmt.Errorf("record %d of %d in its batch is cut off", i+1, h.count)
		}
		r := kbin.Reader{Src: b[n : n+int(length)]}
		b = b[n+int(length):]
		r.Int8() // attributes, none are in use
		millis := h.first + r.Varlong()
		delta := r.Varint()
		r.VarintBytes() // key
		r.VarintBytes() // value
		names := r.VarintArrayLen()
		headers += int64(names)
		for range names {
			r.VarintBytes() // name
			r.VarintBytes() // value
		}
		if h.isControl() { // its marker is the client's to read, and it has no message
			if !r.Ok() {
				return headers, fmt.Errorf("the marker of a transaction cannot be read")
			}
			if delta < 0 || delta > h.lastDelta { // it would move the position over what follows
				return headers, fmt.Errorf("the marker of a transaction is at place %d, and its batch ends at %d", delta, h.lastDelta)
			}
			continue
		}
		switch {
		case !r.Ok():
			return headers, fmt.Errorf("record %d of %d in its batch cannot be read", i+1, h.count)
		case len(r.Src) > 0:
			return headers, fmt.Errorf("record %d of %d in its batch has %d bytes too many", i+1, h.count, len(r.Src))
		case delta <= before:
			return headers, fmt.Errorf("record %d of %d in its batch is at place %d after one at %d", i+1, h.count, delta, before)
		case delta > h.lastDelta:
			return headers, fmt.Errorf("record %d of %d in its batch is at place %d, and the batch ends at %d", i+1, h.count, delta, h.lastDelta)
		}
		before = delta
		if h.attributes&appendTimeBit != 0 {
			millis = h.most
		}
		f(delta, millis)
	}
	if len(b) > 0 && !h.isControl() {
		return headers, fmt.Errorf("its batch has %d bytes after the last of its %d records", len(b), h.count)
	}
	return headers, nil
}
