package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strings"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// timesFile says when what is in the segments was appended. A file's own time
// says nothing: a copy, a backup or a touch changes it.
const timesFile = "append-times"

// noTime is what stands for the time where nobody knows it.
const noTime = -1

// clockTolerance is how far ahead of now a date may lie and still be believed, ms.
const clockTolerance = int64(time.Hour / time.Millisecond)

// timeOf is a caller's time, ms; the zero time is one that it does not know.
func timeOf(now time.Time) int64 {
	if now.IsZero() {
		return noTime
	}
	return now.UnixMilli()
}

// segmentTimes are those of one segment.
type segmentTimes struct {
	base        int64
	first, last int64 // appends, ms; noTime: not known
}

// appendTimes are those of a log's segments, complete up to an offset.
type appendTimes struct {
	end      int64
	segments []segmentTimes // by base
}

func (a appendTimes) encode() []byte {
	b := fmt.Appendf(nil, "1\nend_offset %d\n", a.end)
	for _, s := range a.segments {
		b = fmt.Appendf(b, "%d %d %d\n", s.base, s.first, s.last)
	}
	return fmt.Appendf(b, "crc32c %08x\n", crc32.Checksum(b, castagnoli))
}

func parseAppendTimes(b []byte) (a appendTimes, err error) {
	text := string(b)
	at := strings.LastIndex(text, "crc32c ")
	if at < 0 || text[at:] != fmt.Sprintf("crc32c %08x\n", crc32.Checksum(b[:at], castagnoli)) {
		return a, errors.New("checksum mismatch")
	}
	lines := strings.Split(strings.TrimSuffix(text[:at], "\n"), "\n")
	if lines[0] != "1" || len(lines) < 2 {
		return a, fmt.Errorf("version %q, only 1 is read", lines[0])
	}
	if _, err := fmt.Sscanf(lines[1], "end_offset %d", &a.end); err != nil {
		return a, err
	}
	for _, line := range lines[2:] {
		var s segmentTimes
		if _, err := fmt.Sscanf(line, "%d %d %d", &s.base, &s.first, &s.last); err != nil {
			return a, err
		}
		if n := len(a.segments); n > 0 && s.base <= a.segments[n-1].base || s.base < 0 || s.first < noTime || s.last < noTime {
			return a, fmt.Errorf("line %q contradicts the others", line)
		}
		a.segments = append(a.segments, s)
	}
	return a, nil
}

// between are the times of what lies between two offsets: of one segment, or of
// several that a compaction has made one of since.
func (a appendTimes) between(base, next int64) (first, last int64) {
	first, last = noTime, noTime
	found := false
	for _, s := range a.segments {
		if s.base < base || s.base >= next {
			continue
		}
		if !found {
			first, last, found = s.first, s.last, true
			continue
		}
		if last == noTime || s.last == noTime {
			last = noTime
		} else {
			last = max(last, s.last)
		}
	}
	return first, last
}

// encodeTimes is the file for the log as it is. Call with mu held.
func (l *Log) encodeTimes() []byte {
	a := appendTimes{end: l.end}
	for _, s := range l.segments {
		if s.size == 0 {
			continue
		}
		t := segmentTimes{s.base, s.created, s.appended}
		if s.undated {
			t.last = noTime
		}
		a.segments = append(a.segments, t)
	}
	return a.encode()
}

// loadTimes dates the segments from the file. What the file does not know, such
// as what was appended between the last checkpoint and a crash, has no date yet:
// it gets one when somebody next knows the time, and is as young as that.
func (r *recovery) loadTimes() {
	l := r.l
	a, known := l.readTimes()
	data := false
	for i, s := range l.segments {
		next := l.end
		if i+1 < len(l.segments) {
			next = l.segments[i+1].base
		}
		if s.size == 0 {
			continue
		}
		data = true
		switch {
		case known:
			s.created, s.appended = a.between(s.base, next)
			s.undated = s.appended == noTime || next > a.end
		case r.trusted && s.base < r.cp.Segment && r.cp.Created > 0:
			// An older version kept only the first append of the segment
			// behind it, which is later than any of this one.
			s.created, s.appended = r.cp.Created, r.cp.Created
		default:
			s.created, s.undated = noTime, true
		}
	}
	switch {
	case known:
		l.timesEnd = a.end
		if a.end > l.end { // what comes there next is not what it dates
			l.timesDirty, r.changed = true, true
		}
	case data:
		l.timesEnd, l.timesDirty = noTime, true
		l.producers.unsee() // by what clock they were seen is not known either
	default:
		l.timesEnd = l.end
	}
}

func (l *Log) readTimes() (a appendTimes, known bool) {
	b, err := disk.ReadFile(l.fs, l.dir+"/"+timesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return a, false
	}
	if err == nil {
		a, err = parseAppendTimes(b)
	}
	if err != nil {
		l.logger.Warn("the append times cannot be read: what is there counts as appended now", zap.String("log", l.dir), zap.Error(err))
	}
	return a, err == nil
}

// forgetTimes removes the file before what it dates is cut off: what is appended
// there next is younger. The caller syncs the folder.
func (l *Log) forgetTimes() error {
	l.mu.Lock()
	l.timesDirty = true
	l.mu.Unlock()
	if err := l.fs.Remove(l.dir + "/" + timesFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// date gives a date to what has none or one that is still to come. Call with mu
// held.
func (l *Log) date(now int64) {
	for _, s := range l.segments {
		if s.size == 0 {
			continue
		}
		if s.undated || s.appended > now+clockTolerance {
			s.appended, s.undated, l.timesDirty = now, false, true
		}
		if s.created == noTime || s.created > now+clockTolerance {
			s.created, l.timesDirty = now, true
		}
	}
}
