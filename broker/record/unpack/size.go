package unpack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

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

// Size is what a compressed body tells of its size without being unpacked.
type Size struct {
	// Declared is what its frame says, -1 when it says nothing. Frames may lie,
	// and but for Exact others may follow.
	Declared int64
	// Exact says that it cannot unpack to anything but Declared bytes.
	Exact bool
	// Least and Most bound what it can unpack to if it can be at all. They come
	// from the lengths of its blocks, and cannot be lied about.
	Least, Most int64
}

// Over says that the body unpacks to more than limit bytes by its own frame: it
// says so, or its blocks do.
func (s Size) Over(limit int64) bool { return s.Declared > limit || s.Least > limit }

// SizeOf looks at a compressed body, which must begin as its codec has it. It
// reads headers alone: the time goes with the number of blocks, and no memory is
// taken.
func SizeOf(codec record.Codec, b []byte) (s Size, err error) {
	switch codec {
	case record.Gzip:
		return gzipSize(b)
	case record.LZ4:
		return lz4Size(b)
	case record.Zstd:
		return zstdSize(b)
	case record.Snappy:
		return snappySize(b)
	}
	return s, fmt.Errorf("%v is not a known compression", codec)
}

func magicError(b, want []byte) error {
	return fmt.Errorf("it begins with % x, it must be % x", b[:min(len(b), len(want))], want)
}

// gzipRatio is the most that deflate makes of a byte: a match of 258 bytes takes
// two bits at least (RFC 1951).
const gzipRatio = 1032

// gzipSize: the size is at the end, modulo 4 GiB, and of the last member alone.
// Nothing but reading tells more.
func gzipSize(b []byte) (s Size, err error) {
	if !bytes.HasPrefix(b, gzipMagic) {
		return s, magicError(b, gzipMagic)
	}
	const least = 18 // header and trailer
	if len(b) < least {
		return s, fmt.Errorf("%d bytes, an empty one has %d", len(b), least)
	}
	return Size{Declared: int64(binary.LittleEndian.Uint32(b[len(b)-4:])), Most: gzipRatio * int64(len(b))}, nil
}

// lz4Ratio is the most that LZ4 makes of a byte: a match grows by 255 bytes with
// each byte of its length (LZ4 block format).
const lz4Ratio = 255

// lz4Size adds up the blocks of all frames (LZ4 frame format).
func lz4Size(b []byte) (s Size, err error) {
	if !bytes.HasPrefix(b, lz4Magic) && !isSkippable(b) {
		return s, magicError(b, lz4Magic)
	}
	s.Declared = -1
	for first := true; len(b) > 0; {
		if isSkippable(b) {
			b = skipped(b)
			continue
		}
		const (
			descriptor   = 7 // magic, flags, block descriptor, checksum of the header
			hasDict      = 0x01
			contentSum   = 0x04
			hasSize      = 0x08
			blockSum     = 0x10
			leastMaximum = 16 // bits of the block's maximum: 64 KiB is 4 in the descriptor
		)
		if !bytes.HasPrefix(b, lz4Magic) || len(b) < descriptor {
			break // whoever unpacks it finds the fault
		}
		flags, most := b[4], int64(1)<<(leastMaximum+2*(int(b[5]>>4&7)-4))
		if b[5]>>4&7 < 4 {
			break
		}
		head := descriptor
		if flags&hasSize != 0 {
			if head += 8; len(b) < head {
				break
			}
			if first {
				s.Declared = int64(min(binary.LittleEndian.Uint64(b[6:]), math.MaxInt64))
			}
		}
		if flags&hasDict != 0 {
			head += 4
		}
		first = false
		b = after(b, head)
		for ended := false; !ended && len(b) >= 4; {
			word := binary.LittleEndian.Uint32(b)
			stored, n := word&(1<<31) != 0, int64(word&^(1<<31))
			if b, ended = b[4:], word == 0; ended {
				break
			}
			n = min(n, int64(len(b)))
			if stored {
				s.Least, s.Most = s.Least+n, s.Most+n
			} else {
				s.Most += min(most, lz4Ratio*n+lz4Ratio)
			}
			if flags&blockSum != 0 {
				n += 4
			}
			b = after(b, int(n))
		}
		if flags&contentSum != 0 {
			b = after(b, 4)
		}
	}
	return s, nil
}

// zstdBlock is the most that a block of zstd unpacks to (RFC 8878, 3.1.1.2).
const zstdBlock = 128 << 10

// zstdSize adds up the blocks of all frames (RFC 8878).
func zstdSize(b []byte) (s Size, err error) {
	if !bytes.HasPrefix(b, zstdMagic) && !isSkippable(b) {
		return s, magicError(b, zstdMagic)
	}
	declared, all := int64(0), true
	for len(b) > 0 {
		if isSkippable(b) {
			b = skipped(b)
			continue
		}
		var h zstd.Header
		if err := h.Decode(b); err != nil {
			if s.Most == 0 {
				return s, err
			}
			break // whoever unpacks it finds the fault
		}
		b = after(b, h.HeaderSize)
		least, most := int64(0), int64(0)
		for last := false; !last && len(b) >= 3; {
			word := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
			kind, size := word>>1&3, int64(word>>3)
			last, b = word&1 != 0, b[3:]
			switch kind {
			case 0: // as it is
				least, most = least+size, most+size
			case 1: // one byte, so many times
				least, most, size = least+size, most+size, 1
			default:
				most += zstdBlock
			}
			b = after(b, int(size))
		}
		if h.HasCheckSum {
			b = after(b, 4)
		}
		if h.HasFCS { // what does not come out so is an error of its decoder
			fcs := int64(min(h.FrameContentSize, math.MaxInt64/2))
			declared += fcs
			least, most = max(least, fcs), min(most, fcs)
		} else {
			all = false
		}
		s.Least, s.Most = min(s.Least+least, math.MaxInt64/2), s.Most+most
		declared = min(declared, math.MaxInt64/2)
	}
	s.Declared = -1
	if all {
		s.Declared = declared
	}
	return s, nil
}

// after is b without its first n bytes, empty when it has fewer.
func after(b []byte, n int) []byte { return b[min(n, len(b)):] }

func isSkippable(b []byte) bool {
	return len(b) > 4 && b[0]>>4 == 5 && bytes.HasPrefix(b[1:], skipMagic)
}

// skipped is what follows a skippable frame.
func skipped(b []byte) []byte {
	if len(b) < 8 {
		return nil
	}
	return b[min(8+int64(binary.LittleEndian.Uint32(b[4:])), int64(len(b))):]
}

// snappySize: every block begins with its size. Blocks that do not fit the frame
// are left to the reader.
func snappySize(b []byte) (s Size, err error) {
	if !bytes.HasPrefix(b, xerial) {
		n, err := s2.DecodedLen(b)
		return Size{Declared: int64(n), Exact: true, Least: int64(n), Most: int64(n)}, err
	}
	if len(b) < xerialHeader {
		return s, fmt.Errorf("%d bytes, its header has %d", len(b), xerialHeader)
	}
	var sum int64
	for b = b[xerialHeader:]; len(b) > 0; {
		block, rest, ok := nextBlock(b)
		if !ok {
			return Size{Declared: -1, Least: sum, Most: sum}, nil
		}
		n, err := s2.DecodedLen(block)
		if err != nil {
			return Size{Declared: -1, Least: sum, Most: sum}, nil
		}
		sum, b = sum+int64(n), rest
	}
	return Size{Declared: sum, Exact: true, Least: sum, Most: sum}, nil
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
