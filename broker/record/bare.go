package record

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// Bare is one record of a batch, as far as compaction looks into it. Its slices
// are parts of the bytes that it was decoded from.
type Bare struct {
	OffsetDelta int32
	Timestamp   int64  // milliseconds since 1970
	Key         []byte // nil: none
	Tombstone   bool   // it has no value

	tail []byte // from the length of the key on
}

// BareRecords walks the records of a batch like [Records], without allocating
// for their headers, which it does not check.
func BareRecords(decompressed []byte, h Header) iter.Seq2[Bare, error] {
	return func(yield func(Bare, error) bool) {
		b, last := decompressed, int32(-1)
		for i := range h.Count {
			r, rest, err := decodeBare(b, h)
			if err == nil && r.OffsetDelta <= last {
				err = fmt.Errorf("%w: offset delta %d after %d", ErrInvalid, r.OffsetDelta, last)
			}
			if err != nil {
				yield(Bare{}, fmt.Errorf("record %d of %d: %w", i, h.Count, err))
				return
			}
			if !yield(r, nil) {
				return
			}
			b, last = rest, r.OffsetDelta
		}
		if len(b) > 0 {
			yield(Bare{}, fmt.Errorf("%w: %d bytes after its %d records", ErrInvalid, len(b), h.Count))
		}
	}
}

func decodeBare(b []byte, h Header) (r Bare, rest []byte, err error) {
	length, n := binary.Varint(b)
	if n <= 0 {
		return r, nil, fmt.Errorf("%w: no length", ErrTruncated)
	}
	b = b[n:]
	if length < 0 || length > int64(len(b)) {
		return r, nil, fmt.Errorf("%w: length %d with %d bytes left", ErrTruncated, length, len(b))
	}
	d := decoder{b: b[:length]}
	d.byte() // attributes, unused by the format so far
	timestamp, offset := d.varint(), d.varint()
	r.tail = d.b
	r.Key = d.bytes()
	r.Tombstone = d.bytes() == nil
	switch {
	case d.err != nil:
		return r, nil, d.err
	case offset < 0 || offset > int64(h.LastOffsetDelta):
		return r, nil, fmt.Errorf("%w: offset delta %d, the batch ends at %d", ErrInvalid, offset, h.LastOffsetDelta)
	}
	r.OffsetDelta = int32(offset)
	r.Timestamp = h.FirstTimestamp + timestamp
	if h.LogAppendTime() {
		r.Timestamp = h.MaxTimestamp
	}
	return r, b[length:], nil
}

// Append encodes the record for a batch with that first timestamp; key, value
// and headers stay as they were, to the byte.
func (r Bare) Append(b []byte, firstTimestamp int64) []byte {
	var head [1 + 2*binary.MaxVarintLen64]byte
	h := binary.AppendVarint(head[:1], r.Timestamp-firstTimestamp)
	h = binary.AppendVarint(h, int64(r.OffsetDelta))
	b = binary.AppendVarint(b, int64(len(h)+len(r.tail)))
	b = append(b, h...)
	return append(b, r.tail...)
}

// AppendBatch encodes a batch: the header, whose length and checksum are set,
// and the records, compressed if the header says so.
func AppendBatch(b []byte, h Header, body []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, HeaderSize)...)
	b = append(b, body...)
	p := b[at:]
	be := binary.BigEndian
	be.PutUint64(p[offBaseOffset:], uint64(h.BaseOffset))
	be.PutUint32(p[offLength:], uint32(len(p)-prefix))
	be.PutUint32(p[offLeaderEpoch:], uint32(h.LeaderEpoch))
	p[offMagic] = Magic
	be.PutUint16(p[offAttributes:], uint16(h.Attributes))
	be.PutUint32(p[offLastOffsetDelta:], uint32(h.LastOffsetDelta))
	be.PutUint64(p[offFirstTimestamp:], uint64(h.FirstTimestamp))
	be.PutUint64(p[offMaxTimestamp:], uint64(h.MaxTimestamp))
	be.PutUint64(p[offProducerID:], uint64(h.ProducerID))
	be.PutUint16(p[offProducerEpoch:], uint16(h.ProducerEpoch))
	be.PutUint32(p[offBaseSequence:], uint32(h.BaseSequence))
	be.PutUint32(p[offCount:], uint32(h.Count))
	be.PutUint32(p[offCRC:], CRC(p))
	return b
}

// CheckKeys tells whether every record of a batch has a key, as a compacted
// topic needs; otherwise the error is an ErrInvalid that names the first one
// without. decompressed is what follows the batch's header, after decompression.
func CheckKeys(decompressed []byte, h Header) error {
	for r, err := range BareRecords(decompressed, h) {
		if err != nil {
			return err
		}
		if r.Key == nil {
			return fmt.Errorf("%w: record %d of %d has no key, and the topic is compacted by key", ErrInvalid, r.OffsetDelta, h.Count)
		}
	}
	return nil
}

// CheckStored is [Check] for a batch that a log has, which compaction may have
// thinned out: fewer records than offsets, or none.
func CheckStored(b []byte, maxBytes int) (Header, error) {
	h, err := checkWhole(b, maxBytes)
	switch {
	case err != nil:
		return h, err
	case h.Count < 0 || int64(h.Count) > int64(h.LastOffsetDelta)+1:
		return h, fmt.Errorf("%w: %d records with last offset delta %d", ErrInvalid, h.Count, h.LastOffsetDelta)
	case h.Codec() > Zstd:
		return h, fmt.Errorf("%w: %v is not a known compression", ErrInvalid, h.Codec())
	}
	return h, nil
}
