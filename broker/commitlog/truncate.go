package commitlog

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"sidestream/broker/disk"
)

// TruncateTo removes everything from the batch on that contains offset, as a
// follower does whose leader has another history from there. The log then ends
// where that batch began. An offset at or above the end changes nothing, one
// below the start is ErrOutOfRange. It is durable when it returns.
func (l *Log) TruncateTo(offset int64) error {
	l.takeBoth()
	defer l.leaveBoth()
	l.mu.Lock()
	err := l.writable()
	if err == nil && offset < l.start {
		err = fmt.Errorf("%w: %d, the log begins at %d", ErrOutOfRange, offset, l.start)
	}
	if err != nil || offset >= l.end {
		l.mu.Unlock()
		return err
	}
	i := l.find(offset)
	v := l.viewAt(i)
	l.mu.Unlock()
	defer l.release(v.segment)
	if err := l.truncate(i, v, offset); err != nil {
		return fmt.Errorf("commitlog: truncate %s to %d: %w", l.dir, offset, err)
	}
	return nil
}

// truncate cuts the segment with index i, of which v is a view.
func (l *Log) truncate(i int, v view, offset int64) error {
	if err := l.stillHere(); err != nil {
		return err
	}
	f, err := l.fs.OpenFile(l.path(v.base, logSuffix), os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	pos, end, err := cutAt(f, v, offset)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if err := l.lowerCleanPoint(end); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := l.forgetTimes(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := l.lowerCheckpoint(v.base, end); err != nil {
		return errors.Join(err, f.Close())
	}
	l.mu.Lock()
	s, dead := l.segments[i], l.segments[i+1:]
	l.segments = slices.Clone(l.segments[:i+1])
	for _, d := range dead {
		d.gone = true
		d.refs++ // released below, which closes what nobody reads
	}
	if s.file != nil {
		s.retired = append(s.retired, s.file)
	}
	s.file = f
	s.forget()
	s.size, s.checked, s.indexDirty = pos, true, true
	l.open = slices.DeleteFunc(l.open, func(o *segment) bool { return o.gone || o == s })
	l.hints = hints{}
	l.end, l.torn, l.dirDirty = end, false, true
	l.start = min(l.start, end) // the batch may have begun below a start inside it
	l.flushed = mark{min(l.flushed.offset, end), min(l.flushed.base, v.base), -1}
	l.recut = true
	l.cuts++
	var changed bool
	if l.epochs, changed = l.epochs.cutEnd(end); changed {
		l.epochsDirty = true
	}
	l.mu.Unlock()
	for _, d := range slices.Backward(dead) { // newest first: what a power cut leaves has no hole
		l.release(d)
		l.removeSegment(d)
	}
	if err := l.cutFiles(s, f, pos); err != nil {
		return l.goOffline(err)
	}
	if err := l.rebuildState(s, f); err != nil {
		return l.goOffline(err)
	}
	return l.syncAndSave()
}

// cutAt finds the batch that contains the offset: where it begins in the file,
// and its base offset.
func cutAt(f disk.File, v view, offset int64) (pos, end int64, err error) {
	w := newWalker(f, 0, v.size, &headerWindows)
	defer w.done()
	o := bounds{v.base, v.next}
	for {
		h, err := w.header()
		if err == io.EOF { // a hole before the next segment
			return w.pos, offset, nil
		}
		if err == nil {
			err = o.check(h)
		}
		if err != nil {
			return 0, 0, &CorruptError{Path: f.Name(), Pos: w.pos, End: v.size, Offset: o.next, Next: v.next, Cause: err}
		}
		if h.LastOffset() >= offset {
			return w.pos, min(offset, h.BaseOffset), nil
		}
		o.next = h.NextOffset()
		w.skip(h)
	}
}

// lowerCheckpoint moves the recovery point back to the start of the segment
// before anything of it is cut: a recovery point must never lie above the end.
func (l *Log) lowerCheckpoint(base, end int64) error {
	cp := checkpoint{
		Start: min(l.StartOffset(), end), Recovery: base, Segment: base, LastTime: -1, MaxTimestamp: -1,
		Created: noTime, Snapshot: unknownSnapshot,
	}
	if err := disk.WriteFileAtomic(l.fs, l.dir, l.dir+"/"+checkpointFile, cp.encode()); err != nil {
		return diskError(err)
	}
	l.mu.Lock()
	l.saved = mark{base, base, 0}
	l.mu.Unlock()
	return nil
}

// cutFiles shortens the log and empties its indexes.
func (l *Log) cutFiles(s *segment, f disk.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, x := range []*index{&s.offsets, &s.times} {
		file, err := l.indexFile(s, x, true)
		if err != nil {
			return err
		}
		if err := file.Truncate(0); err != nil {
			return err
		}
	}
	return nil
}

// rebuildState makes the indexes of the last segment again, and the producers as
// they were at the log's new end.
func (l *Log) rebuildState(s *segment, f disk.File) error {
	l.mu.Lock()
	interval, size, end := l.cfg.IndexInterval, s.size, l.end
	fresh := newSegment(s.base)
	l.mu.Unlock()
	w := newWalker(f, 0, size, &headerWindows)
	defer w.done()
	for {
		h, err := w.header()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		fresh.note(h, w.pos, interval)
		w.skip(h)
	}
	l.mu.Lock()
	s.offsets.pending, s.times.pending = fresh.offsets.pending, fresh.times.pending
	s.sinceIndex, s.lastTime = fresh.sinceIndex, fresh.lastTime
	s.maxTimestamp, s.maxOffset = fresh.maxTimestamp, fresh.maxOffset
	l.mu.Unlock()

	files, err := l.list()
	if err != nil {
		return err
	}
	if err := l.rebuildProducers(files.snapshots, end); err != nil {
		return err
	}
	l.producers.endAt(end)
	l.mu.Lock()
	l.snapshot = noProducers
	l.mu.Unlock()
	for _, at := range files.snapshots {
		if at > end {
			l.removeFile(l.path(at, snapshotSuffix))
		}
	}
	return nil
}

// deletedSuffix ends the name of a folder that is being removed (Kafka,
// LogFileUtils.DELETE_DIR_SUFFIX).
const deletedSuffix = "-delete"

// IsDeletedFolder tells whether a folder is what an interrupted [RemoveFolder]
// has left and is to be removed with all that is in it.
func IsDeletedFolder(name string) bool { return strings.HasSuffix(path.Base(name), deletedSuffix) }

// Remove closes the log and deletes its files, see [RemoveFolder]. Slices that
// are held stay readable until they are released.
func (l *Log) Remove() error {
	l.endCompaction()
	defer l.cleaner.leave()
	l.takeBoth()
	defer l.leaveBoth()
	l.closeFiles()
	return RemoveFolder(l.fs, l.dir)
}

// RemoveFolder deletes the folder of a log that is not open: it is renamed to a
// name that no log has, which survives a power cut, and then emptied, which may
// be interrupted. A folder that is not there is no error.
func RemoveFolder(fsys disk.FS, dir string) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	doomed := dir + "." + hex.EncodeToString(id[:]) + deletedSuffix
	if err := fsys.Rename(dir, doomed); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("commitlog: remove %s: %w", dir, err)
	}
	if err := fsys.SyncDir(path.Dir(dir)); err != nil {
		return fmt.Errorf("commitlog: remove %s: %w", dir, err)
	}
	if err := fsys.RemoveAll(doomed); err != nil {
		return fmt.Errorf("commitlog: remove %s: %w", doomed, err)
	}
	return nil
}
