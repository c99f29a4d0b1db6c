package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Suffixes of a segment that is to replace others (Kafka, LogFileUtils): being
// written, and complete but not yet in their place.
const (
	cleanedSuffix = ".cleaned"
	swapSuffix    = ".swap"
	// setAsideSuffix is ours: a segment that was to replace others and is not
	// sound.
	setAsideSuffix = ".swap-damaged"
)

// swapIn puts a segment, whose files are complete and synced under their names
// for cleaning, in the place of a run of closed ones. Readers of those finish.
//
// The rename of the log to its name for swapping, synced, is the moment from
// which the new segment counts: before it a restart drops it, after it a restart
// finishes what follows here. taken tells whether the open file is the log's now,
// which it may be with an error, too.
func (l *Log) swapIn(old []*segment, next *segment, cuts int) (taken bool, err error) {
	l.takeBoth()
	defer l.leaveBoth()
	l.mu.Lock()
	err = l.writable()
	at := slices.Index(l.segments, old[0])
	end := at + len(old)
	if err == nil && (l.cuts != cuts || at < 0 || end >= len(l.segments) || !slices.Equal(l.segments[at:end], old)) {
		err = errOvertaken
	}
	l.mu.Unlock()
	if err != nil {
		return false, err
	}
	if err := l.stillHere(); err != nil {
		return false, err
	}
	name := l.path(next.base, logSuffix)
	if err := l.fs.Rename(name+cleanedSuffix, name+swapSuffix); err != nil {
		return false, diskError(err)
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return false, l.goOffline(err)
	}
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		index := l.path(next.base, suffix)
		if err := l.fs.Rename(index+cleanedSuffix, index); err != nil {
			return false, l.goOffline(err)
		}
	}
	l.replaceSegments(at, old, next)
	if err := l.finishFiles(old, name); err != nil {
		return true, l.goOffline(err)
	}
	l.mu.Lock()
	next.swapping, l.dirDirty = false, true
	l.mu.Unlock()
	return true, nil
}

// replaceSegments makes the change in memory.
func (l *Log) replaceSegments(at int, old []*segment, next *segment) {
	l.mu.Lock()
	next.swapping = true
	l.segments = slices.Concat(l.segments[:at], []*segment{next}, l.segments[at+len(old):])
	for _, s := range old {
		s.gone = true
		s.refs++ // released below, which closes what nobody reads
	}
	l.open = slices.DeleteFunc(l.open, func(s *segment) bool { return s.gone })
	l.hints, l.timesDirty = hints{}, true
	idle := l.evict(next)
	l.mu.Unlock()
	closeAll(idle)
	for _, s := range old {
		l.release(s)
	}
}

// finishFiles gives the new log its name. No old segment may come back once it
// has, since they overlap.
func (l *Log) finishFiles(old []*segment, name string) error {
	for _, s := range old[1:] {
		if err := l.removeFiles(s.base); err != nil {
			return err
		}
	}
	if len(old) > 1 {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	return l.fs.Rename(name+swapSuffix, name)
}

// removeFiles removes a segment's files, and says when it could not.
func (l *Log) removeFiles(base int64) error {
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix, snapshotSuffix} {
		if err := l.fs.Remove(l.path(base, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// listSwapped reads the folder and finishes what a compaction has begun.
func (l *Log) listSwapped() (folder, error) {
	f, err := l.list()
	if err != nil || len(f.swaps) == 0 {
		return f, err
	}
	for _, base := range f.swaps {
		if err := l.finishSwap(base, f.segments); err != nil {
			return f, err
		}
	}
	return l.list()
}

// finishSwap puts a segment in its place that a crash has left on its way there.
// The segments that it replaces are those that begin below its end, which is the
// beginning of another one; its indexes are made when they are needed.
//
// It was synced before it got that name. If it is not sound the disk has damaged
// it: then it is set aside, and nothing is removed for it.
func (l *Log) finishSwap(base int64, segments []*segment) error {
	name := l.path(base, logSuffix)
	end, err := l.endOfSwap(name+swapSuffix, base)
	if err == nil && !slices.ContainsFunc(segments, func(s *segment) bool { return s.base == end && end > base }) {
		err = fmt.Errorf("%w: it ends at %d, where no segment begins", errOffsets, end)
	}
	if err != nil {
		if isIOError(err) {
			return err
		}
		l.metrics.damage.Inc()
		l.logger.Error("a compacted segment is damaged and set aside", zap.String("file", name+setAsideSuffix), zap.NamedError("found", err))
		if err := l.fs.Rename(name+swapSuffix, name+setAsideSuffix); err != nil {
			return err
		}
		return l.fs.SyncDir(l.dir)
	}
	l.logger.Info("finishing a compaction", zap.String("log", l.dir), zap.Int64("segment", base), zap.Int64("end", end))
	for _, s := range segments {
		if s.base > base && s.base < end {
			if err := l.removeFiles(s.base); err != nil {
				return err
			}
		}
	}
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		l.removeFile(l.path(base, suffix))
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	if err := l.fs.Rename(name+swapSuffix, name); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// endOfSwap is the offset after the segment's last batch, if all are sound.
func (l *Log) endOfSwap(name string, base int64) (end int64, err error) {
	f, err := l.fs.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	w := newWalker(f, 0, size, &checkWindows)
	defer w.done()
	o := bounds{base, base + maxSegmentBytes}
	err = w.scan(&o, func(record.Header, int64) {})
	return o.next, err
}

// cleanedFile is the log file of a replacement while it is written.
type cleanedFile struct {
	l    *Log
	base int64
	f    disk.File
	buf  []byte
	pos  int64 // of buf in the file
}

// cleanedBuffer is how much is written at once.
const cleanedBuffer = 256 << 10

func (l *Log) createCleaned(base int64) (*cleanedFile, error) {
	f, err := l.fs.OpenFile(l.path(base, logSuffix)+cleanedSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, diskError(err)
	}
	return &cleanedFile{l: l, base: base, f: f}, nil
}

func (c *cleanedFile) write(b []byte) error {
	if len(c.buf)+len(b) > cleanedBuffer {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.buf = append(c.buf, b...)
	return nil
}

func (c *cleanedFile) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	if _, err := c.f.WriteAt(c.buf, c.pos); err != nil {
		return diskError(err)
	}
	c.pos += int64(len(c.buf))
	c.buf = c.buf[:0]
	return nil
}

// complete writes and syncs the log and, beside it, the indexes of s, which is
// to be the segment of these files.
func (c *cleanedFile) complete(s *segment) error {
	if err := c.flush(); err != nil {
		return err
	}
	if err := c.f.Datasync(); err != nil {
		return diskError(err)
	}
	for _, x := range []struct {
		*index
		suffix string
	}{{&s.offsets, indexSuffix}, {&s.times, timeSuffix}} {
		if err := disk.ReplaceFile(c.l.fs, c.l.path(c.base, x.suffix)+cleanedSuffix, x.pending); err != nil {
			return diskError(err)
		}
		x.wrote(len(x.pending) / x.width)
	}
	s.file, s.checked, s.indexDirty = c.f, true, false
	return nil
}

// discard removes what was written.
func (c *cleanedFile) discard() {
	closeAll([]disk.File{c.f})
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
		c.l.removeFile(c.l.path(c.base, suffix) + cleanedSuffix)
	}
}
