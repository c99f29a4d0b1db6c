package commitlog

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Slice is a run of whole batches in a segment file, to be sent with sendfile
// from File.Fd() or copied with ReadAll. It holds its segment until Release: the
// file stays open and readable even when retention removes it meanwhile. The
// zero Slice is empty.
type Slice struct {
	File disk.File // nil when empty
	Pos  int64     // where the first batch begins in the file
	Size int       // bytes
	Base int64     // base offset of the first batch, at or below what was asked for
	Next int64     // offset after the last batch: where to read on

	log *Log
	seg *segment
}

// Empty tells whether there is nothing to read.
func (s *Slice) Empty() bool { return s.Size == 0 }

// Release gives the segment back. The slice must not be used after it; a second
// call does nothing, but a copy of the slice must not be released as well.
func (s *Slice) Release() {
	if s.seg != nil {
		s.log.release(s.seg)
		s.seg, s.File = nil, nil
	}
}

// ReadAll reads the bytes.
func (s *Slice) ReadAll() ([]byte, error) {
	b := make([]byte, s.Size)
	if s.Size == 0 {
		return b, nil
	}
	n, err := s.File.ReadAt(b, s.Pos)
	if n == len(b) {
		return b, nil
	}
	if err == nil || err == io.EOF { // truncated by a change of leader since
		err = io.ErrUnexpectedEOF
	}
	return b[:n], err
}

// Read finds the batches from the one that contains offset on: whole ones, at
// most maxBytes of them but at least one however large it is, none that reaches
// upTo (which is exclusive, a batch boundary such as the high watermark) or
// above, and only from one segment. It reads headers only; the caller must
// Release the slice.
//
// At the end, or at upTo, the slice is empty. Below the log's start and above
// its end the error is ErrOutOfRange; inside damage that is known or found on
// the way it is a [*CorruptError].
func (l *Log) Read(offset int64, maxBytes int, upTo int64) (Slice, error) {
	for tries := 0; ; {
		s, err := l.read(offset, maxBytes, upTo)
		if l.overtaken(err) {
			continue
		}
		var doubt *doubtError
		if !errors.As(err, &doubt) {
			return s, err
		}
		if tries > 0 { // it was just repaired: this is beyond us
			return Slice{}, l.corruptAt(doubt, offset)
		}
		if err := l.repair(doubt); err != nil {
			return Slice{}, err
		}
		tries++
	}
}

// doubtError says that a segment and its indexes contradict each other or
// themselves. Which of them is wrong takes a look at the whole segment.
type doubtError struct {
	seg   *segment
	pos   int64
	cause error
}

func (e *doubtError) Error() string {
	return fmt.Sprintf("commitlog: segment %d at %d: %v", e.seg.base, e.pos, e.cause)
}

func (e *doubtError) Unwrap() error { return e.cause }

// corruptAt is the error for a doubt that a repair did not settle.
func (l *Log) corruptAt(doubt *doubtError, offset int64) error {
	return &CorruptError{
		Path: l.path(doubt.seg.base, logSuffix), Pos: doubt.pos, End: doubt.pos,
		Offset: offset, Next: offset + 1, Cause: doubt.cause,
	}
}

// view is what a read knows of a segment from one look under the mutex. It
// holds a reference.
type view struct {
	*segment
	file     disk.File
	size     int64 // bytes that may be read
	next     int64 // offset after them; the next segment's base for a closed one
	active   bool
	damage   []*CorruptError
	offsets  index
	times    index
	checked  bool
	interval int
	cuts     int
	near     indexPart // of the offset index, where a recent read found its end
}

// viewAt takes a view of the segment at index i. Call with mu held.
func (l *Log) viewAt(i int) view {
	s := l.segments[i]
	s.refs++
	v := view{
		segment: s, file: s.file, size: s.size, next: l.end, active: i == len(l.segments)-1,
		damage: s.damage, offsets: s.offsets, times: s.times, checked: s.checked, interval: l.cfg.IndexInterval, cuts: l.cuts,
		near: l.hints.part(s.base),
	}
	if !v.active {
		v.next = l.segments[i+1].base
	}
	return v
}

// find is the index of the segment that holds the offset. Call with mu held.
func (l *Log) find(offset int64) int {
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].base > offset })
	return max(0, i-1)
}

func (l *Log) read(offset int64, maxBytes int, upTo int64) (Slice, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return Slice{}, ErrClosed
	}
	if offset < l.start || offset > l.end {
		err := fmt.Errorf("%w: %d, the log has %d to %d", ErrOutOfRange, offset, l.start, l.end)
		l.mu.Unlock()
		return Slice{}, err
	}
	if upTo = min(upTo, l.end); offset >= upTo {
		l.mu.Unlock()
		return Slice{Base: offset, Next: offset}, nil
	}
	v := l.viewAt(l.find(offset))
	from, known := l.hints.markAt(offset, v.base)
	stop := l.boundary(upTo, v)
	l.mu.Unlock()

	s, err := l.readSegment(&v, offset, maxBytes, upTo, from, known, stop)
	if err != nil || s.Empty() {
		l.release(v.segment)
		if err == nil && v.next < upTo && v.next > offset { // a hole at the segment's end
			return l.read(v.next, maxBytes, upTo)
		}
		return s, err
	}
	s.log, s.seg = l, v.segment
	l.mu.Lock()
	if !v.gone && l.cuts == v.cuts { // else what was read says nothing of what is there now
		if s.Next < v.next {
			l.hints.add(mark{s.Next, v.base, s.Pos + int64(s.Size)})
		}
		l.hints.keep(v.near)
	}
	l.mu.Unlock()
	return s, nil
}

// boundary is the position in the segment behind the last batch below upTo, -1
// when it takes a search. Call with mu held.
func (l *Log) boundary(upTo int64, v view) int64 {
	switch {
	case upTo >= v.next:
		return v.size
	case upTo == l.flushed.offset && l.flushed.base == v.base:
		return l.flushed.pos
	}
	return -1
}

// readSegment finds the batches in one segment. from is where to look for the
// first one when known is true; stop is where the last one may end, -1 when that
// is to be found.
func (l *Log) readSegment(v *view, offset int64, maxBytes int, upTo, from int64, known bool, stop int64) (Slice, error) {
	if err := l.prepare(v); err != nil {
		return Slice{}, err
	}
	end := v.size
	for _, d := range v.damage {
		if offset >= d.Offset && offset < d.Next {
			return Slice{}, d
		}
		if d.Offset > offset {
			end = d.Pos // up to the damage
			break
		}
		if from < d.End {
			from, known = d.End, d.Next == offset
		}
	}
	if !known {
		pos, err := l.seek(*v, offset)
		if err != nil {
			return Slice{}, err
		}
		from = max(from, pos)
	}
	w := newWalker(v.file, from, end, &headerWindows)
	defer w.done()
	first, err := l.advance(*v, w, offset, -1)
	if err == io.EOF || err == nil && first.LastOffset() >= upTo {
		return Slice{Base: offset, Next: offset}, nil
	}
	if err != nil {
		return Slice{}, err
	}
	s := Slice{File: v.file, Pos: w.pos, Base: first.BaseOffset}
	limit := w.pos + int64(max(maxBytes, 0))
	if stop >= 0 && stop <= min(limit, end) && stop > w.pos { // everything there is fits
		s.Size, s.Next = int(stop-w.pos), min(upTo, v.next)
		return s, nil
	}
	w.skip(first)
	s.Next = first.NextOffset()
	if err := l.extend(v, w, limit, upTo, &s); err != nil {
		return Slice{}, err
	}
	s.Size = int(w.pos - s.Pos)
	return s, nil
}

// advance walks to the batch that contains the offset, or the first one above
// it, io.EOF when there is none. prev is the last offset of the batch before the
// walker's position, -1 when unknown.
func (l *Log) advance(v view, w *walker, offset, prev int64) (record.Header, error) {
	o := bounds{max(v.base, prev+1), v.next}
	for {
		h, err := w.header()
		if err == io.EOF {
			return h, err
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil {
			if isIOError(err) {
				return h, err
			}
			return h, &doubtError{v.segment, w.pos, err}
		}
		if h.LastOffset() >= offset {
			return h, nil
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
}

// extend moves the walker, which stands behind the first batch of the slice, to
// where the slice ends: behind the last batch that ends at or below limit and
// lies below upTo. Of a long way the index saves most.
func (l *Log) extend(v *view, w *walker, limit, upTo int64, s *Slice) error {
	if w.pos < limit && limit-w.pos > int64(v.interval) {
		v.near.base = v.base
		e, ok, err := v.offsets.lastNear(&v.near, func(b []byte) bool {
			e := parseOffsetEntry(b)
			return int64(e.pos) <= limit && v.base+int64(e.rel) < upTo
		})
		if err != nil {
			return &doubtError{v.segment, w.pos, err}
		}
		if entry := parseOffsetEntry(e[:]); ok && int64(entry.pos) > w.pos && int64(entry.pos) < w.end {
			w.pos = int64(entry.pos)
			h, err := l.entryHeader(*v, w, entry)
			if err != nil {
				return err
			}
			s.Next = h.BaseOffset
		}
	}
	o := bounds{s.Next, v.next}
	for w.pos < limit {
		h, err := w.header()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil {
			if isIOError(err) {
				return err
			}
			return &doubtError{v.segment, w.pos, err}
		}
		if w.pos+int64(h.Size()) > limit || h.LastOffset() >= upTo {
			return nil
		}
		o.next = h.NextOffset()
		s.Next = o.next
		w.skip(h)
	}
	return nil
}

// seek finds by the index a position at or before the batch that contains the
// offset.
func (l *Log) seek(v view, offset int64) (int64, error) {
	e, ok, err := v.offsets.last(func(b []byte) bool {
		return v.base+int64(parseOffsetEntry(b).rel) <= offset
	})
	if err != nil {
		return 0, &doubtError{v.segment, 0, err}
	}
	if !ok {
		return 0, nil
	}
	entry := parseOffsetEntry(e[:])
	w := newWalker(v.file, int64(entry.pos), v.size, &headerWindows)
	defer w.done()
	if _, err := l.entryHeader(v, w, entry); err != nil {
		return 0, err
	}
	return int64(entry.pos), nil
}

// entryHeader reads the batch that an index entry points to and holds the two
// against each other.
func (l *Log) entryHeader(v view, w *walker, e offsetEntry) (record.Header, error) {
	h, err := w.header()
	if err == nil && h.LastOffset() != v.base+int64(e.rel) {
		err = fmt.Errorf("index entry for offset %d points to a batch that ends with %d", v.base+int64(e.rel), h.LastOffset())
	}
	if err == io.EOF {
		err = fmt.Errorf("index entry for offset %d points behind the log, to %d", v.base+int64(e.rel), e.pos)
	}
	if err != nil {
		return h, &doubtError{v.segment, w.pos, err}
	}
	return h, nil
}
