package commitlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// folder is what a listing of the log's folder shows.
type folder struct {
	segments  []*segment // by base
	snapshots []int64    // rising
	leftovers []string   // files of ours that belong to nothing
	swaps     []int64    // bases of segments that are on their way in the place of others
}

// list reads the folder. Files that are not ours are none of our business.
func (l *Log) list() (folder, error) {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return folder{}, err
	}
	var f folder
	have := map[int64]bool{}
	for _, e := range entries { // sorted by name, so by base
		base, suffix, ok := parseName(e.Name())
		if !ok || suffix != logSuffix || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return folder{}, err
		}
		s := newSegment(base)
		s.size = info.Size()
		f.segments = append(f.segments, s)
		have[base] = true
	}
	for _, e := range entries {
		base, suffix, ok := parseName(e.Name())
		switch {
		case !ok:
			if ours := e.Name() == checkpointFile+".tmp" || e.Name() == epochFile+".tmp" || e.Name() == cleanFile+".tmp" || e.Name() == timesFile+".tmp"; ours {
				f.leftovers = append(f.leftovers, e.Name())
			}
		case suffix == logSuffix+swapSuffix:
			f.swaps = append(f.swaps, base)
		case strings.Contains(suffix, cleanedSuffix):
			f.leftovers = append(f.leftovers, e.Name())
		case suffix == snapshotSuffix:
			f.snapshots = append(f.snapshots, base)
		case (suffix == indexSuffix || suffix == timeSuffix) && !have[base],
			suffix == snapshotSuffix+".tmp", suffix == indexSuffix+".tmp", suffix == timeSuffix+".tmp":
			f.leftovers = append(f.leftovers, e.Name())
		}
	}
	return f, nil
}

// recover brings the log to where it can be served. After a clean stop it reads
// the folder's names and the small checkpoint; after a crash also what lies
// beyond the recovery point.
func (l *Log) recover(clean, begun bool) error {
	if err := l.fs.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	f, err := l.listSwapped()
	if err != nil {
		return err
	}
	cp, trusted, reason := readCheckpoint(l.fs, l.dir)
	if !trusted {
		cp.Snapshot = unknownSnapshot
	}
	if reason != nil {
		l.logger.Error("the recovery point cannot be read, looking at the whole last segment",
			zap.String("log", l.dir), zap.Error(reason))
	}
	if len(f.segments) == 0 {
		return l.create(f, cp, trusted, begun)
	}
	promised, err := l.promised(f, cp, trusted)
	if err != nil {
		return err
	}
	for _, name := range f.leftovers {
		l.removeFile(l.dir + "/" + name)
	}
	l.segments = l.dropBelow(f.segments, cp.Start)
	l.start = max(cp.Start, l.segments[0].base)
	cp.follow(l.segments[0].base)

	r := recovery{l: l, cp: cp, trusted: trusted, lost: promised}
	if err := r.run(f.snapshots); err != nil {
		return err
	}
	if err := l.loadCleanPoint(); err != nil {
		return err
	}
	if clean && r.scanned > 0 {
		l.logger.Warn("after a clean stop there was more in the log than noted",
			zap.String("log", l.dir), zap.Int64("bytes", r.scanned))
	}
	return nil
}

// dropBelow removes the segments that lie wholly below the log's start: a
// removal that a crash interrupted.
func (l *Log) dropBelow(segments []*segment, start int64) []*segment {
	for len(segments) > 1 && segments[1].base <= start {
		l.removeSegment(segments[0])
		segments = segments[1:]
	}
	return segments
}

// removeSegment removes a segment's files.
func (l *Log) removeSegment(s *segment) {
	for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix, snapshotSuffix} {
		l.removeFile(l.path(s.base, suffix))
	}
}

// recovery is the work of bringing one log back.
type recovery struct {
	l       *Log
	cp      checkpoint
	trusted bool // the checkpoint is there and fits the files
	from    int  // index of the first segment to look at
	scanned int64
	cut     int64
	lost    int64 // offset up to which batches were promised that are not there
	changed bool  // something has to be synced and noted
	rolled  bool  // the active segment is one that recovery began
}

func (r *recovery) run(snapshots []int64) error {
	l := r.l
	if err := r.begin(); err != nil {
		return err
	}
	at := r.l.segments[r.from].base
	if r.trusted {
		at = r.cp.Recovery
	}
	if err := r.loadEpochs(at); err != nil {
		return err
	}
	if err := r.loadProducers(snapshots, at); err != nil {
		return err
	}
	end, err := r.scan(at)
	if err != nil {
		return err
	}
	l.end = end
	if end < r.lost {
		if err := r.beginBehind(r.lost); err != nil {
			return err
		}
	}
	l.start = min(max(l.start, l.segments[0].base), l.end)
	var changed bool
	if l.epochs, changed = l.epochs.cutEnd(l.end); changed {
		l.epochsDirty, r.changed = true, true
	}
	l.producers.endAt(l.end)
	r.loadTimes()
	for _, s := range l.segments[min(r.from, len(l.segments)-1) : len(l.segments)-1] {
		s.endTimes() // as a roll does
		r.changed = r.changed || s.indexDirty
	}
	return r.finish(snapshots)
}

// begin finds the segment to start at and takes over its state at the recovery
// point.
func (r *recovery) begin() error {
	l := r.l
	last := len(l.segments) - 1
	if r.trusted {
		r.from = slices.IndexFunc(l.segments, func(s *segment) bool { return s.base == r.cp.Segment })
		if r.from < 0 || l.segments[r.from].size < r.cp.Pos {
			l.logger.Error("the log is shorter than its recovery point: synced data is gone",
				zap.String("log", l.dir), zap.Int64("recovery_point", r.cp.Recovery))
			l.metrics.damage.Inc()
			r.trusted, r.lost = false, r.cp.Recovery
			if a, known := l.readTimes(); known { // noted as the files went
				r.lost = max(r.lost, a.end)
			}
		}
	}
	if !r.trusted {
		r.from, r.changed = last, true
		s := l.segments[last]
		l.rolled = true
		return r.emptyIndexes(s)
	}
	s := l.segments[r.from]
	s.lastTime = r.cp.LastTime
	s.maxTimestamp, s.maxOffset, s.sinceIndex = r.cp.MaxTimestamp, r.cp.MaxOffset, r.cp.SinceIndex
	s.checked = true
	for _, x := range []struct {
		*index
		n      int64
		suffix string
	}{{&s.offsets, r.cp.OffsetEntries, indexSuffix}, {&s.times, r.cp.TimeEntries, timeSuffix}} {
		short, err := r.trimIndex(x.index, l.path(s.base, x.suffix), x.n)
		if err != nil {
			return err
		}
		if short {
			l.logger.Warn("an index is shorter than noted, rebuilding it", zap.String("log", l.dir), zap.Int64("segment", s.base))
			return r.reindex(s)
		}
	}
	return nil
}

// trimIndex takes the first n entries of an index file as they are, and cuts off
// what was written after the recovery point, which the scan makes again.
func (r *recovery) trimIndex(x *index, name string, n int64) (short bool, err error) {
	want := n * int64(x.width)
	info, err := r.l.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return n > 0, nil
	}
	if err != nil {
		return false, err
	}
	if info.Size() < want {
		return true, nil
	}
	x.n = int(n)
	if info.Size() == want {
		return false, nil
	}
	return false, r.truncate(name, want)
}

func (r *recovery) truncate(name string, size int64) error {
	f, err := r.l.fs.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// emptyIndexes forgets what the index files of a segment say.
func (r *recovery) emptyIndexes(s *segment) error {
	l := r.l
	s.forget()
	s.checked, s.indexDirty = true, true
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		err := r.truncate(l.path(s.base, suffix), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reindex rebuilds the indexes below the recovery point from the headers.
func (r *recovery) reindex(s *segment) error {
	size := s.size
	if err := r.emptyIndexes(s); err != nil {
		return err
	}
	r.changed = true
	r.l.metrics.indexRebuilds.Inc()
	f, err := r.l.logFile(s)
	if err != nil {
		return err
	}
	v := view{segment: s, size: r.cp.Pos, next: r.cp.Recovery}
	s.damage, err = r.l.inspectFile(context.Background(), &pace{}, f, v, func(h record.Header, pos int64) {
		s.note(h, pos, r.l.cfg.IndexInterval)
	})
	r.l.reportDamage(s.damage)
	s.size = size
	return err
}

// scan checks every batch from the given offset on, which is where the first
// segment to look at stands, and returns the log's end. It cuts where the sound
// part of the log ends.
func (r *recovery) scan(offset int64) (end int64, err error) {
	l := r.l
	pos := int64(0)
	if r.trusted {
		pos = r.cp.Pos
	}
	for i := r.from; i < len(l.segments); i++ {
		s := l.segments[i]
		if i > r.from {
			pos = 0
			if s.base != offset { // the segment before lost its tail, so nothing here was promised
				return offset, r.dropFrom(i)
			}
			if err := r.emptyIndexes(s); err != nil {
				return 0, err
			}
		}
		size := s.size
		if pos == size {
			continue
		}
		good, next, cause, err := r.scanSegment(s, pos, offset)
		if err != nil {
			return 0, err
		}
		offset = next
		if cause == nil {
			continue
		}
		l.logger.Warn("cutting a torn tail", zap.String("log", l.dir), zap.Int64("segment", s.base),
			zap.Int64("position", good), zap.Int64("bytes", size-good), zap.Int64("next_offset", offset), zap.NamedError("found", cause))
		r.cut += size - good
		if err := r.truncate(l.path(s.base, logSuffix), good); err != nil {
			return 0, err
		}
		s.size, r.changed = good, true
		return offset, r.dropFrom(i + 1)
	}
	return offset, nil
}

// scanSegment checks one segment from pos on. It returns where its sound part
// ends and why it ends there, nil for the end of the file.
//
// Beyond a recovery point that can be trusted, the first unsound batch is where
// the power cut came, and what is behind it was never promised. Without one it
// may as well be damage in the middle of good data, which is not ours to throw
// away: then only what is followed by nothing sound is cut.
func (r *recovery) scanSegment(s *segment, pos, offset int64) (good, next int64, cause, err error) {
	l := r.l
	f, err := l.logFile(s)
	if err != nil {
		return 0, 0, nil, err
	}
	r.changed = true
	r.scanned += s.size - pos
	l.metrics.scannedBytes.Add(float64(s.size - pos))
	w := newWalker(f, pos, s.size, &checkWindows)
	defer w.done()
	o := bounds{offset, s.base + maxSegmentBytes}
	found := func(h record.Header, pos int64) {
		s.note(h, pos, l.cfg.IndexInterval)
		s.indexDirty = true
		l.producers.add(h, noTime)
		if next, changed := l.epochs.assign(h.LeaderEpoch, h.BaseOffset); changed {
			l.epochs, l.epochsDirty = next, true
		}
	}
	for {
		cause = w.scan(&o, found)
		if cause == nil || isIOError(cause) {
			if cause != nil {
				return 0, 0, nil, cause
			}
			return w.pos, o.next, nil, nil
		}
		good, next = w.pos, o.next
		if r.trusted || !w.resync(o) {
			return good, next, cause, nil
		}
		h, err := w.header()
		if err != nil {
			return 0, 0, nil, err
		}
		d := &CorruptError{Path: l.path(s.base, logSuffix), Pos: good, End: w.pos, Offset: next, Next: h.BaseOffset, Cause: cause}
		s.damage = append(s.damage, d)
		l.reportDamage(s.damage[len(s.damage)-1:])
		o.next = h.BaseOffset
	}
}

// isIOError tells a failure to read from what was read.
func isIOError(err error) bool {
	for _, known := range []error{record.ErrTruncated, record.ErrMagic, record.ErrCRC, record.ErrInvalid, errOffsets} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// dropFrom removes the segments from index i on, which a crash has cut off from
// the log.
func (r *recovery) dropFrom(i int) error {
	l := r.l
	for _, s := range slices.Backward(l.segments[i:]) {
		l.logger.Warn("removing a segment behind the torn tail", zap.String("log", l.dir),
			zap.Int64("segment", s.base), zap.Int64("bytes", s.size))
		r.cut += s.size
		l.removeSegment(s)
		r.changed = true
	}
	l.segments = l.segments[:i]
	return nil
}

// beginBehind begins a segment at an offset above the log's end, so that the
// offsets between, which were promised and are gone, are never given again.
func (r *recovery) beginBehind(offset int64) error {
	l := r.l
	l.logger.Error("records that were synced are gone, their offsets stay empty",
		zap.String("log", l.dir), zap.Int64("from", l.end), zap.Int64("to", offset-1))
	lost := &CorruptError{
		Path: l.path(l.active().base, logSuffix), Pos: l.active().size, End: l.active().size,
		Offset: l.end, Next: offset, Cause: fmt.Errorf("%w: the file ends before its recovery point", record.ErrTruncated),
	}
	l.active().damage = append(l.active().damage, lost)
	l.end = offset
	r.rolled = true
	return l.roll()
}

// finish makes durable what was found, opens the active segment for appending,
// and notes the new recovery point.
func (r *recovery) finish(snapshots []int64) error {
	l := r.l
	l.metrics.cutBytes.Add(float64(r.cut))
	active := l.active()
	if !r.rolled { // else it was just made, open for appending
		f, err := l.fs.OpenFile(l.path(active.base, logSuffix), os.O_RDWR|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		if active.file != nil { // opened for the scan
			closeAll([]disk.File{active.file})
		}
		active.file = f
	}
	l.saved = mark{r.cp.Recovery, r.cp.Segment, r.cp.Pos}
	l.savedStart, l.snapshot = r.cp.Start, r.cp.Snapshot
	l.flushed = mark{l.end, active.base, active.size}
	if !r.changed {
		l.removeSnapshots(snapshots)
		return nil
	}
	// Nothing is served that a second power cut could take back.
	l.flushed.base = l.segments[min(r.from, len(l.segments)-1)].base
	l.recut, l.dirDirty = true, true
	p, err := l.sync(true)
	if err != nil {
		return err
	}
	if err := l.writePlan(p); errors.Is(err, ErrNoSpace) && r.trusted {
		// What is kept is synced, and the old recovery point finds it again.
		// On a full disk the log is needed open, so that retention makes room.
		l.logger.Warn("no room to move the recovery point", zap.String("log", l.dir), zap.Error(err))
	} else if err != nil {
		return err
	}
	l.removeSnapshots(snapshots)
	return nil
}
