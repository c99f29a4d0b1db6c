package commitlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"sidestream/broker/record"
)

// Sizes of the window that a walk reads through. Walking headers jumps from
// batch to batch: a page is enough where they are small, and no more than the
// header is read where they are large. Checking reads everything.
const (
	headerWindow = 4 << 10
	checkWindow  = 256 << 10
)

var (
	headerWindows = sync.Pool{New: func() any { b := make([]byte, headerWindow); return &b }}
	checkWindows  = sync.Pool{New: func() any { b := make([]byte, checkWindow); return &b }}
)

// walker goes from batch to batch through a part of a segment file.
type walker struct {
	f   io.ReaderAt
	pos int64 // of the batch that header reads
	end int64 // where the part ends

	pool *sync.Pool
	buf  *[]byte
	at   int64 // file position of the window
	n    int   // bytes in the window
}

// newWalker starts at pos. Call done when it is not needed any more.
func newWalker(f io.ReaderAt, pos, end int64, windows *sync.Pool) *walker {
	return &walker{f: f, pos: pos, end: end, pool: windows, buf: windows.Get().(*[]byte)}
}

func (w *walker) done() { w.pool.Put(w.buf) }

// window returns the n bytes at pos, which must fit into the window.
func (w *walker) window(pos int64, n int) ([]byte, error) {
	if pos < w.at || pos+int64(n) > w.at+int64(w.n) {
		want := int(min(int64(len(*w.buf)), w.end-pos))
		if w.pool == &headerWindows && (w.n == 0 || pos-w.at >= headerWindow || pos < w.at) {
			want = n // a jump
		}
		got, err := w.f.ReadAt((*w.buf)[:want], pos)
		w.at, w.n = pos, got
		if got < n {
			if err == nil || err == io.EOF {
				err = fmt.Errorf("%w: the file ends at %d", record.ErrTruncated, pos+int64(got))
			}
			return nil, err
		}
	}
	from := pos - w.at
	return (*w.buf)[from : from+int64(n)], nil
}

// header reads the header at the walker's position, io.EOF at the end.
func (w *walker) header() (record.Header, error) {
	if w.pos >= w.end {
		return record.Header{}, io.EOF
	}
	if left := w.end - w.pos; left < record.HeaderSize {
		return record.Header{}, fmt.Errorf("%w: %d bytes, a header has %d", record.ErrTruncated, left, record.HeaderSize)
	}
	b, err := w.window(w.pos, record.HeaderSize)
	if err != nil {
		return record.Header{}, err
	}
	h, err := record.ParseHeader(b)
	if err != nil {
		return h, err
	}
	if left := w.end - w.pos; int64(h.Size()) > left {
		return h, fmt.Errorf("%w: %d bytes of %d", record.ErrTruncated, left, h.Size())
	}
	return h, nil
}

// skip goes behind the batch whose header was read.
func (w *walker) skip(h record.Header) { w.pos += int64(h.Size()) }

// check compares the checksum of the batch at the walker's position with its
// contents, reading them in parts.
func (w *walker) check(h record.Header) error {
	crc := uint32(0)
	end := w.pos + int64(h.Size())
	for pos := w.pos + record.ChecksumStart; pos < end; {
		n := int(min(end-pos, int64(len(*w.buf))))
		if inside := w.at + int64(w.n) - pos; pos >= w.at && inside > 0 {
			n = int(min(int64(n), inside)) // what the window has of it first
		}
		b, err := w.window(pos, n)
		if err != nil {
			return err
		}
		crc = record.UpdateCRC(crc, b)
		pos += int64(n)
	}
	if crc != h.CRC {
		return fmt.Errorf("%w: the header says %08x, the contents have %08x", record.ErrCRC, h.CRC, crc)
	}
	return nil
}

// errOffsets: a batch whose offsets cannot follow those before it.
var errOffsets = errors.New("offsets out of order")

// bounds are the offsets that a batch may have where a walk stands.
type bounds struct {
	next  int64 // lowest: the one after the batch before
	limit int64 // highest + 1
}

func (o bounds) check(h record.Header) error {
	if h.BaseOffset < o.next || h.NextOffset() > o.limit {
		return fmt.Errorf("%w: %d to %d where %d to %d is possible",
			errOffsets, h.BaseOffset, h.LastOffset(), o.next, o.limit-1)
	}
	return nil
}

// scan walks whole batches with their checksums, calling found for each, until
// the walker's end or the first batch that is not sound, whose fault is the
// error. The walker then stands where the sound part ends.
func (w *walker) scan(o *bounds, found func(h record.Header, pos int64)) error {
	for {
		h, err := w.header()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = o.check(h)
		}
		if err == nil {
			err = w.check(h)
		}
		if err == nil && h.BaseOffset > o.next {
			err = w.checkHole(h, *o)
		}
		if err != nil {
			return err
		}
		found(h, w.pos)
		o.next = h.NextOffset()
		w.skip(h)
	}
}

// checkHole looks at a batch that begins above the offset that is next. A log
// may have holes. But the base offset lies outside the checksum, and when the
// batch after this one continues as if there were no hole, the base offset is
// what is wrong.
func (w *walker) checkHole(h record.Header, o bounds) error {
	after := *w
	after.skip(h)
	next, err := after.header()
	w.at, w.n = after.at, after.n // they share the window
	if err != nil {
		return nil // nothing to compare with, or found bad in its turn
	}
	if next.BaseOffset == o.next+int64(h.LastOffsetDelta)+1 {
		return fmt.Errorf("%w: base offset %d, but the batches around it leave %d", errOffsets, h.BaseOffset, o.next)
	}
	return nil
}

// resync looks for the next sound batch behind the unsound one at the walker's
// position and goes there; to the end if there is none. It reports false then.
func (w *walker) resync(o bounds) bool {
	bad := w.pos
	// The length may be all right, the damage inside.
	if h, err := w.header(); err == nil {
		w.skip(h)
		if w.pos == w.end || w.sound(o) {
			return w.pos < w.end
		}
	}
	for w.pos = bad + 1; w.end-w.pos >= record.HeaderSize; w.pos++ {
		// Almost every position fails at the version: see that cheaply.
		b, err := w.window(w.pos, record.HeaderSize)
		if err != nil {
			break
		}
		if b[record.MagicAt] == record.Magic && w.sound(o) {
			return true
		}
	}
	w.pos = w.end
	return false
}

// sound tells whether a sound batch is at the walker's position.
func (w *walker) sound(o bounds) bool {
	h, err := w.header()
	return err == nil && o.check(h) == nil && w.check(h) == nil
}

// inspect scans like scan, but goes on behind damage. It returns the damaged
// stretches; path is for their description.
func (w *walker) inspect(path string, o *bounds, found func(h record.Header, pos int64)) []*CorruptError {
	var damage []*CorruptError
	for {
		err := w.scan(o, found)
		if err == nil {
			return damage
		}
		d := &CorruptError{Path: path, Pos: w.pos, Offset: o.next, Cause: err}
		d.Next = o.limit
		if w.resync(*o) {
			if h, err := w.header(); err == nil {
				d.Next = h.BaseOffset
			}
		}
		d.End = w.pos
		o.next = d.Next
		damage = append(damage, d)
	}
}
