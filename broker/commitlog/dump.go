package commitlog

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Entry is one batch of a segment file.
type Entry struct {
	record.Header
	Pos int64  // in the file
	Raw []byte // the whole batch
}

// ReadSegment walks a segment file that may be anybody's: not open, copied,
// damaged, still being written. Each sound batch comes with its bytes. What is
// not sound comes as a [*CorruptError] with its place and reason, after which
// the walk goes on at the next sound batch. An error of another kind ends it.
// Nothing is changed.
func ReadSegment(fsys disk.FS, path string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer f.Close()
		size, err := f.Size()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		readSegment(f, path, size, yield)
	}
}

func readSegment(f disk.File, path string, size int64, yield func(Entry, error) bool) {
	w := newWalker(f, 0, size, &checkWindows)
	defer w.done()
	o := bounds{0, 1<<63 - 1}
	for {
		e, err := readEntry(w, o)
		if err == io.EOF {
			return
		}
		if err == nil {
			if !yield(e, nil) {
				return
			}
			o.next = e.NextOffset()
			w.skip(e.Header)
			continue
		}
		if isIOError(err) {
			yield(Entry{}, err)
			return
		}
		d := &CorruptError{Path: path, Pos: w.pos, Offset: o.next, Next: o.next, Cause: err}
		if w.resync(o) {
			if h, err := w.header(); err == nil {
				d.Next, o.next = h.BaseOffset, h.BaseOffset
			}
		}
		d.End = w.pos
		if !yield(Entry{Pos: d.Pos}, d) {
			return
		}
	}
}

func readEntry(w *walker, o bounds) (Entry, error) {
	h, err := w.header()
	if err != nil {
		return Entry{}, err
	}
	if err := o.check(h); err != nil {
		return Entry{}, err
	}
	raw := make([]byte, h.Size())
	if n, err := w.f.ReadAt(raw, w.pos); n < len(raw) {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: %d bytes of %d", record.ErrTruncated, n, len(raw))
		}
		return Entry{}, err
	}
	if err := record.CheckCRC(raw, h); err != nil {
		return Entry{}, err
	}
	return Entry{Header: h, Pos: w.pos, Raw: raw}, nil
}
