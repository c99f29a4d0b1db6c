package commitlog

import (
	"errors"
	"io/fs"
	"slices"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// removeSnapshots removes the snapshots that belong neither to a segment's start
// nor to the checkpoint.
func (l *Log) removeSnapshots(found []int64) {
	for _, offset := range found {
		base := func(s *segment) bool { return s.base == offset }
		if offset != l.snapshot && !slices.ContainsFunc(l.segments, base) {
			l.removeFile(l.path(offset, snapshotSuffix))
		}
	}
}

// loadEpochs reads the epoch file; without it the epochs up to the offset are
// read from the batches.
func (r *recovery) loadEpochs(offset int64) error {
	l := r.l
	b, err := disk.ReadFile(l.fs, l.dir+"/"+epochFile)
	if err == nil {
		if l.epochs, err = parseEpochs(b); err == nil {
			if !r.trusted {
				return nil
			}
			// What the file knows beyond the recovery point is found again.
			var changed bool
			if l.epochs, changed = l.epochs.cutEnd(offset); changed {
				l.epochsDirty = true
			}
			return nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) && offset == l.segments[0].base {
		return nil // no checkpoint since the log was made
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.logger.Warn("reading the leader epochs from the batches", zap.String("log", l.dir), zap.Error(err))
	}
	l.epochs, l.epochsDirty, r.changed = nil, true, true
	return l.walk(l.segments[0].base, offset, func(h record.Header) {
		l.epochs, _ = l.epochs.assign(h.LeaderEpoch, h.BaseOffset)
	})
}

// loadProducers brings the sequence state to the offset: from the checkpoint's
// snapshot, else from the newest older one and the batches since.
func (r *recovery) loadProducers(snapshots []int64, offset int64) error {
	if r.trusted && r.cp.Snapshot == noProducers {
		return nil
	}
	return r.l.rebuildProducers(snapshots, offset)
}

// rebuildProducers sets the sequence state to that at the offset.
func (l *Log) rebuildProducers(snapshots []int64, offset int64) error {
	from := l.segments[0].base
	l.producers.replace(nil, from)
	for _, at := range slices.Backward(snapshots) {
		if at > offset || at < from {
			continue
		}
		name := l.path(at, snapshotSuffix)
		b, err := disk.ReadFile(l.fs, name)
		var byID map[int64]*producer
		if err == nil {
			byID, err = decodeSnapshot(b)
		}
		if err == nil {
			l.producers.replace(byID, at)
			from = at
			break
		}
		l.logger.Warn("a producer snapshot cannot be read, looking for an older one", zap.String("file", name), zap.Error(err))
	}
	return l.walk(from, offset, func(h record.Header) { l.producers.add(h, noTime) })
}
