package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// cleanFile says how far a log is compacted. Without it, compaction begins at the
// log's start again, which costs time and nothing else.
const cleanFile = "compaction-point"

// cleanPoint is how far a log is compacted.
type cleanPoint struct {
	// Offset: of the records below it, each is the last one of its key among
	// them, as far as they can be read.
	Offset int64
	// Horizon is when the first tombstone below it may be removed, ms since
	// 1970; -1 when there is none.
	Horizon int64
}

const cleanFormat = "1\nclean_offset %d\ndelete_horizon %d\n"

func (c cleanPoint) encode() []byte {
	b := fmt.Appendf(nil, cleanFormat, c.Offset, c.Horizon)
	return fmt.Appendf(b, "crc32c %08x\n", crc32.Checksum(b, castagnoli))
}

func parseCleanPoint(b []byte) (c cleanPoint, err error) {
	if _, err := fmt.Sscanf(string(b), cleanFormat, &c.Offset, &c.Horizon); err != nil {
		return c, err
	}
	if c.Offset < 0 || c.Horizon < -1 || !bytes.Equal(b, c.encode()) {
		return c, errors.New("checksum mismatch")
	}
	return c, nil
}

// loadCleanPoint reads the file at the start. A point above the log's end, which
// only lost files leave, must not count: what is written there next is not
// compacted.
func (l *Log) loadCleanPoint() error {
	name := l.dir + "/" + cleanFile
	c := cleanPoint{Horizon: -1}
	b, err := disk.ReadFile(l.fs, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if c, err = parseCleanPoint(b); err != nil {
			l.logger.Warn("the compaction point cannot be read, compacting from the start", zap.String("log", l.dir), zap.Error(err))
			c = cleanPoint{Horizon: -1}
		}
		if c.Offset > l.EndOffset() {
			return l.forgetCleanPoint()
		}
	}
	l.mu.Lock()
	l.clean = c
	l.mu.Unlock()
	return nil
}

// forgetCleanPoint lets the next compaction begin at the start, durably.
func (l *Log) forgetCleanPoint() error {
	l.mu.Lock()
	l.clean = cleanPoint{Horizon: -1}
	l.mu.Unlock()
	if err := l.fs.Remove(l.dir + "/" + cleanFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// lowerCleanPoint makes sure that it does not lie above the end to which the log
// is about to be cut.
func (l *Log) lowerCleanPoint(end int64) error {
	l.mu.Lock()
	below := l.clean.Offset <= end
	l.mu.Unlock()
	if below {
		return nil
	}
	return l.forgetCleanPoint()
}

// setCleanPoint notes how far the log is compacted, unless it was truncated
// meanwhile.
func (l *Log) setCleanPoint(c cleanPoint, cuts int) error {
	l.takeBoth()
	defer l.leaveBoth()
	l.mu.Lock()
	err := l.writable()
	skip := l.cuts != cuts || l.clean == c
	l.mu.Unlock()
	if err != nil || skip {
		return err
	}
	if err := disk.WriteFileAtomic(l.fs, l.dir, l.dir+"/"+cleanFile, c.encode()); err != nil {
		return diskError(err)
	}
	l.mu.Lock()
	l.clean = c
	l.mu.Unlock()
	return nil
}
