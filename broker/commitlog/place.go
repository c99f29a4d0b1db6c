package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// A log whose file is no longer at its path takes writes without an error: they
// reach an inode that no process will find again. So each sync is followed by a
// look at the path, before what was synced is told to be, and [Log.Check] looks
// where nothing is synced.

// checkEvery is how often a Check looks at most; those between rely on it, as a
// sync looks in any case.
const checkEvery = 5 * time.Millisecond

// Check finds out whether the log still is where it was opened. When its folder
// or the file that is appended to was removed, moved or replaced, the log is
// offline from then on and the error is ErrOffline and disk.ErrGone; so it is
// when the log was offline before, with the reason of then. It costs a system
// call at most, and may be called for each append.
func (l *Log) Check() error {
	now := time.Now().UnixNano()
	last := l.checked.Load()
	if now-last >= 0 && now-last < int64(checkEvery) || !l.checked.CompareAndSwap(last, now) || !l.flusher.try() {
		return l.offlineError() // another looks, or the sync under way will
	}
	defer l.flusher.leave() // nobody rewrites the list of segments
	return l.stillHere()
}

// stillHere is Check at once, for a caller that has one of the turns. It comes
// before anything that renames or removes by path: where another process has
// begun a log of its own at the path, that would be the other's.
func (l *Log) stillHere() error {
	l.mu.Lock()
	err := l.offline
	if l.closed || err != nil {
		l.mu.Unlock()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrOffline, err)
		}
		return err
	}
	active := l.active()
	active.refs++
	l.mu.Unlock()
	defer l.release(active)
	if err := l.inPlace(active); err != nil {
		return l.goOffline(err)
	}
	return nil
}

// named tells what an error was for: one that comes of the path being gone is
// that, whatever the call said.
func (l *Log) named(err error, dirty []*segment) error {
	if errors.Is(err, fs.ErrNotExist) {
		for _, s := range dirty {
			if gone := l.inPlace(s); errors.Is(gone, disk.ErrGone) {
				return gone
			}
		}
	}
	return err
}

func (l *Log) offlineError() error {
	if err := l.Offline(); err != nil {
		return fmt.Errorf("%w: %w", ErrOffline, err)
	}
	return nil
}

// inPlace tells whether the segment's file is at its path. The caller has the
// writer's or the flusher's turn and a reference.
func (l *Log) inPlace(s *segment) error {
	f, err := l.logFile(s)
	if err != nil {
		return err
	}
	l.mu.Lock()
	swapping := s.swapping
	l.mu.Unlock()
	if swapping { // its name is still to come
		return nil
	}
	return f.InPlace(l.path(s.base, logSuffix))
}

// noteEnd writes down how far the log went whose files are gone, so that a start
// on what is left gives none of its offsets again: consumers stand behind them. It
// leaves alone a folder in which there is a log of somebody else.
func (l *Log) noteEnd() {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return // the folder is gone with it
	}
	l.mu.Lock()
	kept := map[int64]disk.File{}
	for _, s := range l.segments {
		kept[s.base] = s.file
	}
	times := l.encodeTimes()
	l.mu.Unlock()
	ours := false
	for _, e := range entries {
		base, suffix, named := parseName(e.Name())
		if named && suffix == logSuffix {
			f := kept[base]
			if f != nil && f.InPlace(l.dir+"/"+e.Name()) != nil || f == nil && l.isStrange(base) {
				return
			}
		}
		ours = ours || named || e.Name() == checkpointFile
	}
	if !ours {
		return
	}
	if err = disk.ReplaceFile(l.fs, l.dir+"/"+timesFile, times); err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		l.logger.Error("it cannot be noted how far the log went: a start on what is left may give offsets again",
			zap.String("log", l.dir), zap.Error(err))
	}
}

// isStrange tells whether a segment is none of this log's.
func (l *Log) isStrange(base int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(l.segments, func(s *segment) bool { return s.base == base })
}

// offlineText tells an operator why a log takes no more.
func offlineText(cause error) string {
	if errors.Is(cause, disk.ErrGone) {
		return "the log takes no more writes: its files were removed, moved or replaced while it was open, so nothing that is written to them is found again"
	}
	return "the log takes no more writes: a sync failed, so what the disk has is unknown"
}
