package commitlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// prepare completes a view: it opens the log file and the index files, and looks
// at the indexes of a closed segment that nobody has looked at since the start.
func (l *Log) prepare(v *view) error {
	var err error
	if v.file == nil {
		if v.file, err = l.logFile(v.segment); err != nil {
			return err
		}
	}
	if !v.checked {
		if err := l.loadIndexes(v); err != nil {
			return err
		}
	}
	for _, x := range []struct{ mine, shared *index }{{&v.offsets, &v.segment.offsets}, {&v.times, &v.segment.times}} {
		if x.mine.n > 0 && x.mine.file == nil {
			if x.mine.file, err = l.indexFile(v.segment, x.shared, false); err != nil {
				return &doubtError{v.segment, 0, err}
			}
		}
	}
	return nil
}

// loadIndexes looks at the index files of a closed segment: their sizes, and
// whether their last entries fit the log. What lies before the last entries is
// checked when it is used.
func (l *Log) loadIndexes(v *view) error {
	doubt := func(err error) error { return &doubtError{v.segment, 0, err} }
	for _, x := range []struct{ mine, shared *index }{{&v.offsets, &v.segment.offsets}, {&v.times, &v.segment.times}} {
		f, err := l.indexFile(v.segment, x.shared, false)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && v.size == 0 {
				continue
			}
			return doubt(err)
		}
		size, err := f.Size()
		if err != nil {
			return err
		}
		if size%int64(x.mine.width) != 0 {
			return doubt(fmt.Errorf("index of %d bytes, entries have %d", size, x.mine.width))
		}
		x.mine.file, x.mine.n = f, int(size)/x.mine.width
	}
	tail, err := l.checkTail(*v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if s := v.segment; !s.checked && !s.gone {
		s.checked = true
		s.offsets.n, s.times.n = v.offsets.n, v.times.n
		s.lastTime, s.maxTimestamp, s.maxOffset = tail.ts, tail.ts, v.base+int64(tail.rel)
	}
	l.mu.Unlock()
	v.checked = true
	return nil
}

// checkTail holds the last entries of a closed segment's indexes against its
// log, and returns the last time entry, which has the highest timestamp.
func (l *Log) checkTail(v view) (last timeEntry, err error) {
	doubt := func(pos int64, format string, args ...any) error {
		return &doubtError{v.segment, pos, fmt.Errorf(format, args...)}
	}
	last.ts = -1
	if v.size == 0 {
		if v.next > v.base {
			return last, doubt(0, "the file is empty, and the next segment begins at offset %d", v.next)
		}
		return last, nil
	}
	pos := int64(0)
	all := func([]byte) bool { return true }
	if e, ok, err := v.offsets.last(all); err != nil {
		return last, doubt(0, "%w", err)
	} else if ok {
		pos = int64(parseOffsetEntry(e[:]).pos)
		w := newWalker(v.file, pos, v.size, &headerWindows)
		_, err := l.entryHeader(v, w, parseOffsetEntry(e[:]))
		w.done()
		if err != nil {
			return last, err
		}
	}
	e, ok, err := v.times.last(all)
	if err != nil {
		return last, doubt(0, "%w", err)
	}
	if ok {
		last = parseTimeEntry(e[:])
	}

	// From the last offset entry to the end there is less than an interval, but
	// for the last batch, and no timestamp above the last one of the time index.
	w := newWalker(v.file, pos, v.size, &headerWindows)
	defer w.done()
	o := bounds{v.base, v.next}
	for {
		h, err := w.header()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil {
			return last, doubt(w.pos, "%w", err)
		}
		if w.pos-pos > int64(v.interval) {
			return last, doubt(w.pos, "the offset index ends at position %d, the log goes on to %d", pos, v.size)
		}
		if h.MaxTimestamp > last.ts {
			return last, doubt(w.pos, "the time index ends at timestamp %d, the log has %d", last.ts, h.MaxTimestamp)
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
	if o.next != v.next {
		return last, doubt(w.pos, "the segment ends at offset %d, the next one begins at %d", o.next, v.next)
	}
	if last.ts >= 0 {
		return last, l.checkTimeEntry(v, last)
	}
	return last, nil
}

// checkTimeEntry holds a time index entry against the batch that it names.
func (l *Log) checkTimeEntry(v view, e timeEntry) error {
	offset := v.base + int64(e.rel)
	pos, err := l.seek(v, offset)
	if err != nil {
		return err
	}
	w := newWalker(v.file, pos, v.size, &headerWindows)
	defer w.done()
	h, err := l.advance(v, w, offset, -1)
	if err == io.EOF || err == nil && (h.LastOffset() != offset || h.MaxTimestamp != e.ts) {
		return &doubtError{v.segment, w.pos, fmt.Errorf("time index entry %d at offset %d does not fit the log", e.ts, offset)}
	}
	return err
}

// repair looks at a whole segment, checksums included, notes what is damaged,
// and rebuilds the indexes from the rest. The log itself is never changed. It
// takes both turns, since the segment may be the active one.
func (l *Log) repair(doubt *doubtError) error {
	l.takeBoth()
	defer l.leaveBoth()
	return l.repairNow(doubt)
}

// repairNow is repair for a caller that has both turns.
func (l *Log) repairNow(doubt *doubtError) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	i := l.find(doubt.seg.base)
	if l.segments[i] != doubt.seg { // removed meanwhile
		l.mu.Unlock()
		return nil
	}
	v := l.viewAt(i)
	l.mu.Unlock()
	defer l.release(v.segment)
	l.logger.Warn("looking at a whole segment and rebuilding its indexes", zap.String("log", l.dir),
		zap.Int64("segment", v.base), zap.NamedError("because", doubt.cause))
	f, err := l.logFile(v.segment)
	if err != nil {
		return err
	}
	fresh := newSegment(v.base)
	damage, err := l.inspectFile(context.Background(), &pace{}, f, v, func(h record.Header, pos int64) {
		fresh.note(h, pos, v.interval)
	})
	if err != nil {
		return err
	}
	if !v.active {
		fresh.endTimes()
	}
	l.metrics.indexRebuilds.Inc()
	if err := l.replaceIndexes(v.segment, fresh); err != nil {
		l.logger.Warn("rebuilt indexes stay in memory", zap.String("log", l.dir), zap.Error(err))
	}
	l.mu.Lock()
	known := v.segment.damage
	v.segment.damage = damage
	l.hints = hints{}
	l.mu.Unlock()
	l.reportDamage(unknown(damage, known))
	return nil
}

// inspectFile checks a segment whole and returns what is damaged.
func (l *Log) inspectFile(ctx context.Context, p *pace, f disk.File, v view, found func(record.Header, int64)) ([]*CorruptError, error) {
	end := v.size
	r := &pacedReader{ctx: ctx, pace: p, r: f}
	w := newWalker(r, 0, end, &checkWindows)
	defer w.done()
	o := bounds{v.base, v.next}
	damage := w.inspect(l.path(v.base, logSuffix), &o, found)
	if r.err != nil {
		return nil, r.err
	}
	if o.next < v.next {
		damage = append(damage, &CorruptError{
			Path: l.path(v.base, logSuffix), Pos: end, End: end, Offset: o.next, Next: v.next,
			Cause: fmt.Errorf("%w: the file ends before its last offset", record.ErrTruncated),
		})
	}
	return damage, nil
}

// replaceIndexes gives a segment the indexes of fresh, in memory and then in its
// files. Reads that use the old ones go on with the old files.
func (l *Log) replaceIndexes(s, fresh *segment) error {
	l.mu.Lock()
	size, damage := s.size, s.damage
	s.forget()
	s.offsets, s.times = fresh.offsets, fresh.times
	s.sinceIndex, s.lastTime = fresh.sinceIndex, fresh.lastTime
	s.maxTimestamp, s.maxOffset = fresh.maxTimestamp, fresh.maxOffset
	s.size, s.damage, s.indexDirty, s.checked = size, damage, true, true
	l.mu.Unlock()
	var all error
	for _, x := range []struct {
		*index
		suffix string
	}{{&s.offsets, indexSuffix}, {&s.times, timeSuffix}} {
		name := l.path(s.base, x.suffix)
		l.mu.Lock()
		pending := x.pending
		l.mu.Unlock()
		err := disk.ReplaceFile(l.fs, name, pending)
		if err == nil {
			l.mu.Lock()
			x.wrote(len(pending) / x.width)
			l.mu.Unlock()
		} else {
			// The old file is still there and must not be written into.
			all = errors.Join(all, err, l.fs.Remove(name))
		}
	}
	return all
}

// Verify reads every flushed batch and its checksum and returns the damaged
// stretches, which are noted for Read, counted and logged. It reads all of the
// log, so a caller in no hurry runs it now and then, one log at a time; nothing
// waits for it. It ends early with the context's error.
func (l *Log) Verify(ctx context.Context) ([]*CorruptError, error) { return l.Scrub(ctx, 0) }

// Scrub is [Log.Verify] at a pace of at most so many bytes a second; 0 is as
// fast as it goes.
func (l *Log) Scrub(ctx context.Context, bytesPerSecond int64) ([]*CorruptError, error) {
	p := &pace{rate: bytesPerSecond}
	var all []*CorruptError
	for base := l.StartOffset(); ; {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return all, ErrClosed
		}
		v := l.viewAt(l.find(base))
		l.mu.Unlock()
		damage, err := l.verifySegment(ctx, p, v)
		l.release(v.segment)
		if l.overtaken(err) {
			continue
		}
		if err != nil {
			return all, err
		}
		all = append(all, damage...)
		if v.active {
			return all, nil
		}
		base = v.next
	}
}

func (l *Log) verifySegment(ctx context.Context, p *pace, v view) ([]*CorruptError, error) {
	f, err := l.logFile(v.segment)
	if err != nil {
		return nil, err
	}
	damage, err := l.inspectFile(ctx, p, f, v, func(record.Header, int64) {})
	if err != nil {
		return nil, err
	}
	l.metrics.verifiedBytes.Add(float64(v.size))
	l.mu.Lock()
	var fresh []*CorruptError
	if now := v.segment; !now.gone && l.cuts == v.cuts {
		fresh = unknown(damage, now.damage)
		now.damage = damage
		l.hints = hints{}
	} else {
		damage = nil
	}
	l.mu.Unlock()
	l.reportDamage(fresh)
	return damage, nil
}

// unknown are the stretches that begin where no known one does.
func unknown(found, known []*CorruptError) (fresh []*CorruptError) {
	for _, d := range found {
		old := false
		for _, k := range known {
			old = old || k.Pos == d.Pos
		}
		if !old {
			fresh = append(fresh, d)
		}
	}
	return fresh
}

// reportDamage tells the operator.
func (l *Log) reportDamage(damage []*CorruptError) {
	for _, d := range damage {
		l.metrics.damage.Inc()
		l.logger.Error("stored data is damaged; it is left as it is and served around",
			zap.String("file", d.Path), zap.Int64("position", d.Pos), zap.Int64("end", d.End),
			zap.Int64("first_offset", d.Offset), zap.Int64("next_offset", d.Next), zap.NamedError("found", d.Cause))
	}
}

// walk calls found for the batches from offset from on, up to the one that
// begins at or above to, by their headers. Where headers contradict each other
// it checks the segment's checksums from there on. The caller has both turns.
func (l *Log) walk(from, to int64, found func(record.Header)) error {
	l.mu.Lock()
	segments := l.segments
	l.mu.Unlock()
	for i, s := range segments {
		limit := s.base + maxSegmentBytes
		if i+1 < len(segments) {
			limit = segments[i+1].base
		}
		if limit <= from || s.base >= to {
			continue
		}
		if err := l.walkSegment(s, bounds{s.base, limit}, from, to, found); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) walkSegment(s *segment, o bounds, from, to int64, found func(record.Header)) error {
	f, err := l.logFile(s)
	if err != nil {
		return err
	}
	w := newWalker(f, 0, s.size, &headerWindows)
	defer w.done()
	for o.next < to {
		h, err := w.header()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil && isIOError(err) {
			return err
		}
		if err != nil {
			c := newWalker(f, w.pos, s.size, &checkWindows)
			defer c.done()
			c.inspect(f.Name(), &o, func(h record.Header, _ int64) {
				if h.BaseOffset >= from && h.BaseOffset < to {
					found(h)
				}
			})
			return nil
		}
		if h.BaseOffset >= from && h.BaseOffset < to {
			found(h)
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
	return nil
}
