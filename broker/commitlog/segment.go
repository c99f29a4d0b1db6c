package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Suffixes of a segment's files, whose names are the base offset in 20 digits
// (Kafka, LogFileUtils). A snapshot carries the offset up to which it holds.
const (
	logSuffix      = ".log"
	indexSuffix    = ".index"
	timeSuffix     = ".timeindex"
	snapshotSuffix = ".snapshot"
)

// maxOpenSegments is how many closed segments keep their files open for the next
// read. More consumers than that in different old segments pay an open a read.
const maxOpenSegments = 4

// segment is one file of batches with its two indexes. All fields but base are
// guarded by Log.mu.
type segment struct {
	base int64
	size int64 // bytes of whole batches

	file     disk.File   // nil: not open
	refs     int         // who uses the files without holding Log.mu
	gone     bool        // removed or closed: close the files with the last reference
	swapping bool        // the log file has its name for swapping still
	retired  []disk.File // replaced files that someone may still use

	offsets    index
	times      index
	checked    bool  // the indexes of a closed segment were looked at
	indexDirty bool  // has entries that are not synced
	sinceIndex int64 // bytes after the last offset entry
	lastTime   int64 // timestamp of the last time entry, -1 for none

	maxTimestamp int64 // -1 for none
	maxOffset    int64 // of the batch that has it
	created      int64 // append time of the first batch, ms; noTime: not known
	appended     int64 // append time of the last batch that has one, ms
	undated      bool  // has batches of which nobody knows when they were appended

	damage   []*CorruptError // by position
	snapshot []byte          // producers at base, not on disk yet
}

func newSegment(base int64) *segment {
	return &segment{
		base:    base,
		offsets: index{width: offsetEntrySize}, times: index{width: timeEntrySize},
		lastTime: -1, maxTimestamp: -1, created: noTime, appended: noTime,
	}
}

// note takes a batch into account that lies at pos.
func (s *segment) note(h record.Header, pos int64, interval int) {
	if h.MaxTimestamp > s.maxTimestamp {
		s.maxTimestamp, s.maxOffset = h.MaxTimestamp, h.LastOffset()
	}
	if s.sinceIndex > int64(interval) {
		s.offsets.add(offsetEntry{uint32(h.LastOffset() - s.base), uint32(pos)}.bytes()...)
		s.endTimes()
		s.sinceIndex, s.indexDirty = 0, true
	}
	s.sinceIndex += int64(h.Size())
	s.size = pos + int64(h.Size())
}

// endTimes adds the highest timestamp so far to the time index, so that the last
// entry of a closed segment tells it.
func (s *segment) endTimes() {
	if s.maxTimestamp > s.lastTime {
		s.times.add(timeEntry{s.maxTimestamp, uint32(s.maxOffset - s.base)}.bytes()...)
		s.lastTime, s.indexDirty = s.maxTimestamp, true
	}
}

// forget resets what was derived from the batches, before they are walked again.
func (s *segment) forget() {
	if s.offsets.file != nil {
		s.retired = append(s.retired, s.offsets.file)
	}
	if s.times.file != nil {
		s.retired = append(s.retired, s.times.file)
	}
	s.offsets, s.times = index{width: offsetEntrySize}, index{width: timeEntrySize}
	s.sinceIndex, s.lastTime, s.maxTimestamp, s.maxOffset = 0, -1, -1, 0
	s.damage = nil
}

// takeFiles takes all open files out, for the caller to close.
func (s *segment) takeFiles() []disk.File {
	files := s.retired
	for _, f := range []*disk.File{&s.file, &s.offsets.file, &s.times.file} {
		if *f != nil {
			files = append(files, *f)
			*f = nil
		}
	}
	s.retired = nil
	return files
}

func closeAll(files []disk.File) {
	for _, f := range files {
		_ = f.Close() // whatever had to be durable was synced before
	}
}

func segmentName(base int64, suffix string) string { return fmt.Sprintf("%020d%s", base, suffix) }

func (l *Log) path(base int64, suffix string) string { return l.dir + "/" + segmentName(base, suffix) }

// parseName splits the name of a segment's file.
func parseName(name string) (base int64, suffix string, ok bool) {
	if len(name) < 21 || name[20] != '.' || strings.ContainsAny(name[:20], "+-") {
		return 0, "", false
	}
	base, err := strconv.ParseInt(name[:20], 10, 64)
	return base, name[20:], err == nil
}

// release gives a reference back.
func (l *Log) release(s *segment) {
	l.mu.Lock()
	s.refs--
	var files []disk.File
	if s.refs == 0 {
		if s.gone {
			files = s.takeFiles()
		} else {
			files, s.retired = s.retired, nil
		}
	}
	l.mu.Unlock()
	closeAll(files)
}

// errOvertaken: the segment was removed or replaced meanwhile. The list of
// segments says what is there in its place.
var errOvertaken = errors.New("commitlog: the segment was removed meanwhile")

// logFile is the segment's file, opened for reading when it is not open. The
// caller holds a reference.
func (l *Log) logFile(s *segment) (disk.File, error) {
	return l.openOnce(s, &s.file, logSuffix, os.O_RDONLY)
}

// indexFile is the file of one of the segment's indexes. The caller holds a
// reference.
func (l *Log) indexFile(s *segment, x *index, create bool) (disk.File, error) {
	suffix, flag := indexSuffix, os.O_RDWR
	if x == &s.times {
		suffix = timeSuffix
	}
	if create {
		flag |= os.O_CREATE
	}
	return l.openOnce(s, &x.file, suffix, flag)
}

// openOnce fills the slot with an open file unless it is filled. Two may try at
// once; the later one uses what the earlier one opened. The name may belong to
// another segment by the time it is opened, or to none: then it is errOvertaken.
func (l *Log) openOnce(s *segment, slot *disk.File, suffix string, flag int) (disk.File, error) {
	l.mu.Lock()
	f, name, swapping := *slot, l.path(s.base, suffix), s.swapping && suffix == logSuffix
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	var err error
	if swapping {
		f, err = l.fs.OpenFile(name+swapSuffix, flag, 0o644)
	}
	if !swapping || errors.Is(err, fs.ErrNotExist) { // it may have got its name meanwhile
		f, err = l.fs.OpenFile(name, flag, 0o644)
	}
	l.mu.Lock()
	var idle []disk.File
	switch {
	case l.closed || s.gone:
		if err == nil {
			idle = []disk.File{f}
		}
		f, err = nil, errOvertaken
		if l.closed {
			err = ErrClosed
		}
	case err != nil:
		f = nil
	case *slot != nil:
		idle = []disk.File{f}
		f = *slot
	default:
		*slot = f
		idle = l.evict(s)
	}
	l.mu.Unlock()
	closeAll(idle)
	return f, err
}

// overtaken tells whether an error only says that segments were removed or
// replaced while they were looked at, so that another look is due.
func (l *Log) overtaken(err error) bool {
	var doubt *doubtError
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && (errors.Is(err, errOvertaken) || errors.As(err, &doubt) && doubt.seg.gone)
}

// evict notes that the segment has open files, and takes those of the segment
// that was opened first when too many are open. Call with mu held.
func (l *Log) evict(opened *segment) (idle []disk.File) {
	for _, s := range l.open {
		if s == opened {
			return nil
		}
	}
	if len(l.segments) == 0 || opened == l.active() || opened.gone {
		return nil
	}
	l.open = append(l.open, opened)
	kept := l.open[:0]
	over := len(l.open) - maxOpenSegments
	for _, s := range l.open {
		switch {
		case s.gone: // its files are closed with the last reference
			over--
		case over > 0 && s.refs == 0 && s != l.active():
			idle = append(idle, s.takeFiles()...)
			over--
		default:
			kept = append(kept, s)
		}
	}
	clear(l.open[len(kept):])
	l.open = kept
	return idle
}
