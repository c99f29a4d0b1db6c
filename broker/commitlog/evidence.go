package commitlog

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// evidence is what the files of a log say of how far it went, when the segments
// that should say it are gone.
type evidence struct {
	next int64  // the lowest offset that none of them knows of
	file string // the one that knows of the highest
}

func (e *evidence) add(next int64, file string) {
	if next > e.next || e.file == "" {
		e.next, e.file = max(e.next, next), file
	}
}

// evidence looks at everything that lies beside the segments. An offset that was
// given, though it may never have been promised, counts as well: nobody misses it.
func (l *Log) evidence(cp checkpoint, trusted bool) (evidence, error) {
	var e evidence
	if trusted {
		e.add(max(cp.Recovery, cp.Start), checkpointFile)
	}
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return e, err
	}
	for _, f := range entries {
		base, suffix, ok := parseName(f.Name())
		if !ok || f.IsDir() || suffix == logSuffix {
			continue
		}
		next := base // a segment begins, or a snapshot holds, where others end
		if width := map[string]int{indexSuffix: offsetEntrySize, timeSuffix: timeEntrySize}[suffix]; width > 0 {
			if b, err := disk.ReadFile(l.fs, l.dir+"/"+f.Name()); err == nil {
				next += lastIndexed(b, width)
			}
		}
		e.add(next, f.Name())
	}
	if b, err := disk.ReadFile(l.fs, l.dir+"/"+epochFile); err == nil {
		if list, err := parseEpochs(b); err == nil && len(list) > 0 {
			e.add(list[len(list)-1].start+1, epochFile) // an epoch is noted with its first batch
		}
	}
	if a, known := l.readTimes(); known {
		e.add(a.end, timesFile)
	}
	if b, err := disk.ReadFile(l.fs, l.dir+"/"+cleanFile); err == nil {
		if c, err := parseCleanPoint(b); err == nil {
			e.add(c.Offset, cleanFile)
		}
	}
	return e, nil
}

// lastIndexed is one more than the last offset that an index file names, counted
// from its segment's base, as far as its entries rise as they should.
func lastIndexed(b []byte, width int) (next int64) {
	for ; len(b) >= width; b = b[width:] {
		rel := int64(parseOffsetEntry(b).rel)
		if width == timeEntrySize {
			rel = int64(parseTimeEntry(b).rel)
		}
		if rel < next || rel == 0 {
			return next
		}
		next = rel + 1
	}
	return next
}

// create makes a new log, durably: from now on a missing checkpoint is a loss.
//
// Files of a log without any segment mean that segments were lost. The offsets
// that they know of are not given again, or a consumer would take other records
// for those that it has seen: the log begins behind them, as if retention had
// removed everything.
func (l *Log) create(f folder, cp checkpoint, trusted, begun bool) error {
	e, err := l.evidence(cp, trusted)
	if err != nil {
		return err
	}
	if begun || e.file != "" {
		l.tellLost(cp.Start, e)
	}
	base := e.next
	file, err := l.createLog(base)
	if err != nil {
		return diskError(err)
	}
	s := newSegment(base)
	s.file, s.checked = file, true
	l.segments = []*segment{s}
	l.start, l.end, l.timesEnd = base, base, base
	l.flushed = mark{base, base, 0}
	l.producers.replace(nil, base)
	l.epochsDirty = e.file != "" // the old ones say nothing of this log
	if err := l.forgetTimes(); err != nil {
		return err
	}
	l.timesDirty = false
	if err := l.loadCleanPoint(); err != nil {
		return err
	}
	if err := l.syncAndSave(); err != nil {
		return err
	}
	// Only now may go what told of the offsets.
	for _, name := range f.leftovers {
		l.removeFile(l.dir + "/" + name)
	}
	for _, at := range f.snapshots {
		l.removeFile(l.path(at, snapshotSuffix))
	}
	return l.fs.SyncDir(path.Dir(l.dir))
}

// tellLost reports that the segments are gone.
func (l *Log) tellLost(start int64, e evidence) {
	cause := errors.New("no segment of the log is left, nor anything that says how far it went: it begins again at offset 0, unless it was stopped as it was made")
	if e.file != "" {
		cause = fmt.Errorf("no segment of the log is left; it begins at offset %d, behind what %s knows of", e.next, e.file)
	}
	l.lost = &CorruptError{Path: l.dir, Offset: min(start, e.next), Next: e.next, Cause: cause}
	l.metrics.damage.Inc()
	l.logger.Error("stored data is gone", zap.String("log", l.dir), zap.Int64("offset", e.next), zap.NamedError("found", cause))
}

// promised is how far what is beside the segments says that the log went, for
// when there is no checkpoint to say it: snapshots are written only of what was
// synced; a log whose segments are all empty without a checkpoint was emptied.
func (l *Log) promised(f folder, cp checkpoint, trusted bool) (next int64, err error) {
	if trusted {
		return 0, nil
	}
	if !slices.ContainsFunc(f.segments, func(s *segment) bool { return s.size > 0 }) {
		e, err := l.evidence(cp, trusted)
		return e.next, err
	}
	if n := len(f.snapshots); n > 0 {
		next = f.snapshots[n-1]
	}
	return next, nil
}
