package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Append writes the batches at the end of the log, as one run of bytes with one
// system call, and returns the offsets of the first and the last record. Each
// batch must be whole and checked ([record.Check]); its base offset and leader
// epoch are written into it in place. Nothing is durable before [Log.Flush].
//
// It is all or nothing: after an error none of the batches is in the log. Where
// the error is ErrNotAppended too, that is so for good; after any other a power
// cut in that moment may still bring a beginning of them back, as it may for any
// write whose outcome was not learned. ErrNoSpace passes when there is room
// again, ErrOffline does not.
//
// now dates the append for retention and rolling, whatever clocks producers use.
// The zero time says that nobody knows it: the append gets its date from the
// first [Log.Retain] or [Log.Compact] that does.
func (l *Log) Append(batches [][]byte, leaderEpoch int32, now time.Time) (first, last int64, err error) {
	l.writer.take()
	defer l.writer.leave()
	return l.AppendHeld(batches, leaderEpoch, now)
}

// TryHold takes the log for [Log.AppendHeld] unless somebody else appends to it
// or changes it now. A caller that gets it calls Unhold soon.
func (l *Log) TryHold() bool { return l.writer.try() }

// Unhold ends a TryHold that returned true.
func (l *Log) Unhold() { l.writer.leave() }

// AppendHeld is [Log.Append] for a caller that holds the log: it waits for
// nothing but the file system.
func (l *Log) AppendHeld(batches [][]byte, leaderEpoch int32, now time.Time) (first, last int64, err error) {
	writes := false
	defer func() {
		if err != nil && !writes {
			err = NotAppended(err)
		}
	}()
	var few [4]record.Header
	headers, total, err := l.inspectBatches(few[:0], batches)
	if err != nil {
		return -1, -1, err
	}
	l.mu.Lock()
	err = l.writable()
	if newest := l.epochs.last(); err == nil && leaderEpoch < newest && leaderEpoch >= 0 {
		err = fmt.Errorf("%w: append with %d, the log has %d", ErrStaleEpoch, leaderEpoch, newest)
	}
	torn := l.torn
	next := l.end // only the writer moves it
	l.mu.Unlock()
	if err != nil {
		return -1, -1, err
	}
	if torn {
		if err := l.cutTorn(); err != nil {
			return -1, -1, err
		}
	}
	s, err := l.segmentFor(total, next, headers, now)
	if err != nil {
		return -1, -1, err
	}
	first = next
	for i, b := range batches {
		record.Stamp(b, next, leaderEpoch)
		headers[i].BaseOffset, headers[i].LeaderEpoch = next, leaderEpoch
		next = headers[i].NextOffset()
	}
	writes = true
	if err := l.write(s, batches); err != nil {
		return -1, -1, err
	}
	l.publish(s, headers, leaderEpoch, now)
	l.metrics.appendedBytes.Add(float64(total))
	l.metrics.appendedBatches.Add(float64(len(batches)))
	return first, next - 1, nil
}

// inspectBatches reads the headers and refuses what cannot be appended.
func (l *Log) inspectBatches(headers []record.Header, batches [][]byte) ([]record.Header, int64, error) {
	l.mu.Lock()
	limit := l.cfg.MaxBatchBytes
	l.mu.Unlock()
	total := int64(0)
	for i, b := range batches {
		h, err := record.ParseHeader(b)
		if err != nil {
			return nil, 0, fmt.Errorf("commitlog: batch %d of %d: %w", i+1, len(batches), err)
		}
		if h.Size() != len(b) {
			return nil, 0, fmt.Errorf("commitlog: batch %d of %d: %w: %d bytes, its length says %d",
				i+1, len(batches), record.ErrInvalid, len(b), h.Size())
		}
		if len(b) > limit {
			return nil, 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(b), limit)
		}
		headers = append(headers, h)
		total += int64(len(b))
	}
	switch {
	case len(batches) == 0:
		return nil, 0, fmt.Errorf("commitlog: append of no batch: %w", record.ErrInvalid)
	case total > maxSegmentBytes:
		return nil, 0, fmt.Errorf("%w: %d bytes in one append, a segment holds %d", ErrTooLarge, total, maxSegmentBytes)
	}
	return headers, total, nil
}

// segmentFor is the segment for an append of total bytes: the active one, or a
// new one when that is full, too old, or cannot count the offsets. An append is
// never split, so that it can be taken back whole.
func (l *Log) segmentFor(total, next int64, headers []record.Header, now time.Time) (*segment, error) {
	records := int64(0)
	for _, h := range headers {
		records += int64(h.LastOffsetDelta) + 1
	}
	l.mu.Lock()
	s, cfg := l.active(), l.cfg
	roll := s.size > 0 &&
		(s.size+total > cfg.SegmentBytes ||
			!now.IsZero() && s.created != noTime && now.UnixMilli()-s.created >= cfg.SegmentAge.Milliseconds() ||
			next+records-1-s.base > maxSegmentBytes)
	l.mu.Unlock()
	if !roll {
		return s, nil
	}
	if err := l.roll(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active(), nil
}

// roll begins a new segment at the log's end. The one before is synced by the
// next flush, and so is the new name. The caller has the writer's turn.
func (l *Log) roll() error {
	if err := l.stillHere(); err != nil {
		return err
	}
	l.mu.Lock()
	base := l.end
	l.mu.Unlock()
	f, err := l.createLog(base)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) { // the folder is not there, and so nothing is that is in it
			return l.goOffline(fmt.Errorf("%w: %w", disk.ErrGone, err))
		}
		return fmt.Errorf("commitlog: begin segment %d: %w", base, diskError(err))
	}
	next := newSegment(base)
	next.file, next.checked = f, true
	next.snapshot = l.producers.encode()
	l.mu.Lock()
	before := l.active()
	before.endTimes()
	l.segments = append(l.segments, next)
	l.dirDirty, l.rolled = true, true
	idle := l.evict(before)
	l.mu.Unlock()
	closeAll(idle)
	l.metrics.rolls.Inc()
	return nil
}

// createLog makes an empty segment file, open for appending and reading.
func (l *Log) createLog(base int64) (disk.File, error) {
	name := l.path(base, logSuffix)
	f, err := l.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o644)
	if err != nil {
		_ = l.fs.Remove(name) // it may be there half made; a next try truncates it anyway
	}
	return f, err
}

// write appends the bytes to the segment's file, or takes back what it wrote of
// them.
func (l *Log) write(s *segment, batches [][]byte) error {
	wrote, err := s.file.Writev(batches)
	if err == nil {
		return nil
	}
	err = diskError(err)
	l.mu.Lock()
	l.torn = true
	l.mu.Unlock()
	level := zap.WarnLevel
	if errors.Is(err, ErrNoSpace) { // of which there is one a producer and try: the caller tells it once
		l.metrics.noSpace.Inc()
		level = zap.DebugLevel
	}
	l.logger.Log(level, "an append failed and is taken back", zap.String("log", l.dir), zap.Error(err))
	if cutErr := l.cutTorn(); cutErr != nil {
		return fmt.Errorf("commitlog: append: %w; and then: %w", err, cutErr)
	}
	// A power cut may bring back what was there before the cut. Of a batch that
	// is not whole a recovery keeps nothing, but of one that is.
	if wrote >= int64(len(batches[0])) {
		if syncErr := s.file.Datasync(); syncErr != nil {
			return fmt.Errorf("commitlog: append: %w; and then: %w", err, l.goOffline(syncErr))
		}
	}
	return NotAppended(fmt.Errorf("commitlog: append: %w", err))
}

// cutTorn removes what a failed write left behind the last good batch. Until it
// has succeeded nothing is appended, so that no torn batch ever lies before a
// good one.
func (l *Log) cutTorn() error {
	l.mu.Lock()
	s := l.active()
	size := s.size
	l.mu.Unlock()
	if err := s.file.Truncate(size); err != nil {
		return fmt.Errorf("%w: taking back a failed append: %w", ErrOffline, err)
	}
	l.mu.Lock()
	l.torn = false
	l.mu.Unlock()
	return nil
}

// publish makes the written batches part of the log.
func (l *Log) publish(s *segment, headers []record.Header, leaderEpoch int32, now time.Time) {
	ms := timeOf(now)
	l.mu.Lock()
	if s.size == 0 {
		s.created = ms
	}
	s.appended = max(s.appended, ms)
	s.undated = s.undated || ms == noTime
	if next, changed := l.epochs.assign(leaderEpoch, headers[0].BaseOffset); changed {
		l.epochs, l.epochsDirty = next, true
	}
	pos := s.size
	for _, h := range headers {
		s.note(h, pos, l.cfg.IndexInterval)
		pos += int64(h.Size())
		l.producers.add(h, ms)
	}
	l.end = headers[len(headers)-1].NextOffset()
	full := len(s.offsets.pending) >= maxPending*offsetEntrySize
	l.mu.Unlock()
	if full {
		l.saveIndexes(s)
	}
}

// saveIndexes writes the waiting entries of both indexes. A failure costs
// nothing but memory: they stay in memory and are tried again.
func (l *Log) saveIndexes(s *segment) {
	for _, x := range []*index{&s.offsets, &s.times} {
		if err := l.saveIndex(s, x); err != nil {
			l.logger.Warn("index entries stay in memory", zap.String("log", l.dir), zap.Error(err))
		}
	}
}

// saveIndex writes the entries that are only in memory, each to its own place,
// so that two who do it at once do the same. The caller holds a reference to the
// segment, or it is the active one.
func (l *Log) saveIndex(s *segment, x *index) error {
	l.mu.Lock()
	n, pending := x.n, x.pending
	l.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	f, err := l.indexFile(s, x, true)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(pending, int64(n)*int64(x.width)); err != nil {
		return err
	}
	l.mu.Lock()
	x.wrote(n + len(pending)/x.width)
	l.mu.Unlock()
	return nil
}
