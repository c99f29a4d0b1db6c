package packed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"sidestream/broker/record"
	"sidestream/broker/record/unpack"
)

// count unpacks a body, at most limit bytes of it, and steps over its records,
// which must be as many as the header has, with the offset deltas 0, 1, 2 …, and
// nothing after them. It ends at the first that is not, so that garbage costs
// little. It returns the highest timestamp of the records.
func count(codec record.Codec, body []byte, h record.Header, limit int64) (latest int64, err error) {
	r, done, err := unpack.Stream(codec, body, limit)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", record.ErrInvalid, err)
	}
	defer done()
	bounded := &io.LimitedReader{R: r, N: limit}
	in := bufio.NewReaderSize(bounded, 32<<10)
	latest = math.MinInt64
	for i := range h.Count {
		delta, err := step(in, int64(i))
		switch {
		case err != nil && (bounded.N <= 0 || errors.Is(err, record.ErrTooLarge)):
			return 0, fmt.Errorf("%w: record %d of %d lies beyond %d bytes; send fewer in a batch", record.ErrTooLarge, i, h.Count, limit)
		case err != nil:
			return 0, fmt.Errorf("%w: record %d of %d: %w", record.ErrInvalid, i, h.Count, err)
		}
		sum := h.FirstTimestamp + delta
		if (sum > h.FirstTimestamp) != (delta > 0) {
			return 0, fmt.Errorf("%w: record %d of %d: timestamp delta %d after %d", record.ErrInvalid, i, h.Count, delta, h.FirstTimestamp)
		}
		latest = max(latest, sum)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("%w: something follows its %d records", record.ErrInvalid, h.Count)
	}
	return latest, nil
}

// step steps over one record, which must have the offset delta, and returns its
// timestamp delta. What is in the buffer as a whole is read there, which is quick.
func step(in *bufio.Reader, want int64) (timestamp int64, err error) {
	b, _ := in.Peek(in.Buffered())
	length, n := binary.Varint(b)
	size := n + int(length)
	if n <= 0 || length < leastRecord-1 || length > int64(len(b)-n) {
		if length, err = binary.ReadVarint(in); err != nil {
			return 0, fmt.Errorf("it is missing: %w", err)
		}
		if length < leastRecord-1 || length > math.MaxInt32 {
			return 0, fmt.Errorf("its length is %d", length)
		}
		if b, err = in.Peek(int(min(length, 1+2*binary.MaxVarintLen64))); err != nil {
			return 0, fmt.Errorf("it is cut short: %w", err)
		}
		size = int(length)
	} else {
		b = b[n:size]
	}
	if timestamp, err = deltas(b, want); err != nil {
		return 0, err
	}
	if _, err := in.Discard(size); err != nil {
		return 0, fmt.Errorf("it is cut short: %w", err)
	}
	return timestamp, nil
}

// deltas reads how a record goes on after its length.
func deltas(r []byte, want int64) (timestamp int64, err error) {
	timestamp, n := binary.Varint(r[1:]) // after the byte of attributes
	if n <= 0 {
		return 0, errors.New("its timestamp delta is cut short")
	}
	if delta, m := binary.Varint(r[1+n:]); m <= 0 || delta != want {
		return 0, fmt.Errorf("offset delta %d where %d is due", delta, want)
	}
	return timestamp, nil
}
