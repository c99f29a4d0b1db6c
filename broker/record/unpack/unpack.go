// Package unpack unpacks compressed batches within bounds: a megabyte may be made
// to stand for gigabytes, and whoever unpacks it must neither take that memory
// nor more than it has. It is apart from package record because it needs the
// codecs.
package unpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
)

// DefaultLimit is what a batch may unpack to, in bytes, where nothing else is
// set. It is Kafka's largest request within a factor of two: clients bound their
// batches before they compress them, most of them at 1 MiB.
const DefaultLimit = 64 << 20

// Unpacker unpacks to at most Limit bytes a batch. It is safe for concurrent use.
type Unpacker struct{ Limit int64 }

// scratchSize bounds the bodies that are unpacked into memory which is used
// again, and copied from there: that costs less than finding out their size.
const scratchSize = 2 << 20

var scratches = sync.Pool{New: func() any { b := make([]byte, scratchSize+slack); return &b }}

// slack is what zstd's decoder gets beyond what it may yield. At the end of its
// room it fails in ways that do not tell what is wrong; so it is let go a block
// beyond, and what it has made by then tells.
const slack = zstdBlock + 64

// Worst is what unpacking one batch may take of the memory at a time.
func (u Unpacker) Worst() int64 { return max(2*scratchSize, 2*u.Limit+slack) }

// errFull says that a body has more bytes than there is room for.
var errFull = errors.New("it unpacks to more than its frame says")

// Unpack returns what a body unpacks to: memory of its own, which the claim has
// taken for it before, or the body itself where it is not compressed. Where it
// fails the claim has what it had.
//
// An error is [record.ErrTooLarge] when it is more than the limit, which is found
// out in at most twice the limit of memory, and mostly in none; [ErrNoRoom] as
// Take has it; ctx's; and otherwise [record.ErrInvalid], of a body that cannot be
// unpacked.
func (u Unpacker) Unpack(ctx context.Context, c *Claim, codec record.Codec, body []byte) ([]byte, error) {
	if codec == record.None {
		return body, nil
	}
	if len(body) == 0 {
		return []byte{}, nil
	}
	s, err := SizeOf(codec, body)
	if err != nil {
		return nil, fmt.Errorf("%w: the %v frame: %w", record.ErrInvalid, codec, err)
	}
	if s.Over(u.Limit) {
		return nil, u.tooLarge(codec)
	}
	most := min(u.Limit, s.Most)
	guess := most
	if s.Declared >= 0 {
		guess = min(most, s.Declared)
	}
	switch {
	case guess <= scratchSize:
		plain, err := viaScratch(ctx, c, codec, body, guess)
		if !errors.Is(err, errFull) {
			return plain, err
		}
	case s.Declared >= 0 || codec == record.Zstd:
		plain, err := whole(ctx, c, codec, body, guess)
		if !errors.Is(err, errFull) {
			return plain, err
		}
	}
	// The frame has lied, or said nothing: only reading it tells.
	if codec == record.Zstd || codec == record.Snappy {
		if most < u.Limit { // its blocks do not lie
			return nil, fmt.Errorf("%w: %v: %w", record.ErrInvalid, codec, errFull)
		}
		return nil, u.tooLarge(codec)
	}
	n, err := u.count(codec, body)
	if err != nil {
		return nil, err
	}
	return whole(ctx, c, codec, body, n)
}

func (u Unpacker) tooLarge(codec record.Codec) error {
	return fmt.Errorf("%w: a batch of %v that unpacks to more than %d bytes", record.ErrTooLarge, codec, u.Limit)
}

// Check says whether a body unpacks to more than the limit, which is
// [record.ErrTooLarge]; one that cannot be unpacked does not. It reads the body
// as far as the limit when neither its frame nor its blocks tell, with little
// memory; Reads says whether it does.
func (u Unpacker) Check(codec record.Codec, body []byte) error {
	s, err := SizeOf(codec, body)
	switch {
	case codec == record.None || err != nil:
		return nil
	case s.Over(u.Limit):
		return u.tooLarge(codec)
	case !s.open(codec, len(body), u.Limit):
		return nil
	}
	if _, err := u.count(codec, body); errors.Is(err, record.ErrTooLarge) {
		return err
	}
	return nil
}

// Reads says whether Check reads the body.
func (u Unpacker) Reads(codec record.Codec, body []byte) bool {
	s, err := SizeOf(codec, body)
	return codec != record.None && err == nil && !s.Over(u.Limit) && s.open(codec, len(body), u.Limit)
}

// open says that only reading tells whether the limit is kept. The size that gzip
// has at its end is believed unless it is less than what is packed, as it is of
// several members, and of more than 4 GiB: gzip adds five bytes to 16 KiB at most
// where it cannot pack them.
func (s Size) open(codec record.Codec, packed int, limit int64) bool {
	const around = 64 << 10 // names and comments in its header, and the trailer
	if s.Most <= limit || s.Exact {
		return false
	}
	return codec != record.Gzip || s.Declared+s.Declared>>10+around < int64(packed)
}

// count reads a body to its end, or to the limit, and keeps nothing.
func (u Unpacker) count(codec record.Codec, body []byte) (int64, error) {
	r, done, err := Stream(codec, body, u.Limit)
	if err != nil {
		return 0, fmt.Errorf("%w: %v: %w", record.ErrInvalid, codec, err)
	}
	defer done()
	n, err := io.Copy(io.Discard, io.LimitReader(r, u.Limit+1))
	switch {
	case n > u.Limit, errors.Is(err, record.ErrTooLarge), errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return 0, u.tooLarge(codec)
	case err != nil:
		return 0, fmt.Errorf("%w: %v: %w", record.ErrInvalid, codec, err)
	}
	return n, nil
}

// viaScratch unpacks at most n bytes into the scratch, and copies what came.
func viaScratch(ctx context.Context, c *Claim, codec record.Codec, body []byte, n int64) ([]byte, error) {
	if err := c.Take(ctx, 2*n); err != nil {
		return nil, err
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	plain, err := into((*scratch)[:0], codec, body, int(n))
	if err != nil {
		c.Give(2 * n)
		return nil, err
	}
	plain = slices.Clone(plain)
	c.Give(2*n - int64(len(plain)))
	return plain, nil
}

// whole unpacks at most n bytes into memory of their own.
func whole(ctx context.Context, c *Claim, codec record.Codec, body []byte, n int64) ([]byte, error) {
	room := n
	if codec == record.Zstd {
		room += slack
	}
	if err := c.Take(ctx, room); err != nil {
		return nil, err
	}
	plain, err := into(make([]byte, 0, room), codec, body, int(n))
	if err != nil {
		c.Give(room)
		return nil, err
	}
	if is := int64(len(plain)); is < room-room/4 && c.Take(ctx, is) == nil {
		plain = slices.Clone(plain) // or it would keep what it does not need
		c.Give(room)
	}
	return plain, nil
}

// into unpacks at most n bytes into dst, which is empty and has room for them and
// for the slack of zstd. It is errFull when there is more.
func into(dst []byte, codec record.Codec, body []byte, n int) ([]byte, error) {
	var err error
	switch codec {
	case record.Gzip:
		r := gzips.Get().(*gzip.Reader)
		defer gzips.Put(r)
		if err = r.Reset(bytes.NewReader(body)); err == nil {
			dst, err = fill(dst[:0:n], r)
		}
	case record.LZ4:
		r := lz4s.Get().(*lz4.Reader)
		defer func() {
			r.Reset(nil) // its blocks go back
			lz4s.Put(r)
		}()
		r.Reset(bytes.NewReader(body))
		dst, err = fill(dst[:0:n], r)
	case record.Zstd:
		dst, err = zstds().DecodeAll(body, dst)
		if len(dst) > n || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			err = errFull
		}
	case record.Snappy:
		dst, err = fillBlocks(dst[:0:n], body)
	default:
		err = fmt.Errorf("%v is not a known compression", codec)
	}
	if err != nil && !errors.Is(err, errFull) {
		err = fmt.Errorf("%w: %v: %w", record.ErrInvalid, codec, err)
	}
	return dst, err
}

var (
	gzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
	lz4s  = sync.Pool{New: func() any { return lz4.NewReader(nil) }}
	// What bounds zstd is the room that it is given. Its window takes no memory
	// when all is unpacked at once, and the highest levels declare large ones.
	zstds = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(math.MaxInt32), zstd.WithDecoderMaxWindow(math.MaxInt32), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic("unpack: options of the zstd decoder: " + err.Error())
		}
		return d
	})
)

// fill reads all of r into the capacity of dst.
func fill(dst []byte, r io.Reader) ([]byte, error) {
	for {
		room := dst[len(dst):cap(dst)]
		full := len(room) == 0
		var one [1]byte
		if full { // it must end here
			room = one[:]
		}
		n, err := r.Read(room)
		switch {
		case full && n > 0:
			return nil, errFull
		case errors.Is(err, io.EOF):
			return dst[:len(dst)+n], nil
		case err != nil:
			return nil, err
		}
		dst = dst[:len(dst)+n]
	}
}

// fillBlocks unpacks snappy into the capacity of dst.
func fillBlocks(dst, body []byte) ([]byte, error) {
	rest, bare := body, !bytes.HasPrefix(body, xerial)
	if !bare {
		rest = body[min(xerialHeader, len(body)):]
	}
	for len(rest) > 0 {
		block, ok := rest, true
		if bare {
			rest = nil
		} else if block, rest, ok = nextBlock(rest); !ok {
			return nil, io.ErrUnexpectedEOF
		}
		n, err := s2.DecodedLen(block)
		if err != nil {
			return nil, err
		}
		if n > cap(dst)-len(dst) {
			return nil, errFull
		}
		if _, err := s2.Decode(dst[len(dst):len(dst):len(dst)+n], block); err != nil {
			return nil, err
		}
		dst = dst[:len(dst)+n]
	}
	return dst, nil
}
