package commitlog

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"

	"sidestream/broker/disk"
)

// Widths of the entries of Kafka's index files (Kafka, OffsetIndex and
// TimeIndex): big endian, without a header.
const (
	offsetEntrySize = 8  // offset - segment base (4), position in the log (4)
	timeEntrySize   = 12 // timestamp in ms (8), offset - segment base (4)
)

// maxPending is how many entries wait in memory before they are written: one
// write for 64 of them, and at most 256 KiB of log that is only indexed here.
const maxPending = 64

// indexBlock is how many entries the last step of a search reads at once.
const indexBlock = 340 // × 12 bytes ≈ one page

// index is one index file of a segment and its newest entries, which are still
// in memory. An index only ever saves reading: it can be rebuilt from the log,
// and what it says is checked against the log when it is used. All fields are
// guarded by Log.mu; the bytes of pending are never changed once they are there,
// so that a copy of the struct is a consistent view.
type index struct {
	width   int
	n       int       // entries in the file that count; bytes after them are old
	pending []byte    // entries after those
	file    disk.File // nil: not open
}

func (x *index) count() int { return x.n + len(x.pending)/x.width }

func (x *index) add(entry ...byte) { x.pending = append(x.pending, entry...) }

// wrote takes note that the file holds the first done entries.
func (x *index) wrote(done int) {
	if done <= x.n { // someone else wrote them too
		return
	}
	x.pending = x.pending[(done-x.n)*x.width:]
	x.n = done
	if len(x.pending) == 0 {
		x.pending = nil // an idle log holds no buffer
	}
}

// last finds the last entry for which holds is true. Entries are in order, so
// holds must be true for the first so many of them and false from there on. ok
// is false when it is true for none. The file must be open when n > 0.
func (x index) last(holds func(entry []byte) bool) (entry [timeEntrySize]byte, ok bool, err error) {
	return x.lastNear(nil, holds)
}

// partEntries is how many entries of an index file are kept for reading on.
const partEntries = 128

// indexPart is a run of entries of an index file, kept by one who reads on from
// where it found the last entry. The zero indexPart is of no use and no harm.
type indexPart struct {
	base  int64 // of the segment
	first int   // entry that it begins with
	bytes []byte
}

// lastNear is last for one who searches again and again a little further on: it
// looks into the part first, and leaves the part that it had to read.
func (x index) lastNear(part *indexPart, holds func(entry []byte) bool) (entry [timeEntrySize]byte, ok bool, err error) {
	if w := x.width; len(x.pending) > 0 && holds(x.pending[:w]) {
		i := x.search(x.pending, holds)
		copy(entry[:], x.pending[(i-1)*w:i*w])
		return entry, true, nil
	}
	if part != nil {
		if n := min(len(part.bytes)/x.width, x.n-part.first); n > 0 && holds(part.bytes[:x.width]) &&
			(part.first+n == x.n || !holds(part.bytes[(n-1)*x.width:n*x.width])) {
			i := x.search(part.bytes[:n*x.width], holds)
			copy(entry[:], part.bytes[(i-1)*x.width:i*x.width])
			return entry, true, nil
		}
	}
	buf := indexBlocks.Get().(*[indexBlock * timeEntrySize]byte)
	defer indexBlocks.Put(buf)
	lo, hi := 0, x.n // holds is true below lo and false from hi on
	for hi-lo >= indexBlock {
		mid := lo + (hi-lo)/2
		if err := x.read(buf[:x.width], mid); err != nil {
			return entry, false, err
		}
		if holds(buf[:x.width]) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	lo = max(0, lo-1) // the answer may be the entry before
	n := hi - lo
	if part != nil {
		n = min(n+partEntries, len(buf)/x.width, x.n-lo) // and what follows, for the next time
	}
	block := buf[:n*x.width]
	if err := x.read(block, lo); err != nil {
		return entry, false, err
	}
	i := x.search(block, holds)
	if i == 0 {
		return entry, false, nil
	}
	if part != nil {
		part.first, part.bytes = lo+i-1, slices.Clone(block[(i-1)*x.width:min(n, i-1+partEntries)*x.width])
	}
	copy(entry[:], block[(i-1)*x.width:i*x.width])
	return entry, true, nil
}

// search is how many entries of a block hold.
func (x index) search(block []byte, holds func(entry []byte) bool) int {
	return sort.Search(len(block)/x.width, func(i int) bool { return !holds(block[i*x.width : (i+1)*x.width]) })
}

var indexBlocks = sync.Pool{New: func() any { return new([indexBlock * timeEntrySize]byte) }}

func (x index) read(p []byte, entry int) error {
	if len(p) == 0 {
		return nil
	}
	n, err := x.file.ReadAt(p, int64(entry)*int64(x.width))
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("index entry %d: %w", entry, err)
}

// offsetEntry is one entry of the offset index: the batch at pos ends with the
// offset base + rel.
type offsetEntry struct{ rel, pos uint32 }

func (e offsetEntry) bytes() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, e.rel), e.pos)
}

func parseOffsetEntry(b []byte) offsetEntry {
	return offsetEntry{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

// timeEntry is one entry of the time index: up to the batch that ends with the
// offset base + rel, which has it, no timestamp is above ts.
type timeEntry struct {
	ts  int64
	rel uint32
}

func (e timeEntry) bytes() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(e.ts)), e.rel)
}

func parseTimeEntry(b []byte) timeEntry {
	return timeEntry{int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint32(b[8:])}
}
