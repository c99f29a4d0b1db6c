package commitlog

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"
)

// ageFrom is the time, in ms, from which the age of a segment counts: the later
// one of its last append, by our clock, and its highest timestamp, by the
// producers'. Where the two contradict each other one of the clocks was wrong,
// and what is removed does not come back. A timestamp that is still to come
// would keep the segment for ever, and counts for nothing.
func ageFrom(maxTimestamp, appended, now int64) int64 {
	if maxTimestamp > now+clockTolerance {
		return appended
	}
	return max(maxTimestamp, appended)
}

// expired tells whether a segment is older than the retention.
func expired(maxTimestamp, appended, now int64, retention time.Duration) bool {
	return retention > 0 && now-ageFrom(maxTimestamp, appended, now) > retention.Milliseconds()
}

// Retain removes, unless the log is only compacted, the segments that are older
// than Config.Retention and the oldest of those that Config.RetentionBytes has no room for, and forgets
// producers that have been silent for Config.ProducerExpiration. The active
// segment is only removed for its age; a new one takes its place. It returns how
// many segments were removed. Reads that hold a removed segment finish.
//
// now is the caller's time. The zero time says that it does not know it: then
// nothing is removed or forgotten for its age.
//
// It works on a full disk: removal needs no room.
func (l *Log) Retain(now time.Time) (removed int, err error) {
	l.mu.Lock()
	expiration := l.cfg.ProducerExpiration
	if !now.IsZero() {
		l.date(now.UnixMilli())
	}
	l.mu.Unlock()
	if !now.IsZero() {
		l.producers.expire(now, expiration)
	}

	l.takeBoth()
	start, err := l.retainFrom(now)
	var dead []*segment
	if err == nil {
		dead, err = l.moveStart(start)
	}
	l.leaveBoth()
	for _, s := range dead { // nobody can find them any more, so nobody need wait
		l.removeSegment(s)
	}
	if err != nil {
		return len(dead), fmt.Errorf("commitlog: retention of %s: %w", l.dir, err)
	}
	return len(dead), nil
}

// retainFrom is the log start offset that the configuration leaves. It begins a
// new segment when the active one is to go. The caller has both turns.
func (l *Log) retainFrom(now time.Time) (start int64, err error) {
	l.mu.Lock()
	if err := l.writable(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	cfg, start, segments := l.cfg, l.start, l.segments
	size := l.sizeLocked()
	l.mu.Unlock()
	for i, s := range segments {
		active := i == len(segments)-1
		if !cfg.deletes() {
			break
		}
		tooMuch := !active && cfg.RetentionBytes >= 0 && size-s.size >= cfg.RetentionBytes
		if !tooMuch {
			if cfg.Retention <= 0 || now.IsZero() {
				break
			}
			maxTimestamp, err := l.maxTimestampOf(s)
			if err != nil {
				return 0, err
			}
			l.mu.Lock()
			old := s.size > 0 && !s.undated && expired(maxTimestamp, s.appended, now.UnixMilli(), cfg.Retention)
			l.mu.Unlock()
			if !old {
				break
			}
		}
		if active {
			if err := l.roll(); err != nil { // what is before it can go all the same
				l.logger.Warn("an old active segment stays for now", zap.String("log", l.dir), zap.Error(err))
				return start, nil
			}
			return l.EndOffset(), nil
		}
		size -= s.size
		start = segments[i+1].base
	}
	return start, nil
}

// maxTimestampOf is the highest timestamp of a segment; of a segment that cannot
// be read that is unknown, -1. The caller has both turns.
func (l *Log) maxTimestampOf(s *segment) (int64, error) {
	for range 2 {
		l.mu.Lock()
		if s.checked {
			defer l.mu.Unlock()
			return s.maxTimestamp, nil
		}
		v := l.viewAt(l.find(s.base))
		l.mu.Unlock()
		err := l.prepare(&v)
		l.release(v.segment)
		var doubt *doubtError
		if errors.As(err, &doubt) {
			err = l.repairNow(doubt)
		}
		if err != nil {
			return -1, err
		}
	}
	return -1, nil
}

// DeleteBefore makes offset the log's start, up to its end; records below it are
// not found any more, and the segments that lie wholly below it are removed. It is
// durable when it returns. Moving the start back is not possible and does nothing.
// On a full disk it removes the segments and may return ErrNoSpace for the rest.
func (l *Log) DeleteBefore(offset int64) error {
	l.takeBoth()
	l.mu.Lock()
	err := l.writable()
	if err == nil && (offset < 0 || offset > l.end) {
		err = fmt.Errorf("%w: %d, the log ends at %d", ErrOutOfRange, offset, l.end)
	}
	l.mu.Unlock()
	var dead []*segment
	if err == nil {
		dead, err = l.moveStart(offset)
	}
	l.leaveBoth()
	for _, s := range dead {
		l.removeSegment(s)
	}
	if err != nil {
		return fmt.Errorf("commitlog: delete records of %s: %w", l.dir, err)
	}
	return nil
}

// moveStart raises the log's start, durably, if it is lower, and takes the
// segments below it out of the log. The caller has both turns and removes their
// files.
//
// The new start is on disk before a file goes: otherwise a power cut in the
// middle could bring some of the files back and leave a hole between them.
func (l *Log) moveStart(start int64) (dead []*segment, err error) {
	l.mu.Lock()
	before := l.start
	start = max(start, before)
	useless := len(l.segments) > 1 && l.segments[1].base <= start
	if start == before && start == l.savedStart && !useless {
		l.mu.Unlock()
		return nil, nil
	}
	l.start = start
	l.mu.Unlock()
	if err := l.syncAndSave(); err != nil {
		if !errors.Is(err, ErrNoSpace) {
			l.mu.Lock()
			l.start = before
			l.mu.Unlock()
			return nil, err
		}
		// No room for the note either. One segment at a time, each removal
		// synced, leaves no hole.
		if dead, err = l.removeOneByOne(start); err != nil {
			return dead, err
		}
		if err := l.syncAndSave(); err != nil {
			l.logger.Warn("the log's start was not noted", zap.String("log", l.dir), zap.Error(err))
			return dead, l.takeStartBack(start, before, err)
		}
		return dead, nil
	}
	return l.detach(start, math.MaxInt), nil
}

// takeStartBack lets the log begin where its files do, since no more is durable,
// and returns the error unless that is the wanted start.
func (l *Log) takeStartBack(want, before int64, cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = max(before, l.segments[0].base)
	if l.start == want {
		return nil
	}
	return cause
}

// removeOneByOne removes the segments below start in a way that needs no room.
func (l *Log) removeOneByOne(start int64) (dead []*segment, err error) {
	for {
		one := l.detach(start, 1)
		if len(one) == 0 {
			return dead, nil
		}
		dead = append(dead, one...)
		l.removeSegment(one[0])
		if err := l.fs.SyncDir(l.dir); err != nil {
			return dead, l.goOffline(err)
		}
	}
}

// detach takes up to limit segments that lie wholly below start out of the log.
func (l *Log) detach(start int64, limit int) (dead []*segment) {
	l.mu.Lock()
	for len(l.segments) > 1 && len(dead) < limit && l.segments[1].base <= start {
		s := l.segments[0]
		s.gone = true
		dead = append(dead, s)
		l.segments = slices.Clone(l.segments[1:])
	}
	if next, changed := l.epochs.cutStart(l.start); changed {
		l.epochs, l.epochsDirty = next, true
	}
	l.open = slices.DeleteFunc(l.open, func(s *segment) bool { return s.gone })
	var idle []*segment
	for _, s := range dead {
		if s.refs == 0 {
			idle = append(idle, s)
		}
	}
	for _, s := range idle {
		s.refs++ // so that the release below closes it
	}
	l.mu.Unlock()
	for _, s := range idle {
		l.release(s)
	}
	l.metrics.removedSegments.Add(float64(len(dead)))
	return dead
}
