package broker

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
)

// maxUnpacked bounds what one batch may unpack to. Batches are unpacked only to look for a time inside one, and a small
// batch may be made to unpack to gigabytes.
const maxUnpacked = 64 << 20

// unpacking holds one token for each batch that may be unpacked at once.
var unpacking = make(chan struct{}, 2)

var errUnpacksTooLarge = errors.New("batch unpacks to more than is allowed")

// decompress gives the records of a compressed batch, for a search by time.
func decompress(codec record.Codec, src []byte) ([]byte, error) {
	unpacking <- struct{}{}
	defer func() { <-unpacking }()
	out, err := unpack(codec, src, maxUnpacked)
	if err != nil {
		return nil, fmt.Errorf("unpacking %v: %w", codec, err)
	}
	return out, nil
}

// unpack unpacks to at most limit bytes.
func unpack(codec record.Codec, src []byte, limit int) ([]byte, error) {
	switch codec {
	case record.None:
		return src, nil
	case record.Gzip:
		r, err := gzip.NewReader(bytes.NewReader(src))
		if err != nil {
			return nil, err
		}
		return readBounded(r, limit)
	case record.Snappy:
		return unpackSnappy(src, limit)
	case record.LZ4:
		return readBounded(lz4.NewReader(bytes.NewReader(src)), limit)
	case record.Zstd:
		r, err := zstd.NewReader(bytes.NewReader(src), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(limit)))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return readBounded(r, limit)
	default:
		return nil, fmt.Errorf("codec %d is not known", codec)
	}
}

func readBounded(r io.Reader, limit int) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(out) > limit {
		err = errUnpacksTooLarge
	}
	return out, err
}

// xerial is the frame that Java's snappy library puts around its blocks: this magic, two version numbers of four bytes,
// then blocks, each with its length in four bytes (snappy-java, SnappyOutputStream).
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func unpackSnappy(src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerial) {
		return unpackBlock(nil, src, limit)
	}
	const header = 16
	if len(src) < header {
		return nil, io.ErrUnexpectedEOF
	}
	var out []byte
	for src = src[header:]; len(src) > 0; {
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		src = src[4:]
		if n > int64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if out, err = unpackBlock(out, src[:n], limit); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return out, nil
}

// unpackBlock appends one block of snappy (which s2 reads too).
func unpackBlock(out, block []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	if len(out)+n > limit {
		return nil, errUnpacksTooLarge
	}
	b, err := s2.Decode(nil, block)
	if err != nil {
		return nil, err
	}
	return append(out, b...), nil
}
