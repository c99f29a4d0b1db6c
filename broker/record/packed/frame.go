package packed

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"sidestream/broker/record"
)

// What the frames of codecs begin with.
var (
	gzipMagic = []byte{0x1f, 0x8b, 8}          // RFC 1952, with deflate
	lz4Magic  = []byte{0x04, 0x22, 0x4d, 0x18} // LZ4 frame format
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd} // RFC 8878
	skipMagic = []byte{0x2a, 0x4d, 0x18}       // after 50 to 5f, in both: a frame without contents
	// xerial is what Java's snappy library puts around its blocks: this magic,
	// two version numbers of four bytes, then blocks, each with its length in
	// four bytes (snappy-java, SnappyOutputStream).
	xerial = []byte("\x82SNAPPY\x00")
)

const xerialHeader = 16

// sizeOf looks at how a compressed body begins, which must be as its codec has
// it, and tells to how many bytes it unpacks, -1 when the frame does not say. Only
// when it is exact is that all: other frames may be followed by more.
func sizeOf(codec record.Codec, b []byte) (size int64, exact bool, err error) {
	switch codec {
	case record.Gzip:
		size, err = gzipSize(b)
	case record.LZ4:
		size, err = lz4Size(b)
	case record.Zstd:
		size, err = zstdSize(b)
	case record.Snappy:
		return snappySize(b)
	default:
		return -1, false, fmt.Errorf("%v is not a known compression", codec)
	}
	return size, false, err
}

func magicError(b, want []byte) error {
	return fmt.Errorf("it begins with % x, it must be % x", b[:min(len(b), len(want))], want)
}

// gzipSize: the size is at the end, modulo 4 GiB.
func gzipSize(b []byte) (int64, error) {
	if !bytes.HasPrefix(b, gzipMagic) {
		return -1, magicError(b, gzipMagic)
	}
	const least = 18 // header and trailer
	if len(b) < least {
		return -1, fmt.Errorf("%d bytes, an empty one has %d", len(b), least)
	}
	return int64(binary.LittleEndian.Uint32(b[len(b)-4:])), nil
}

// lz4Size: the size follows two bytes of flags if one of them says so.
func lz4Size(b []byte) (int64, error) {
	const flags, sized, at = 4, 0x08, 6
	switch {
	case isSkippable(b):
		return -1, nil
	case !bytes.HasPrefix(b, lz4Magic):
		return -1, magicError(b, lz4Magic)
	case len(b) < at+8 || b[flags]&sized == 0:
		return -1, nil
	}
	return int64(binary.LittleEndian.Uint64(b[at:])), nil
}

func zstdSize(b []byte) (int64, error) {
	if isSkippable(b) {
		return -1, nil
	}
	if !bytes.HasPrefix(b, zstdMagic) {
		return -1, magicError(b, zstdMagic)
	}
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return -1, err
	}
	if !h.HasFCS {
		return -1, nil
	}
	return int64(h.FrameContentSize), nil
}

func isSkippable(b []byte) bool {
	return len(b) > 4 && b[0]>>4 == 5 && bytes.HasPrefix(b[1:], skipMagic)
}

// snappySize: every block begins with its size. Blocks that do not fit the frame
// are left to the reader.
func snappySize(b []byte) (size int64, exact bool, err error) {
	if !bytes.HasPrefix(b, xerial) {
		n, err := s2.DecodedLen(b)
		return int64(n), true, err
	}
	if len(b) < xerialHeader {
		return -1, false, fmt.Errorf("%d bytes, its header has %d", len(b), xerialHeader)
	}
	for b = b[xerialHeader:]; len(b) > 0; {
		block, rest, ok := nextBlock(b)
		if !ok {
			return -1, false, nil
		}
		n, err := s2.DecodedLen(block)
		if err != nil {
			return -1, false, nil
		}
		size, b = size+int64(n), rest
	}
	return size, true, nil
}

// nextBlock takes a block off a xerial frame.
func nextBlock(b []byte) (block, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int64(binary.BigEndian.Uint32(b))
	if b = b[4:]; n > int64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}
