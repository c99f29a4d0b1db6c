package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"sidestream/broker/disk"
)

// outcomes remember what became of the last events: a file of slots, one for each
// event by its number, of which the oldest are overwritten. What is lost of it
// costs nothing but the answers to questions about those events.
type outcomes struct {
	f     disk.File
	count int64
}

const (
	outcomesName = "outcomes"
	outcomeSize  = 28 // number, offset, topic, partition, checksum of these
)

// outcome is the fate of an event. A rejected one has its place in the file of
// rejected messages for an offset, as -2-place.
type outcome struct {
	seq       int64
	offset    int64
	topic     uint32 // its number in the file of topics
	partition int32
}

func openOutcomes(fsys disk.FS, dir string, count int) (*outcomes, error) {
	f, err := fsys.OpenFile(dir+"/"+outcomesName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err == nil && size != int64(count)*outcomeSize {
		// Slots of another count are in other places: begin anew.
		if err = f.Truncate(0); err == nil {
			err = f.Truncate(int64(count) * outcomeSize)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", outcomesName, err)
	}
	return &outcomes{f: f, count: int64(count)}, nil
}

// put writes the outcomes of events, in the order of their numbers.
func (o *outcomes) put(list []outcome) error {
	var b []byte
	at := int64(-1)
	flush := func() error {
		if len(b) == 0 {
			return nil
		}
		_, err := o.f.WriteAt(b, at*outcomeSize)
		b = b[:0]
		return err
	}
	for i, x := range list {
		slot := x.seq % o.count
		if i == 0 || slot != at+int64(len(b))/outcomeSize {
			if err := flush(); err != nil {
				return err
			}
			at = slot
		}
		begin := len(b)
		b = binary.BigEndian.AppendUint64(b, uint64(x.seq))
		b = binary.BigEndian.AppendUint64(b, uint64(x.offset))
		b = binary.BigEndian.AppendUint32(b, x.topic)
		b = binary.BigEndian.AppendUint32(b, uint32(x.partition))
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli))
	}
	return flush()
}

// get is what is remembered of an event.
func (o *outcomes) get(seq int64) (outcome, bool) {
	var b [outcomeSize]byte
	if _, err := o.f.ReadAt(b[:], seq%o.count*outcomeSize); err != nil && !errors.Is(err, io.EOF) {
		return outcome{}, false
	}
	x := outcome{
		seq: int64(binary.BigEndian.Uint64(b[0:])), offset: int64(binary.BigEndian.Uint64(b[8:])),
		topic: binary.BigEndian.Uint32(b[16:]), partition: int32(binary.BigEndian.Uint32(b[20:])),
	}
	// A slot that a crash has left half written tells nothing.
	sound := binary.BigEndian.Uint32(b[outcomeSize-4:]) == crc32.Checksum(b[:outcomeSize-4], castagnoli)
	return x, sound && x.seq == seq && seq > 0
}
