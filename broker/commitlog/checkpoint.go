package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strconv"
	"strings"

	"sidestream/broker/disk"
)

// checkpointFile lies in the partition's folder beside Kafka's files, which have
// no place for what it says.
const checkpointFile = "recovery-point"

// checkpointVersion is the first line's number.
const checkpointVersion = 1

// checkpoint says what of a log needs no looking at after a crash: everything
// below the recovery point was synced, the first so many entries of the active
// segment's indexes among it. A log always has one; without it, and only then,
// recovery does not know what may have been acknowledged.
type checkpoint struct {
	Start    int64 // log start offset
	Recovery int64 // the recovery point: the offset up to which all is synced
	Segment  int64 // base offset of the segment that the recovery point lies in
	Pos      int64 // its position there

	// The state of that segment at Pos.
	OffsetEntries int64
	TimeEntries   int64
	LastTime      int64 // timestamp of the last time index entry, -1 for none
	SinceIndex    int64 // bytes after the last offset index entry
	MaxTimestamp  int64 // -1 for none
	MaxOffset     int64 // of the batch that has it
	Created       int64 // append time of its first batch, ms

	// Snapshot is the offset of the producer snapshot that was taken at the
	// recovery point, or one of the two values below.
	Snapshot int64
}

// Values of checkpoint.Snapshot that are no offset.
const (
	noProducers     = -1 // there were none at the recovery point
	unknownSnapshot = -2 // look for an older snapshot and walk from there
)

// fields are the lines of the file, in order.
func (c *checkpoint) fields() []struct {
	name string
	v    *int64
} {
	return []struct {
		name string
		v    *int64
	}{
		{"start_offset", &c.Start},
		{"recovery_offset", &c.Recovery},
		{"segment", &c.Segment},
		{"position", &c.Pos},
		{"offset_index_entries", &c.OffsetEntries},
		{"time_index_entries", &c.TimeEntries},
		{"last_time_index_timestamp", &c.LastTime},
		{"bytes_since_index_entry", &c.SinceIndex},
		{"max_timestamp", &c.MaxTimestamp},
		{"max_timestamp_offset", &c.MaxOffset},
		{"segment_created", &c.Created},
		{"snapshot", &c.Snapshot},
	}
}

func (c checkpoint) encode() []byte {
	b := fmt.Appendf(nil, "%d\n", checkpointVersion)
	for _, f := range c.fields() {
		b = fmt.Appendf(b, "%s %d\n", f.name, *f.v)
	}
	return fmt.Appendf(b, "crc32c %08x\n", crc32.Checksum(b, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func parseCheckpoint(b []byte) (c checkpoint, err error) {
	text := string(b)
	at := strings.LastIndex(text, "crc32c ")
	if at < 0 {
		return c, errors.New("the last line, crc32c, is missing")
	}
	if want := fmt.Sprintf("crc32c %08x\n", crc32.Checksum(b[:at], castagnoli)); text[at:] != want {
		return c, fmt.Errorf("the last line is %q, the contents have %q", text[at:], want)
	}
	lines := strings.Split(text[:at], "\n")
	if lines[0] != strconv.Itoa(checkpointVersion) {
		return c, fmt.Errorf("version %q, only %d is read", lines[0], checkpointVersion)
	}
	fields := c.fields()
	if len(lines) != len(fields)+2 { // the version, and what follows the last newline
		return c, fmt.Errorf("%d lines, version %d has %d", len(lines), checkpointVersion, len(fields)+2)
	}
	for i, f := range fields {
		name, value, _ := strings.Cut(lines[i+1], " ")
		if name != f.name {
			return c, fmt.Errorf("line %d is %q, it must be %s", i+2, lines[i+1], f.name)
		}
		if *f.v, err = strconv.ParseInt(value, 10, 64); err != nil {
			return c, fmt.Errorf("line %d: %w", i+2, err)
		}
	}
	return c, c.check()
}

func (c checkpoint) check() error {
	switch {
	case c.Start < 0 || c.Segment < 0 || c.Recovery < c.Segment || c.Snapshot < unknownSnapshot:
		return fmt.Errorf("offsets contradict each other: start %d, segment %d, recovery point %d, snapshot %d",
			c.Start, c.Segment, c.Recovery, c.Snapshot)
	case c.Pos < 0 || c.Pos > maxSegmentBytes || c.OffsetEntries < 0 || c.TimeEntries < 0 || c.SinceIndex < 0:
		return errors.New("a position or count is out of range")
	case c.OffsetEntries > c.Pos || c.TimeEntries > c.Pos:
		return fmt.Errorf("%d and %d index entries for %d bytes", c.OffsetEntries, c.TimeEntries, c.Pos)
	}
	return nil
}

// follow moves a recovery point whose segment was removed, which ends at it or
// above, to the beginning of the first segment that is left. Deleting all records
// of a log leaves such a point until the next checkpoint.
func (c *checkpoint) follow(first int64) {
	if c.Segment >= first || c.Recovery > first {
		return
	}
	moved := checkpoint{
		Start: c.Start, Recovery: first, Segment: first,
		LastTime: -1, MaxTimestamp: -1, Created: c.Created, Snapshot: c.Snapshot,
	}
	if first != c.Recovery {
		moved.Snapshot = unknownSnapshot
	}
	*c = moved
}

// readCheckpoint reports found = false, with the reason if there is one, when
// the file is missing or cannot be trusted.
func readCheckpoint(fsys disk.FS, dir string) (c checkpoint, found bool, reason error) {
	b, err := disk.ReadFile(fsys, dir+"/"+checkpointFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err == nil {
		c, err = parseCheckpoint(b)
	}
	if err != nil {
		return checkpoint{}, false, fmt.Errorf("%s: %w", checkpointFile, err)
	}
	return c, true, nil
}
