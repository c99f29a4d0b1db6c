// Package record reads Kafka's record batch, version 2 (magic 2), as bytes:
// header fields, checks, the checksum, and the records inside. What producers
// sent is never re-encoded: the one thing that is written into it is the stamp of
// offset and leader epoch, which lie outside the checksum for that very reason.
// Only compaction, which removes records, builds batches.
//
// Layout and constants: Kafka documentation, "Message format", RecordBatch;
// KIP-98 (producer id, epoch, sequence, control and transactional flags);
// KIP-101 (partition leader epoch); KIP-534 (delete horizon).
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
)

// Positions of the header's fields from the start of a batch.
const (
	offBaseOffset      = 0
	offLength          = 8
	offLeaderEpoch     = 12
	offMagic           = 16
	offCRC             = 17
	offAttributes      = 21
	offLastOffsetDelta = 23
	offFirstTimestamp  = 27
	offMaxTimestamp    = 35
	offProducerID      = 43
	offProducerEpoch   = 51
	offBaseSequence    = 53
	offCount           = 57
)

const (
	// HeaderSize is the length of a batch's header: where the records start.
	HeaderSize = 61
	// Magic is the only version of the format that is read.
	Magic = 2
	// prefix is what the Length field does not count: the base offset and
	// the field itself.
	prefix = 12
	// MaxSize is the largest batch that the format can hold on this side: a
	// batch is one part of a file whose positions are 31 bits.
	MaxSize = 1<<31 - 1
)

// Bits of Header.Attributes.
const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrDeleteHorizon = 0x40
)

// Codec is how the records of a batch are compressed.
type Codec int8

// The codecs of the format.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

var codecNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

func (c Codec) String() string {
	if c >= 0 && int(c) < len(codecNames) {
		return codecNames[c]
	}
	return fmt.Sprintf("codec(%d)", int8(c))
}

// Errors of the checks, to be tested with errors.Is.
var (
	// ErrTruncated: the bytes end before the batch does.
	ErrTruncated = errors.New("record: batch is cut short")
	// ErrMagic: another version of the format than 2.
	ErrMagic = errors.New("record: unsupported batch version")
	// ErrCRC: the checksum does not fit the contents.
	ErrCRC = errors.New("record: checksum mismatch")
	// ErrInvalid: fields that contradict each other or the format.
	ErrInvalid = errors.New("record: invalid batch")
	// ErrTooLarge: more bytes than allowed.
	ErrTooLarge = errors.New("record: batch too large")
)

// Header is the header of a batch. Timestamps are milliseconds since 1970, -1
// for none.
type Header struct {
	BaseOffset      int64
	Length          int32 // bytes after this field
	LeaderEpoch     int32
	Magic           int8
	CRC             uint32 // CRC-32C of everything from Attributes on
	Attributes      int16
	LastOffsetDelta int32
	FirstTimestamp  int64
	MaxTimestamp    int64
	ProducerID      int64 // -1: not an idempotent producer
	ProducerEpoch   int16
	BaseSequence    int32
	Count           int32 // records
}

// LastOffset is the offset of the batch's last record.
func (h Header) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset is the offset after the batch.
func (h Header) NextOffset() int64 { return h.LastOffset() + 1 }

// Size is the length of the whole batch in bytes.
func (h Header) Size() int { return int(h.Length) + prefix }

// Codec is how the records are compressed.
func (h Header) Codec() Codec { return Codec(h.Attributes & attrCodec) }

// IsControl tells whether the batch holds a transaction marker.
func (h Header) IsControl() bool { return h.Attributes&attrControl != 0 }

// IsTransactional tells whether the batch belongs to a transaction.
func (h Header) IsTransactional() bool { return h.Attributes&attrTransactional != 0 }

// LogAppendTime tells whether the broker's clock dated the records, with
// MaxTimestamp, in place of the producer's.
func (h Header) LogAppendTime() bool { return h.Attributes&attrLogAppendTime != 0 }

// DeleteHorizon is the time, in milliseconds since 1970, from which on the
// tombstones of the batch may be removed, if compaction has set one (KIP-534).
// FirstTimestamp then holds it in place of the first record's timestamp.
func (h Header) DeleteHorizon() (ms int64, ok bool) {
	return h.FirstTimestamp, h.Attributes&attrDeleteHorizon != 0
}

// SetDeleteHorizon sets that time. The records must be encoded for the new
// FirstTimestamp.
func (h *Header) SetDeleteHorizon(ms int64) {
	h.FirstTimestamp = ms
	h.Attributes |= attrDeleteHorizon
}

// Thinned tells whether compaction has removed records of the batch, so that
// some of its offsets have none.
func (h Header) Thinned() bool { return int64(h.Count) != int64(h.LastOffsetDelta)+1 }

// LastSequence is the sequence number of the last record, which follows
// 2147483647 with 0; -1 for a batch without sequence.
func (h Header) LastSequence() int32 {
	if h.BaseSequence < 0 {
		return -1
	}
	return int32((int64(h.BaseSequence) + int64(h.LastOffsetDelta)) & (1<<31 - 1))
}

// ParseHeader reads the header of the batch that b starts with; the rest of the
// batch need not be there. It checks what is needed to go on: the version (so
// that the other fields mean what they say) and that the length and the last
// offset are possible.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("%w: %d bytes, a header has %d", ErrTruncated, len(b), HeaderSize)
	}
	h := Header{
		BaseOffset:      int64(binary.BigEndian.Uint64(b[offBaseOffset:])),
		Length:          int32(binary.BigEndian.Uint32(b[offLength:])),
		LeaderEpoch:     int32(binary.BigEndian.Uint32(b[offLeaderEpoch:])),
		Magic:           int8(b[offMagic]),
		CRC:             binary.BigEndian.Uint32(b[offCRC:]),
		Attributes:      int16(binary.BigEndian.Uint16(b[offAttributes:])),
		LastOffsetDelta: int32(binary.BigEndian.Uint32(b[offLastOffsetDelta:])),
		FirstTimestamp:  int64(binary.BigEndian.Uint64(b[offFirstTimestamp:])),
		MaxTimestamp:    int64(binary.BigEndian.Uint64(b[offMaxTimestamp:])),
		ProducerID:      int64(binary.BigEndian.Uint64(b[offProducerID:])),
		ProducerEpoch:   int16(binary.BigEndian.Uint16(b[offProducerEpoch:])),
		BaseSequence:    int32(binary.BigEndian.Uint32(b[offBaseSequence:])),
		Count:           int32(binary.BigEndian.Uint32(b[offCount:])),
	}
	switch {
	case h.Magic != Magic:
		return h, fmt.Errorf("%w: magic %d, only %d is read", ErrMagic, h.Magic, Magic)
	case h.Length < HeaderSize-prefix || h.Length > MaxSize-prefix:
		return h, fmt.Errorf("%w: length field %d, it must be %d to %d",
			ErrInvalid, h.Length, HeaderSize-prefix, MaxSize-prefix)
	case h.BaseOffset < 0 || h.LastOffsetDelta < 0 || h.LastOffset() < 0:
		return h, fmt.Errorf("%w: base offset %d with last offset delta %d, neither may be negative",
			ErrInvalid, h.BaseOffset, h.LastOffsetDelta)
	}
	return h, nil
}

// Check checks that b is exactly one whole batch that a producer may send: its
// length, version, checksum and counts. A batch over maxBytes is refused with
// ErrTooLarge before anything of its contents is read; 0 is no limit. The
// records themselves are not decoded. Cost: one pass of CRC-32C, no allocation.
func Check(b []byte, maxBytes int) (Header, error) {
	h, err := checkWhole(b, maxBytes)
	if err != nil {
		return h, err
	}
	return h, h.check()
}

// checkWhole checks the size, the version and the checksum.
func checkWhole(b []byte, maxBytes int) (Header, error) {
	if maxBytes > 0 && len(b) > maxBytes {
		return Header{}, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(b), maxBytes)
	}
	h, err := ParseHeader(b)
	if err != nil {
		return h, err
	}
	switch {
	case h.Size() > len(b):
		return h, fmt.Errorf("%w: %d bytes of %d", ErrTruncated, len(b), h.Size())
	case h.Size() < len(b):
		return h, fmt.Errorf("%w: %d bytes follow the batch of %d", ErrInvalid, len(b)-h.Size(), h.Size())
	}
	return h, CheckCRC(b, h)
}

// check holds the fields against each other.
func (h Header) check() error {
	switch {
	case h.Count <= 0:
		return fmt.Errorf("%w: %d records, a batch has at least 1", ErrInvalid, h.Count)
	case int64(h.LastOffsetDelta) != int64(h.Count)-1:
		return fmt.Errorf("%w: %d records with last offset delta %d, it must be one less than the count",
			ErrInvalid, h.Count, h.LastOffsetDelta)
	case h.Codec() > Zstd:
		return fmt.Errorf("%w: %v is not a known compression", ErrInvalid, h.Codec())
	case h.ProducerID >= 0 && h.ProducerEpoch < 0:
		return fmt.Errorf("%w: producer %d with epoch %d", ErrInvalid, h.ProducerID, h.ProducerEpoch)
	case h.ProducerID >= 0 && h.BaseSequence < 0 && !h.IsControl():
		return fmt.Errorf("%w: producer %d with sequence %d", ErrInvalid, h.ProducerID, h.BaseSequence)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	// MagicAt is the place of the version in a batch.
	MagicAt = offMagic
	// ChecksumStart is where the bytes that the checksum covers begin.
	ChecksumStart = offAttributes
)

// CRC computes the checksum of a whole batch.
func CRC(batch []byte) uint32 { return UpdateCRC(0, batch[ChecksumStart:]) }

// UpdateCRC adds bytes to a checksum, for a batch that is read in parts. The
// first part, at ChecksumStart, is added to 0.
func UpdateCRC(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// CheckCRC compares the checksum in the header with the contents. b is the whole
// batch that h was parsed from.
func CheckCRC(b []byte, h Header) error {
	if h.Size() > len(b) {
		return fmt.Errorf("%w: %d bytes of %d", ErrTruncated, len(b), h.Size())
	}
	if got := CRC(b[:h.Size()]); got != h.CRC {
		return fmt.Errorf("%w: the header says %08x, the contents have %08x", ErrCRC, h.CRC, got)
	}
	return nil
}

// Stamp writes the base offset and the leader epoch into the batch that b starts
// with. Both lie outside the checksum.
func Stamp(b []byte, baseOffset int64, leaderEpoch int32) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b[offBaseOffset:], uint64(baseOffset))
	binary.BigEndian.PutUint32(b[offLeaderEpoch:], uint32(leaderEpoch))
}

// Split walks the batches that lie one after another in b and yields each as a
// part of b. It looks at nothing but the lengths, so the batches are unchecked.
// Bytes at the end that are not a whole batch come as the last element, with
// ErrTruncated or ErrInvalid.
func Split(b []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(b) > 0 {
			if len(b) < prefix {
				yield(b, fmt.Errorf("%w: %d bytes at the end", ErrTruncated, len(b)))
				return
			}
			length := int32(binary.BigEndian.Uint32(b[offLength:]))
			if length < HeaderSize-prefix {
				// Older versions of the format are shorter and have their
				// version at the same place.
				if len(b) > offMagic && length > offMagic-prefix && b[offMagic] < Magic {
					yield(b, fmt.Errorf("%w: magic %d, only %d is read", ErrMagic, b[offMagic], Magic))
					return
				}
				yield(b, fmt.Errorf("%w: length field %d, it must be at least %d",
					ErrInvalid, length, HeaderSize-prefix))
				return
			}
			size := int64(length) + prefix
			if size > int64(len(b)) {
				yield(b, fmt.Errorf("%w: %d bytes of %d", ErrTruncated, len(b), size))
				return
			}
			if !yield(b[:size:size], nil) {
				return
			}
			b = b[size:]
		}
	}
}
