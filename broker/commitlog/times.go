package commitlog

import (
	"errors"
	"io"

	"sidestream/broker/record"
)

// found is a record that a search by time has found.
type found struct {
	offset, timestamp int64
	epoch             int32
}

var nothing = found{-1, -1, -1}

// OffsetByTime finds the first record whose timestamp is at or after ts, in ms
// since 1970: its offset, timestamp and leader epoch, or -1, -1, -1 when there is
// none. In a compressed batch, without Options.Decompress, the answer is the
// batch's first record.
func (l *Log) OffsetByTime(ts int64) (offset, timestamp int64, leaderEpoch int32, err error) {
	f, err := l.repairing(func() (found, error) { return l.findTime(ts) })
	return f.offset, f.timestamp, f.epoch, err
}

// MaxTimestamp finds the first record with the highest timestamp in the log, or
// -1, -1, -1 when no record has one. In a compressed batch, without
// Options.Decompress, the answer is the batch's first record.
func (l *Log) MaxTimestamp() (offset, timestamp int64, leaderEpoch int32, err error) {
	f, err := l.repairing(l.findMax)
	return f.offset, f.timestamp, f.epoch, err
}

// repairing calls search, and once more after a repair if it doubts a segment.
func (l *Log) repairing(search func() (found, error)) (found, error) {
	for tries := 0; ; {
		f, err := search()
		if l.overtaken(err) {
			continue
		}
		var doubt *doubtError
		if !errors.As(err, &doubt) {
			return f, err
		}
		if tries > len(l.hints.marks) { // several segments may need one each
			return nothing, l.corruptAt(doubt, doubt.seg.base)
		}
		if err := l.repair(doubt); err != nil {
			return nothing, err
		}
		tries++
	}
}

// eachView calls do with a view of every segment, oldest first, until do says
// that it is done.
func (l *Log) eachView(do func(v view, start int64) (done bool, err error)) error {
	for base := int64(-1); ; {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return ErrClosed
		}
		start := l.start
		v := l.viewAt(l.find(max(base, start)))
		l.mu.Unlock()
		err := l.prepare(&v)
		done := false
		if err == nil {
			done, err = do(v, start)
		}
		l.release(v.segment)
		if err != nil || done || v.active {
			return err
		}
		base = v.next
	}
}

func (l *Log) findTime(ts int64) (found, error) {
	f := nothing
	err := l.eachView(func(v view, start int64) (bool, error) {
		if l.maxOf(v) < ts {
			return false, nil
		}
		var err error
		f, err = l.timeInSegment(v, start, ts)
		return f.offset >= 0, err
	})
	return f, err
}

func (l *Log) maxOf(v view) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return v.segment.maxTimestamp
}

// timeInSegment looks for the first record at or after ts in one segment.
func (l *Log) timeInSegment(v view, start, ts int64) (found, error) {
	pos := int64(0)
	e, ok, err := v.times.last(func(b []byte) bool { return parseTimeEntry(b).ts <= ts })
	if err != nil {
		return nothing, &doubtError{v.segment, 0, err}
	}
	if ok { // nothing before that entry's batch is later than its timestamp
		entry := parseTimeEntry(e[:])
		if err := l.checkTimeEntry(v, entry); err != nil {
			return nothing, err
		}
		if pos, err = l.seek(v, v.base+int64(entry.rel)); err != nil {
			return nothing, err
		}
	}
	o := bounds{v.base, v.next}
	end := v.firstDamage(pos)
	for {
		f, err := l.timeInRun(v, pos, end, &o, start, ts)
		if err != nil || f.offset >= 0 || end == v.size {
			return f, err
		}
		pos, end = v.after(end)
	}
}

// after is the run of sound batches that follows the damage at pos.
func (v view) after(pos int64) (from, end int64) {
	from, end = v.size, v.size
	for _, d := range v.damage {
		switch {
		case d.Pos == pos:
			from = d.End
		case d.Pos > pos && end == v.size:
			end = d.Pos
		}
	}
	return from, max(from, end)
}

// timeInRun looks through a run of sound batches.
func (l *Log) timeInRun(v view, pos, end int64, o *bounds, start, ts int64) (found, error) {
	w := newWalker(v.file, pos, end, &headerWindows)
	defer w.done()
	for {
		h, err := w.header()
		if err == io.EOF {
			return nothing, nil
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil {
			if isIOError(err) {
				return nothing, err
			}
			return nothing, &doubtError{v.segment, w.pos, err}
		}
		if h.MaxTimestamp >= ts && h.LastOffset() >= start {
			f, err := l.timeInBatch(v, w.pos, h, func(r record.Record) bool { return r.Timestamp >= ts && r.Offset >= start })
			if err != nil || f.offset >= 0 {
				return f, err
			}
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
}

// timeInBatch finds the first record of a batch for which want is true. What it
// cannot look into is answered by the batch's first record.
func (l *Log) timeInBatch(v view, pos int64, h record.Header, want func(record.Record) bool) (found, error) {
	if h.Count == 0 {
		return nothing, nil
	}
	whole := found{h.BaseOffset, h.FirstTimestamp, h.LeaderEpoch}
	if h.LogAppendTime() {
		whole.timestamp = h.MaxTimestamp
	}
	if _, dated := h.DeleteHorizon(); dated {
		whole.timestamp = h.MaxTimestamp
	} else if !h.Thinned() && want(record.Record{Offset: whole.offset, Timestamp: whole.timestamp}) {
		return whole, nil
	}
	f := nothing
	readable, err := l.records(v, pos, h, func(r record.Record) bool {
		if want(r) {
			f = found{r.Offset, r.Timestamp, h.LeaderEpoch}
		}
		return f == nothing
	})
	if err == nil && !readable {
		return whole, nil
	}
	return f, err
}

// records calls do for the records of a batch until it returns false. It reports
// readable = false when it cannot look into the batch: what the producer sent is
// not ours to judge, the consumer will see.
func (l *Log) records(v view, pos int64, h record.Header, do func(record.Record) bool) (readable bool, err error) {
	if h.Codec() != record.None && l.unpack == nil {
		return false, nil
	}
	b := make([]byte, h.Size())
	if _, err := v.file.ReadAt(b, pos); err != nil {
		return false, err
	}
	body := b[record.HeaderSize:]
	if h.Codec() != record.None {
		var done func()
		if body, done, err = l.unpack(h.Codec(), body); err != nil {
			return false, nil
		}
		defer done()
	}
	for r, err := range record.Records(body, h) {
		if err != nil {
			return false, nil
		}
		if !do(r) {
			return true, nil
		}
	}
	return true, nil
}

func (l *Log) findMax() (found, error) {
	highest := int64(-1)
	err := l.eachView(func(v view, start int64) (bool, error) {
		ts := l.maxOf(v)
		var err error
		if start > v.base && ts > highest { // it may belong to a record that was deleted
			ts, err = l.maxFrom(v, start)
		}
		highest = max(highest, ts)
		return false, err
	})
	if err != nil || highest < 0 {
		return nothing, err
	}
	return l.findTime(highest)
}

// maxFrom is the highest timestamp in a segment from an offset on.
func (l *Log) maxFrom(v view, start int64) (highest int64, err error) {
	highest = -1
	pos, err := l.seek(v, start)
	if err != nil {
		return highest, err
	}
	for from, end := pos, v.firstDamage(pos); ; from, end = v.after(end) {
		if err := l.maxInRun(v, from, end, start, &highest); err != nil || end == v.size {
			return highest, err
		}
	}
}

// maxInRun raises highest by what a run of sound batches has.
func (l *Log) maxInRun(v view, pos, end, start int64, highest *int64) error {
	w := newWalker(v.file, pos, end, &headerWindows)
	defer w.done()
	for {
		h, err := w.header()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && isIOError(err):
			return err
		case err != nil:
			return &doubtError{v.segment, w.pos, err}
		}
		if h.MaxTimestamp > *highest && h.LastOffset() >= start {
			ts := h.MaxTimestamp
			if h.BaseOffset < start {
				inside := int64(-1)
				readable, err := l.records(v, w.pos, h, func(r record.Record) bool {
					if r.Offset >= start {
						inside = max(inside, r.Timestamp)
					}
					return true
				})
				if err != nil {
					return err
				}
				if readable {
					ts = inside
				}
			}
			*highest = max(*highest, ts)
		}
		w.skip(h)
	}
}

// firstDamage is where the run of sound batches ends in which pos lies.
func (v view) firstDamage(pos int64) int64 {
	for _, d := range v.damage {
		if d.Pos >= pos {
			return d.Pos
		}
	}
	return v.size
}
