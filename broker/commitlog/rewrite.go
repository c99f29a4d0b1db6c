package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"sidestream/broker/record"
)

// collect notes the keys from an offset on, up to the limit or to the record that
// the map has no room for, whose offset is the end.
func (c *compaction) collect(list []closedSegment, from, limit int64, keys *keyMap) (end int64, err error) {
	t := &thinner{unpack: c.l.unpack}
	end = limit
	for i := range list {
		s := &list[i]
		if s.next <= from || s.damaged || end < limit {
			continue
		}
		err := c.walk(s, func(b []byte, h record.Header) error {
			if h.NextOffset() <= from || end < limit || h.Count == 0 || h.IsControl() || h.IsTransactional() {
				return nil
			}
			body, done, err := t.records(b, h)
			if err != nil {
				return nil
			}
			defer done()
			for r, err := range record.BareRecords(body, h) {
				if err != nil {
					return err // records has seen that there is none
				}
				offset := h.BaseOffset + int64(r.OffsetDelta)
				if offset >= from && r.Key != nil && !keys.put(r.Key, offset) {
					end = offset
					break
				}
			}
			return nil
		})
		var bad *damagedError
		if errors.As(err, &bad) {
			continue // it is marked
		}
		if err != nil {
			return 0, err
		}
	}
	return end, nil
}

// damagedError: a segment is not sound, which is noted now.
type damagedError struct{ cause error }

func (e *damagedError) Error() string { return e.cause.Error() }

// walk reads a segment, batch by batch, with every check there is.
func (c *compaction) walk(s *closedSegment, do func(b []byte, h record.Header) error) error {
	l := c.l
	l.mu.Lock()
	if s.gone {
		l.mu.Unlock()
		return errOvertaken
	}
	s.refs++
	l.mu.Unlock()
	defer l.release(s.segment)
	f, err := l.logFile(s.segment)
	if err != nil {
		return err
	}
	r := &pacedReader{ctx: c.ctx, pace: c.pace, r: f}
	w := newWalker(r, 0, s.size, &checkWindows)
	defer w.done()
	o := bounds{s.base, s.next}
	for {
		h, err := w.header()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = o.check(h)
		}
		var b []byte
		if err == nil {
			b, err = c.read(w, h)
		}
		if err == nil {
			err = record.CheckCRC(b, h)
		}
		if r.err != nil {
			return r.err
		}
		if err != nil {
			if isIOError(err) {
				return err
			}
			return c.damage(s, err)
		}
		if err := do(b, h); err != nil {
			return err
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
	if o.next != s.next {
		return c.damage(s, fmt.Errorf("%w: the file ends at offset %d of %d", record.ErrTruncated, o.next, s.next))
	}
	return nil
}

// read gives the batch at the walker's position, valid until the next one.
func (c *compaction) read(w *walker, h record.Header) ([]byte, error) {
	if h.Size() <= len(*w.buf) {
		return w.window(w.pos, h.Size())
	}
	if cap(c.batch) < h.Size() {
		c.batch = make([]byte, h.Size())
	}
	b := c.batch[:h.Size()]
	if n, err := w.f.ReadAt(b, w.pos); n < len(b) {
		if err == nil || err == io.EOF {
			err = fmt.Errorf("%w: %d bytes of %d", record.ErrTruncated, n, len(b))
		}
		return nil, err
	}
	return b, nil
}

// damage looks at the whole of a segment that was found unsound, so that readers
// and operators learn of it.
func (c *compaction) damage(s *closedSegment, cause error) error {
	l := c.l
	l.mu.Lock()
	i := l.find(s.base)
	if l.segments[i] != s.segment {
		l.mu.Unlock()
		return errOvertaken
	}
	v := l.viewAt(i)
	l.mu.Unlock()
	defer l.release(v.segment)
	if _, err := l.verifySegment(c.ctx, c.pace, v); err != nil {
		return err
	}
	s.damaged = true
	return &damagedError{cause}
}

// rewrite thins out the segments below the end of the pass, oldest first, so
// that a tombstone is never gone before what it deletes.
func (c *compaction) rewrite(list []closedSegment, t *thinner, cuts int) error {
	for len(list) > 0 && list[0].base < t.end {
		if list[0].damaged {
			t.hidden = true
			list = list[1:]
			continue
		}
		n := group(list, t.end, c.cfg.SegmentBytes)
		before := *t
		err := c.rewriteGroup(list[:n], t, cuts)
		var bad *damagedError
		if errors.As(err, &bad) { // it is marked; again, without it
			*t = before
			continue
		}
		if err != nil {
			return err
		}
		c.done.Records += t.removed - before.removed
		c.done.Tombstones += t.tombstones - before.tombstones
		list = list[n:]
	}
	return nil
}

// group is how many of the segments, at least one, go into one: as long as they
// are not larger together than a segment is to be (Kafka, Cleaner.groupSegmentsBySize).
func group(list []closedSegment, end, limit int64) (n int) {
	size := int64(0)
	for n < len(list) && list[n].base < end && !list[n].damaged {
		size += list[n].size
		if n > 0 && (size > limit || list[n].next-list[0].base > math.MaxInt32) {
			break
		}
		n++
	}
	return n
}

func (c *compaction) rewriteGroup(list []closedSegment, t *thinner, cuts int) error {
	o := &output{c: c, next: newSegment(list[0].base), source: &list[0], copying: len(list) > 1}
	defer o.close()
	var size int64
	appended, undated := int64(noTime), false
	var old []*segment
	for i := range list {
		s := &list[i]
		size += s.size
		appended, undated = max(appended, s.appended), undated || s.undated
		old = append(old, s.segment)
		err := c.walk(s, func(b []byte, h record.Header) error {
			what, built, err := t.thin(b, h)
			switch {
			case err != nil:
				return err
			case what == emptied:
				return o.hold(b, h)
			case what == thinned:
				return o.add(built, nil)
			}
			return o.add(b, b)
		})
		if err != nil {
			return err
		}
	}
	if err := o.release(); err != nil {
		return err
	}
	if !o.copying {
		return nil // nothing to gain
	}
	if o.next.size == 0 {
		if err := o.start(); err != nil {
			return err
		}
	}
	o.next.endTimes()
	o.next.created, o.next.appended, o.next.undated = list[0].created, appended, undated
	if err := o.file.complete(o.next); err != nil {
		return err
	}
	taken, err := c.l.swapIn(old, o.next, cuts)
	if taken {
		o.file = nil
	}
	if err != nil {
		return err
	}
	c.done.Segments += len(old)
	c.done.Reclaimed += size - o.next.size
	return nil
}

// output writes the segment that takes the place of others. As long as it is the
// same as its only source nothing is written.
type output struct {
	c       *compaction
	next    *segment
	source  *closedSegment
	copying bool
	file    *cleanedFile

	// A run of emptied batches that waits to become one.
	run      record.Header
	inRun    int
	original []byte // its first batch as it was
}

// hold takes an emptied batch. Neighbours become one, unless they belong to
// different leader epochs or have sequence numbers that still count.
func (o *output) hold(b []byte, h record.Header) error {
	if o.c.l.producers.remembers(h) {
		if err := o.release(); err != nil {
			return err
		}
		return o.add(emptyBatch(h, true), b)
	}
	joins := o.inRun > 0 && o.run.LeaderEpoch == h.LeaderEpoch && o.run.NextOffset() == h.BaseOffset &&
		h.LastOffset()-o.run.BaseOffset <= math.MaxInt32
	if joins {
		o.run.LastOffsetDelta = int32(h.LastOffset() - o.run.BaseOffset)
		o.inRun++
		return nil
	}
	if err := o.release(); err != nil {
		return err
	}
	o.run, o.inRun = h, 1
	o.original = append(o.original[:0], b[:min(len(b), record.HeaderSize+1)]...)
	return nil
}

// release writes the run that waits.
func (o *output) release() error {
	if o.inRun == 0 {
		return nil
	}
	original := o.original
	if o.inRun > 1 {
		original = nil
	}
	o.inRun = 0
	return o.write(emptyBatch(o.run, false), original)
}

// add writes a batch that was made from the original.
func (o *output) add(b, original []byte) error {
	if err := o.release(); err != nil {
		return err
	}
	return o.write(b, original)
}

func (o *output) write(b, original []byte) error {
	h, err := record.ParseHeader(b)
	if err != nil {
		return fmt.Errorf("commitlog: a batch that compaction built: %w", err)
	}
	if o.next.size+int64(len(b)) > maxSegmentBytes {
		return fmt.Errorf("%w: segment %d grows over %d bytes when compacted", ErrTooLarge, o.next.base, maxSegmentBytes)
	}
	if !o.copying && !bytes.Equal(b, original) {
		o.copying = true
	}
	if o.copying {
		if err := o.start(); err != nil {
			return err
		}
		if err := o.file.write(b); err != nil {
			return err
		}
	}
	o.next.note(h, o.next.size, o.c.cfg.IndexInterval)
	return nil
}

// start makes the file, and copies what was the same so far.
func (o *output) start() (err error) {
	if o.file != nil {
		return nil
	}
	if o.file, err = o.c.l.createCleaned(o.next.base); err != nil || o.next.size == 0 {
		return err
	}
	l := o.c.l
	f, err := l.logFile(o.source.segment) // the walk through it holds a reference
	if err != nil {
		return err
	}
	return copyFile(o.file, &pacedReader{ctx: o.c.ctx, pace: o.c.pace, r: f}, o.next.size)
}

func copyFile(to *cleanedFile, from io.ReaderAt, size int64) error {
	window := checkWindows.Get().(*[]byte)
	defer checkWindows.Put(window)
	for pos := int64(0); pos < size; {
		b := (*window)[:min(int64(len(*window)), size-pos)]
		if n, err := from.ReadAt(b, pos); n < len(b) {
			return fmt.Errorf("commitlog: copy: %w", errors.Join(io.ErrUnexpectedEOF, err))
		}
		if err := to.write(b); err != nil {
			return err
		}
		pos += int64(len(b))
	}
	return nil
}

// close gives up what was not swapped in.
func (o *output) close() {
	if o.file != nil {
		o.file.discard()
	}
}
