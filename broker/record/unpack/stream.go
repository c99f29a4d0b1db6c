package unpack

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
)

// Stream unpacks a body as it is read, in memory that does not grow with it but
// for snappy, whose blocks are unpacked whole: one of more than limit bytes is
// [record.ErrTooLarge], as is a zstd window of more. done must be called at the
// end.
func Stream(codec record.Codec, body []byte, limit int64) (r io.Reader, done func(), err error) {
	done = func() {}
	switch codec {
	case record.Gzip:
		r, err = gzip.NewReader(bytes.NewReader(body))
	case record.LZ4:
		r = lz4.NewReader(bytes.NewReader(body))
	case record.Zstd:
		var d *zstd.Decoder
		d, err = zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(limit)))
		if err == nil {
			r, done = d, d.Close
		}
	case record.Snappy:
		r = newBlocks(body, limit)
	default:
		err = fmt.Errorf("%v is not a known compression", codec)
	}
	return r, done, err
}

// blocks reads snappy, block by block.
type blocks struct {
	rest  []byte // blocks that are still packed
	out   []byte // what is unpacked and not read yet
	buf   []byte
	bare  bool // rest is one block without a frame
	limit int64
}

func newBlocks(b []byte, limit int64) *blocks {
	if !bytes.HasPrefix(b, xerial) {
		return &blocks{rest: b, bare: true, limit: limit}
	}
	return &blocks{rest: b[min(xerialHeader, len(b)):], limit: limit}
}

func (b *blocks) Read(p []byte) (int, error) {
	for len(b.out) == 0 {
		if len(b.rest) == 0 {
			return 0, io.EOF
		}
		block, rest, ok := b.rest, []byte(nil), true
		if !b.bare {
			block, rest, ok = nextBlock(b.rest)
		}
		if !ok {
			return 0, io.ErrUnexpectedEOF
		}
		n, err := s2.DecodedLen(block)
		if err != nil {
			return 0, err
		}
		if int64(n) > b.limit {
			return 0, fmt.Errorf("%w: a block unpacks to %d bytes", record.ErrTooLarge, n)
		}
		if b.buf, err = s2.Decode(b.buf[:cap(b.buf)], block); err != nil {
			return 0, err
		}
		b.out, b.rest = b.buf, rest
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}
