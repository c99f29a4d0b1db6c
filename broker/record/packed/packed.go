// Package packed checks compressed batches, as producers send them, without
// unpacking those that are like any other. It is apart from package record
// because it needs the codecs.
//
// A header may say that a few bytes hold two thousand million records: each such
// batch takes as many offsets and a segment of its own. How many records there
// can be is told by nothing but unpacking, so this is done, with bounds, for the
// batches that are suspicious, and for no others.
package packed

import (
	"errors"
	"fmt"

	"sidestream/broker/record"
	"sidestream/broker/record/unpack"
)

// leastRecord is how many bytes a record takes at least: its length, attributes,
// two deltas, the lengths of key and value, and the number of headers.
const leastRecord = 7

// leastLimit is what a suspicious batch may unpack to in any case.
const leastLimit = 16 << 20

// Check checks the contents of a batch whose header [record.Check] has passed,
// and returns the header, which may have been corrected in the batch. Records
// that are not compressed are record.CheckRecords' business.
//
// Of a compressed batch the frame of the codec is looked at. It is unpacked, and
// its records are counted, when it has more records than bytes, or more than the
// frame says there is room for, or a highest timestamp below the first one (which
// is how clients look that set none, and is corrected). Records that differ in
// nothing but their offsets take about a byte each, so that honest batches are
// hardly ever suspicious for their count. It is read as far as the unpacker's
// limit, too, when neither the frame nor its blocks tell whether it unpacks to
// more.
//
// An error is [record.ErrInvalid], or [record.ErrTooLarge]: of a batch that
// unpacks to more than the unpacker's limit, and of one that is suspicious for
// its count and unpacks to more than 16 MiB and more than maxBytes, the largest
// batch that may be stored.
func Check(batch []byte, h record.Header, maxBytes int, u unpack.Unpacker) (record.Header, error) {
	codec := h.Codec()
	if codec == record.None {
		return record.CheckRecords(batch, h)
	}
	body := batch[record.HeaderSize:]
	crowded, undated, err := suspect(body, h)
	if err != nil {
		return h, err
	}
	if crowded || undated {
		latest, err := count(codec, body, h, int64(max(maxBytes, leastLimit)))
		switch {
		case err == nil:
			return record.Redate(batch, h, latest), u.Check(codec, body)
		case crowded || !errors.Is(err, record.ErrTooLarge):
			return h, fmt.Errorf("a batch of %d records in %d bytes of %v was unpacked to count them: %w", h.Count, len(body), codec, err)
		}
	}
	return h, u.Check(codec, body)
}

// Unpacks tells whether Check will unpack the batch, which can take a good part
// of a second, if it is whole and intact, which is not checked. How many are
// unpacked at once is for the caller to bound.
func Unpacks(batch []byte, u unpack.Unpacker) bool {
	h, err := record.ParseHeader(batch)
	if err != nil || h.Codec() == record.None || h.Codec() > record.Zstd {
		return false
	}
	body := batch[record.HeaderSize:]
	crowded, undated, err := suspect(body, h)
	return err == nil && (crowded || undated || u.Reads(h.Codec(), body))
}

// suspect tells whether a compressed batch has more records than it can be
// believed to have, and whether its highest timestamp cannot be right. An error
// is one that refuses the batch.
func suspect(body []byte, h record.Header) (crowded, undated bool, err error) {
	s, err := unpack.SizeOf(h.Codec(), body)
	size, exact := s.Declared, s.Exact
	if err != nil {
		return false, false, fmt.Errorf("%w: the %v frame: %w", record.ErrInvalid, h.Codec(), err)
	}
	crowded = size >= 0 && int64(h.Count) > size/leastRecord
	if crowded && exact {
		return false, false, fmt.Errorf("%w: %d records in a batch that unpacks to %d bytes, where each takes %d at least", record.ErrInvalid, h.Count, size, leastRecord)
	}
	return crowded || int64(h.Count) > int64(len(body)), h.MaxTimestamp < h.FirstTimestamp && !h.LogAppendTime(), nil
}
