package record

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// Record is one record of a batch. Its slices are parts of the bytes that it was
// decoded from.
type Record struct {
	Offset    int64
	Timestamp int64  // milliseconds since 1970
	Key       []byte // nil: none
	Value     []byte // nil: none (a tombstone in a compacted topic)
	Headers   []RecordHeader
}

// RecordHeader is one header of a record.
type RecordHeader struct {
	Key   string
	Value []byte // nil: none
}

// Records walks the records of a batch. decompressed is what follows the batch's
// header, after decompression, which is the caller's. A record that cannot be
// decoded, or a count that does not fit, comes as the last element with
// ErrInvalid or ErrTruncated.
func Records(decompressed []byte, h Header) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		b := decompressed
		for i := range h.Count {
			r, rest, err := decode(b, h)
			if err != nil {
				yield(Record{}, fmt.Errorf("record %d of %d: %w", i, h.Count, err))
				return
			}
			if !yield(r, nil) {
				return
			}
			b = rest
		}
		if len(b) > 0 {
			yield(Record{}, fmt.Errorf("%w: %d bytes after its %d records", ErrInvalid, len(b), h.Count))
		}
	}
}

// decode reads the record that b starts with.
func decode(b []byte, h Header) (r Record, rest []byte, err error) {
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
	r.Offset = h.BaseOffset + offset
	r.Timestamp = h.FirstTimestamp + timestamp
	if h.LogAppendTime() {
		r.Timestamp = h.MaxTimestamp
	}
	r.Key = d.bytes()
	r.Value = d.bytes()
	count := d.varint()
	// A header takes two bytes at least, which bounds what a lie can allocate.
	if d.err == nil && (count < 0 || count > int64(len(d.b))/2) {
		return r, nil, fmt.Errorf("%w: %d headers in %d bytes", ErrInvalid, count, len(d.b))
	}
	if d.err == nil && count > 0 {
		r.Headers = make([]RecordHeader, 0, count)
		for range count {
			r.Headers = append(r.Headers, RecordHeader{Key: string(d.bytes()), Value: d.bytes()})
		}
	}
	switch {
	case d.err != nil:
		return r, nil, d.err
	case len(d.b) > 0:
		return r, nil, fmt.Errorf("%w: %d bytes after its last field", ErrInvalid, len(d.b))
	case offset < 0 || offset > int64(h.LastOffsetDelta):
		return r, nil, fmt.Errorf("%w: offset delta %d, the batch ends at %d", ErrInvalid, offset, h.LastOffsetDelta)
	}
	return r, b[length:], nil
}

// decoder takes fields off a record; the first failure sticks.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) byte() {
	if d.err == nil && len(d.b) == 0 {
		d.err = fmt.Errorf("%w: a field is missing", ErrTruncated)
	}
	if d.err == nil {
		d.b = d.b[1:]
	}
}

func (d *decoder) varint() int64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.err = fmt.Errorf("%w: a number is cut short", ErrTruncated)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes reads a length and as many bytes; a length of -1 is nil.
func (d *decoder) bytes() []byte {
	n := d.varint()
	switch {
	case d.err != nil || n == -1:
		return nil
	case n < 0 || n > int64(len(d.b)):
		d.err = fmt.Errorf("%w: a field of %d bytes with %d left", ErrInvalid, n, len(d.b))
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}
