package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// Flush makes everything durable that was appended before the call and returns
// the offset below which all is. One flush runs at a time; what is appended
// while it runs is covered by the next, so callers that wait together share one
// sync.
//
// A failed sync is final: the kernel may have dropped the pages, and a second
// sync would report success for data that is gone. The log is offline from then
// on and every Flush and Append returns ErrOffline. The same holds when the files
// are not at their paths any more, see [Log.Check].
func (l *Log) Flush() (durable int64, err error) {
	l.mu.Lock()
	want := l.end
	durable, err = l.flushed.offset, l.writable()
	l.mu.Unlock()
	if err != nil || durable >= want {
		return durable, err
	}
	l.flusher.take()
	defer l.flusher.leave()
	l.mu.Lock()
	durable, err = l.flushed.offset, l.writable()
	l.mu.Unlock()
	if err != nil || durable >= want { // the flush before covered it
		return durable, err
	}
	began := time.Now()
	p, err := l.sync(false)
	if err != nil {
		return durable, err
	}
	if p != nil {
		l.save(p)
	}
	l.metrics.flushSeconds.Observe(time.Since(began).Seconds())
	return l.FlushedOffset(), nil
}

// Checkpoint flushes, and moves the recovery point to where the flush came, so
// that a start after a crash has nothing to read up to there. Flush does so by
// itself each time a segment is closed and each Config.CheckpointBytes; call
// this now and then (Kafka does each minute) for logs that grow slowly. It costs
// nothing when nothing was appended.
func (l *Log) Checkpoint() error {
	l.flusher.take()
	defer l.flusher.leave()
	l.mu.Lock()
	err, idle := l.writable(), l.idle()
	l.mu.Unlock()
	if err != nil || idle {
		return err
	}
	return l.syncAndSave()
}

// idle tells whether the checkpoint on disk says all there is. Call with mu held.
func (l *Log) idle() bool {
	return l.saved.offset == l.end && l.savedStart == l.start &&
		!l.dirDirty && !l.rolled && !l.recut && !l.epochsDirty && !l.timesDirty
}

// syncAndSave flushes and writes a checkpoint. The caller has the flusher's turn.
func (l *Log) syncAndSave() error {
	p, err := l.sync(true)
	if err != nil {
		return err
	}
	return l.writePlan(p)
}

// plan is a checkpoint that is to be written, with all that must be on disk
// before it. It holds references to its segments.
type plan struct {
	cp        checkpoint
	at        mark
	segments  []*segment // whose indexes are not synced
	snapshots []snapshotFile
	epochs    []byte // nil: unchanged
	times     []byte // the append times; nil: unchanged
}

type snapshotFile struct {
	offset   int64
	contents []byte
	of       *segment // a snapshot of a roll; nil for the checkpoint's own
}

// sync makes durable what is appended now. It returns the plan of a checkpoint
// when one is due or asked for. The caller has the flusher's turn.
func (l *Log) sync(checkpoint bool) (*plan, error) {
	l.mu.Lock()
	active := l.active()
	to := mark{l.end, active.base, active.size}
	var dirty []*segment
	for _, s := range l.segments {
		if s.base >= l.flushed.base && (to.offset > l.flushed.offset || l.recut) {
			s.refs++
			dirty = append(dirty, s)
		}
	}
	names := l.dirDirty
	l.dirDirty = false
	var p *plan
	if checkpoint || l.rolled || l.saved.base == to.base && to.pos-l.saved.pos >= l.cfg.CheckpointBytes {
		p = l.plan(to)
	}
	l.mu.Unlock()

	err := l.syncFiles(dirty, names)
	for _, s := range dirty {
		l.release(s)
	}
	if err != nil {
		l.drop(p)
		return nil, l.goOffline(err)
	}
	l.mu.Lock()
	l.flushed, l.recut = to, false
	l.mu.Unlock()
	return p, nil
}

// syncFiles syncs the segments oldest first, then the names.
func (l *Log) syncFiles(dirty []*segment, names bool) error {
	for _, s := range dirty {
		f, err := l.logFile(s)
		if err != nil {
			return err
		}
		if err := f.Datasync(); err != nil {
			return err
		}
	}
	if names {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return l.named(err, dirty)
		}
	}
	for _, s := range dirty { // last: what is told to be durable can be found
		if err := l.inPlace(s); err != nil {
			return err
		}
	}
	return nil
}

// plan makes the checkpoint of the state at the log's end, which is at. Call
// with mu held; what it takes is given back by save's failure or by drop.
func (l *Log) plan(at mark) *plan {
	a := l.active()
	p := &plan{at: at, cp: checkpoint{
		Start: l.start, Recovery: at.offset, Segment: at.base, Pos: at.pos,
		OffsetEntries: int64(a.offsets.count()), TimeEntries: int64(a.times.count()),
		LastTime: a.lastTime, SinceIndex: a.sinceIndex,
		MaxTimestamp: a.maxTimestamp, MaxOffset: a.maxOffset, Created: a.created,
		Snapshot: noProducers,
	}}
	for _, s := range l.segments {
		if s.snapshot != nil {
			p.snapshots = append(p.snapshots, snapshotFile{s.base, s.snapshot, s})
			s.snapshot = nil
		}
		if s.indexDirty {
			s.indexDirty = false
			s.refs++
			p.segments = append(p.segments, s)
		}
	}
	if b := l.producers.encode(); b != nil {
		p.snapshots = append(p.snapshots, snapshotFile{at.offset, b, nil})
		p.cp.Snapshot = at.offset
	}
	if l.epochsDirty {
		p.epochs, l.epochsDirty = l.epochs.encode(), false
	}
	if l.timesDirty || l.timesEnd != l.end {
		p.times, l.timesDirty = l.encodeTimes(), false
	}
	l.rolled = false
	return p
}

// drop gives back what the plan took, so that the next plan has it again.
func (l *Log) drop(p *plan) {
	if p == nil {
		return
	}
	l.mu.Lock()
	l.rolled = true
	l.epochsDirty = l.epochsDirty || p.epochs != nil
	l.timesDirty = l.timesDirty || p.times != nil
	for _, s := range p.snapshots {
		if s.of != nil {
			s.of.snapshot = s.contents
		}
	}
	for _, s := range p.segments {
		s.indexDirty = true
	}
	l.mu.Unlock()
	for _, s := range p.segments {
		l.release(s)
	}
}

// save writes the checkpoint. Its failure harms nothing that was promised: the
// recovery point stays behind and the next flush tries again.
func (l *Log) save(p *plan) {
	if err := l.writePlan(p); err != nil {
		l.logger.Warn("the recovery point was not moved, a start after a crash would read more",
			zap.String("log", l.dir), zap.Error(err))
	}
}

// writePlan writes what the checkpoint relies on, then the checkpoint. The
// caller has the flusher's turn.
func (l *Log) writePlan(p *plan) error {
	if err := l.stillHere(); err != nil {
		l.drop(p)
		return err
	}
	if err := l.writePlanFiles(p); err != nil {
		l.drop(p)
		return fmt.Errorf("checkpoint: %w", diskError(err))
	}
	for _, s := range p.segments {
		l.release(s)
	}
	l.mu.Lock()
	old := l.snapshot
	l.saved, l.savedStart, l.snapshot = p.at, p.cp.Start, p.cp.Snapshot
	l.timesEnd = p.at.offset
	for _, s := range l.segments { // snapshots of rolls stay as long as their segment
		if s.base == old {
			old = noProducers
		}
	}
	l.mu.Unlock()
	if old >= 0 && old != p.cp.Snapshot {
		l.removeFile(l.path(old, snapshotSuffix))
	}
	return nil
}

func (l *Log) writePlanFiles(p *plan) error {
	for _, s := range p.segments {
		if err := l.syncIndexes(s); err != nil {
			return err
		}
	}
	for _, s := range p.snapshots {
		if err := disk.ReplaceFile(l.fs, l.path(s.offset, snapshotSuffix), s.contents); err != nil {
			return err
		}
	}
	if p.epochs != nil {
		if err := disk.ReplaceFile(l.fs, l.dir+"/"+epochFile, p.epochs); err != nil {
			return err
		}
	}
	if p.times != nil {
		if err := disk.ReplaceFile(l.fs, l.dir+"/"+timesFile, p.times); err != nil {
			return err
		}
	}
	if p.epochs != nil || len(p.segments)+len(p.snapshots) > 0 {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	return disk.WriteFileAtomic(l.fs, l.dir, l.dir+"/"+checkpointFile, p.cp.encode())
}

// syncIndexes makes the index files of a segment hold all their entries and
// nothing else, durably. The caller holds a reference.
func (l *Log) syncIndexes(s *segment) error {
	for _, x := range []*index{&s.offsets, &s.times} {
		if err := l.saveIndex(s, x); err != nil {
			return err
		}
		f, err := l.indexFile(s, x, true)
		if err != nil {
			return err
		}
		l.mu.Lock()
		want, growing := int64(x.n)*int64(x.width), s == l.active()
		l.mu.Unlock()
		size, err := f.Size()
		if err == nil && size > want && !growing { // the append's own writes lengthen an active one
			err = f.Truncate(want)
		}
		if err == nil {
			err = f.Datasync()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeFile removes a file that is not needed any more; when that fails it is
// removed at the next start.
func (l *Log) removeFile(name string) {
	if err := l.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.logger.Warn("a file that is not needed was not removed", zap.String("file", name), zap.Error(err))
	}
}
