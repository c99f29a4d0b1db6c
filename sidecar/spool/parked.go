package spool

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// parked are entries of one lane that were moved out of the journal, since its
// partition is away and the journal would keep everything that came after them: a
// file of entries as they were, with their numbers. Events in it come before those
// that the lane has in the journal. Its fields are guarded by the spool's mu, but
// for the file, which is only appended to.
type parked struct {
	name  string
	f     disk.File
	size  int64       // bytes that are synced
	end   int64       // what the lane had in the journal below this number is here
	index []parkPlace // now and then, by number
}

type parkPlace struct{ base, pos int64 }

const (
	parkedFolder = "parked"
	parkStretch  = 16 << 20 // of the journal, looked at at once
	parkIndex    = 64 << 10
)

// parkedEnd is the number below which the lane is to be read from what is parked.
// Call with mu held.
func (l *lane) parkedEnd() int64 {
	if l.parked == nil {
		return -1
	}
	return l.parked.end
}

// inJournal is the number from which on the lane needs the journal. Call with mu
// held.
func (l *lane) inJournal() int64 { return max(l.first, l.parkedEnd()) }

// add notes an entry that is at a place of the file. Call with mu held.
func (p *parked) add(base, pos int64) {
	if n := len(p.index); n == 0 || pos-p.index[n-1].pos >= parkIndex {
		p.index = append(p.index, parkPlace{base, pos})
	}
}

// at is where to look for a number. Call with mu held.
func (p *parked) at(number int64) int64 {
	i, found := slices.BinarySearchFunc(p.index, number, func(x parkPlace, n int64) int { return int(min(max(x.base-n, -1), 1)) })
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	return p.index[i].pos
}

// readParked reads whole entries of a file from the one with a number on; next is
// the number to go on from.
func readParked(f disk.File, pos, size, end, number int64, most int) (b []byte, next int64, err error) {
	for pos < size {
		b = make([]byte, min(int64(most), size-pos))
		if _, err := f.ReadAt(b, pos); err != nil {
			return nil, number, err
		}
		skip, whole := 0, 0
		next = number
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break
			}
			whole += len(raw)
			h, err := record.ParseHeader(raw)
			if err != nil {
				return nil, number, err
			}
			if h.NextOffset() <= number {
				skip = whole
				continue
			}
			next = h.NextOffset()
		}
		switch {
		case whole == 0 && int64(len(b)) < size-pos: // one that is larger
			most = max(2*most, int(binary.BigEndian.Uint32(b[8:]))+12) // RecordBatch: base offset, length
			continue
		case whole == 0:
			return nil, number, fmt.Errorf("%s is cut at byte %d", f.Name(), pos)
		}
		pos += int64(whole)
		if skip < whole {
			if pos >= size {
				next = end
			}
			return b[skip:whole], next, nil
		}
	}
	return nil, end, nil
}

// readLane is read for one lane: from what is parked, or from the journal.
func (s *Spool) readLane(l *lane, number int64, size int) (b []byte, next int64, err error) {
	for {
		s.mu.Lock()
		if p := l.parked; p != nil && number < p.end {
			f, pos, all, end := p.f, p.at(number), p.size, p.end
			s.mu.Unlock()
			if f == nil && all > 0 {
				return nil, number, fs.ErrClosed // nothing of it is left to be sent
			}
			return readParked(f, pos, all, end, number, size)
		}
		s.mu.Unlock()
		b, next, err = s.read(max(number, s.journal.StartOffset()), size)
		// What is parked leaves the journal after that: an entry that was passed
		// over, because it had left just before, is parked now.
		s.mu.Lock()
		parked := number < l.parkedEnd()
		s.mu.Unlock()
		if !parked {
			return b, next, err
		}
	}
}

// park moves entries of lanes that make no way out of the oldest part of the
// journal, when it has grown and most of that part is settled or others'.
func (s *Spool) park() {
	for range 4 {
		if s.journal.Size() <= cmp.Or(s.cfg.ParkAbove, max(4*s.cfg.segmentBytes(), s.cfg.MaxBytes/4)) {
			return
		}
		if more, err := s.parkStretch(); err != nil {
			s.metrics.faults.WithLabelValues("park").Inc()
			s.log.Warn("spooled messages could not be moved out of the way of others", zap.Error(err))
			return
		} else if !more {
			return
		}
		s.reclaim()
	}
}

// parkStretch looks at one stretch; false when moving is of no use.
func (s *Spool) parkStretch() (moved bool, err error) {
	s.mu.Lock()
	away := map[laneKey]*lane{}
	from, held := s.registered, s.registered
	for key, l := range s.lanes {
		switch {
		case !l.isPending():
		case l.away != nil:
			away[key] = l
			from = min(from, l.inJournal())
		default:
			held = min(held, l.inJournal())
		}
	}
	s.mu.Unlock()
	if held <= from { // by one that makes way
		return false, nil
	}
	buffers := map[*lane][][]byte{}
	taken, total := int64(0), int64(0)
	at := max(from, s.journal.StartOffset())
	for total < parkStretch {
		b, next, err := s.read(at, loadBytes)
		if err != nil {
			return false, err
		}
		if next <= at {
			break
		}
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break
			}
			total += int64(len(raw))
			e, err := parseEntry(raw, true)
			if err != nil {
				return false, err
			}
			if l := away[e.key]; l != nil && s.stillIn(l, e) {
				buffers[l] = append(buffers[l], raw)
				taken += int64(len(raw))
			}
		}
		at = next
		if len(b) == 0 {
			break
		}
	}
	if 2*taken > total || total == 0 {
		return false, nil // as much would have to be written as is won
	}
	for _, l := range away {
		if err := s.parkEntries(l, buffers[l], at); err != nil {
			return false, err
		}
	}
	return true, nil
}

// stillIn says that an entry of a lane is in the journal alone, and needed.
func (s *Spool) stillIn(l *lane, e entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.base >= l.parkedEnd() && e.next-1 > l.settled
}

// parkEntries appends entries to a lane's file, durably: all that it has in the
// journal below the number to. Only the keeper does it.
func (s *Spool) parkEntries(l *lane, raws [][]byte, to int64) error {
	s.mu.Lock()
	p := l.parked
	s.mu.Unlock()
	if p == nil && len(raws) == 0 {
		p = &parked{} // there is nothing of it, but its end counts
	}
	made := p == nil || p.f == nil && len(raws) > 0
	if made {
		if err := s.gone(); err != nil {
			return err
		}
		s.parkedFiles++
		name := fmt.Sprintf("%s/%s/%d", s.dir, parkedFolder, s.parkedFiles)
		f, err := s.fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		p = &parked{name: name, f: f}
	}
	if len(raws) > 0 {
		_, err := p.f.Writev(raws)
		if err == nil {
			err = p.f.Datasync()
		}
		if err == nil && made {
			err = s.fsys.SyncDir(s.dir + "/" + parkedFolder)
		}
		if err == nil { // the journal will not have them any more
			err = p.f.InPlace(p.name)
		}
		if err != nil {
			if made {
				return errors.Join(err, p.f.Close(), s.fsys.Remove(p.name))
			}
			return errors.Join(err, p.f.Truncate(p.size))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, raw := range raws {
		h, err := record.ParseHeader(raw)
		if err != nil {
			continue // it was checked
		}
		p.add(h.BaseOffset, p.size)
		p.size += int64(len(raw))
		s.parkedBytes.Add(int64(len(raw)))
	}
	p.end = max(p.end, to)
	l.parked = p
	return nil
}

// unpark removes the files of lanes that have nothing left in them. A lane is
// forgotten only once that is durable: a file that a power cut brings back would
// be sent again without its mark. The caller has the keeper's turn.
func (s *Spool) unpark() {
	var done []*lane
	s.mu.Lock()
	for _, l := range s.lanes {
		if l.parked != nil && !(l.isPending() && l.first < l.parked.end) {
			done = append(done, l)
		}
	}
	s.mu.Unlock()
	if len(done) == 0 {
		return
	}
	removed := false
	var errs []error
	for _, l := range done {
		s.mu.Lock()
		p := l.parked
		f := p.f
		p.f = nil
		s.mu.Unlock()
		if f != nil {
			errs = append(errs, f.Close(), ignoreMissing(s.fsys.Remove(p.name)))
			removed = true
		}
	}
	if removed {
		errs = append(errs, s.fsys.SyncDir(s.dir+"/"+parkedFolder))
	}
	if err := errors.Join(errs...); err != nil {
		s.metrics.faults.WithLabelValues("park").Inc()
		s.log.Warn("files of spooled messages that are written were not removed", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range done {
		s.parkedBytes.Add(-l.parked.size)
		l.parked = nil
	}
}

// openParked finds what is parked, at the start.
func (s *Spool) openParked() error {
	dir := s.dir + "/" + parkedFolder
	list, err := s.fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.fsys.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return s.fsys.SyncDir(s.dir)
	}
	if err != nil {
		return err
	}
	for _, file := range list {
		number := 0
		if _, err := fmt.Sscanf(file.Name(), "%d", &number); err != nil || strings.Contains(file.Name(), ".") {
			continue
		}
		s.parkedFiles = max(s.parkedFiles, number)
		if err := s.openParkedFile(path.Join(dir, file.Name())); err != nil {
			return err
		}
	}
	return s.fsys.SyncDir(dir) // what was removed stays so
}

// openParkedFile makes a lane know of its file. A file of which nothing is left,
// or that a crash has left unfinished, is removed or cut: the journal still has
// what was not synced here.
func (s *Spool) openParkedFile(name string) error {
	f, err := s.fsys.OpenFile(name, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	all, err := f.Size()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p := &parked{name: name, f: f}
	var l *lane
	for p.size < all {
		b := make([]byte, min(loadBytes, all-p.size))
		for {
			if _, err := f.ReadAt(b, p.size); err != nil {
				return errors.Join(err, f.Close())
			}
			if len(b) < 12 {
				break
			}
			n := int64(binary.BigEndian.Uint32(b[8:])) + 12
			if n <= int64(len(b)) || n > all-p.size {
				break
			}
			b = make([]byte, n)
		}
		before := p.size
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break
			}
			e, err := parseEntry(raw, true)
			if err != nil || l != nil && (e.key != l.key || e.base < p.end) {
				break
			}
			if l == nil {
				l = s.laneOf(e.key)
			}
			if left := e.next - 1 - max(l.settled, e.base); left > 0 {
				s.register(l, e.base, e.next, int(left), e.accepted)
			}
			p.add(e.base, p.size)
			p.size += int64(len(raw))
			p.end = e.next
		}
		if p.size == before {
			break
		}
	}
	if p.size < all {
		s.log.Warn("a file of spooled messages ends in what a crash has left", zap.String("file", name), zap.Int64("bytes", all-p.size))
		if err := f.Truncate(p.size); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if l == nil || p.end-1 <= l.settled {
		return errors.Join(f.Close(), s.fsys.Remove(name))
	}
	if l.parked != nil {
		return errors.Join(fmt.Errorf("two files of parked messages for partition %s: %s and %s", l.key, l.parked.name, name), f.Close())
	}
	l.parked = p
	s.parkedBytes.Add(p.size)
	return nil
}

// parkedEntryOf is the parked entry with a number.
func (s *Spool) parkedEntryOf(number int64) (entry, bool) {
	s.mu.Lock()
	var in []*lane
	for _, l := range s.lanes {
		if p := l.parked; p != nil && len(p.index) > 0 && p.index[0].base <= number && number < p.end {
			in = append(in, l)
		}
	}
	s.mu.Unlock()
	for _, l := range in {
		b, _, err := s.readLane(l, number, parkIndex)
		if err != nil {
			continue // it was removed meanwhile
		}
		for raw, cut := range record.Split(b) {
			if cut != nil {
				break
			}
			if e, err := parseEntry(raw, false); err == nil && number >= e.base && number < e.next {
				return e, true
			}
			break // the first one, or none
		}
	}
	return entry{}, false
}
