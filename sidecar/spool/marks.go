package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"sidestream/broker/disk"
)

// mark is what must be known of a partition's events after a crash.
type mark struct {
	Topic     string `json:"topic"`
	UUID      string `json:"uuid,omitempty"`
	Partition int32  `json:"partition"`
	Settled   int64  `json:"settled"` // events up to this number are written or rejected
	Upto      int64  `json:"upto"`    // those up to this one may have been sent,
	From      int64  `json:"from"`    // and are at this offset of the partition or above it if they were written
}

func (m mark) key() laneKey { return laneKey{topic: m.Topic, uuid: m.UUID, partition: m.Partition} }

// marksFile holds all marks. It is overwritten in place, two halves in turn, so
// that it needs no room on a full disk: the spool must be able to empty then. One
// goroutine at a time uses it.
type marksFile struct {
	fsys disk.FS
	dir  string
	gone func() error // nil, or why the folder is not ours to write new files to

	f     disk.File
	half  int64 // bytes of one half
	gen   uint64
	newer int64 // which half has the newest marks: 0 or 1
}

const (
	marksName     = "marks"
	marksHalf     = 64 << 10
	marksHeader   = 8 + 8 + 4 + 4 // magic, generation, length, checksum
	marksMagic    = "SSPLMRK1"
	maxMarksBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openMarks opens the file and returns the marks of its newer sound half. The
// error is errMarksLost, with a fresh file, when there is none or it cannot be read.
func openMarks(fsys disk.FS, dir string) (*marksFile, []mark, error) {
	m := &marksFile{fsys: fsys, dir: dir, half: marksHalf, gone: func() error { return nil }}
	name := dir + "/" + marksName
	marks, err := m.read(name)
	if errors.Is(err, errMarksLost) {
		if made := m.make(nil); made != nil {
			return nil, nil, made
		}
		return m, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	m.f, err = fsys.OpenFile(name, os.O_RDWR, 0o600)
	return m, marks, err
}

// errMarksLost says that nothing is known of what was sent.
var errMarksLost = errors.New("the marks are lost")

func (m *marksFile) read(name string) ([]mark, error) {
	b, err := disk.ReadFile(m.fsys, name)
	var marks []mark
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", errMarksLost, err)
	case err != nil:
		return nil, err
	}
	if len(b)%2 != 0 || len(b) < 2*marksHeader {
		return nil, fmt.Errorf("%w: %s has %d bytes", errMarksLost, name, len(b))
	}
	m.half = int64(len(b) / 2)
	sound := false
	for i := range 2 {
		half := b[int64(i)*m.half : int64(i+1)*m.half]
		gen, body, ok := parseHalf(half)
		if !ok || sound && gen < m.gen {
			continue
		}
		var list []mark
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errMarksLost, name, err)
		}
		m.gen, m.newer, marks, sound = gen, int64(i), list, true
	}
	if !sound {
		return nil, fmt.Errorf("%w: neither half of %s is sound", errMarksLost, name)
	}
	return marks, nil
}

func parseHalf(b []byte) (gen uint64, body []byte, ok bool) {
	if string(b[:8]) != marksMagic {
		return 0, nil, false
	}
	gen = binary.BigEndian.Uint64(b[8:])
	n := binary.BigEndian.Uint32(b[16:])
	if int64(n) > int64(len(b)-marksHeader) {
		return 0, nil, false
	}
	body = b[marksHeader : marksHeader+int(n)]
	return gen, body, binary.BigEndian.Uint32(b[20:]) == halfSum(gen, body)
}

func halfSum(gen uint64, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, gen), castagnoli), castagnoli, body)
}

func encodeHalf(gen uint64, body []byte) []byte {
	b := append([]byte(nil), marksMagic...)
	b = binary.BigEndian.AppendUint64(b, gen)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = binary.BigEndian.AppendUint32(b, halfSum(gen, body))
	return append(b, body...)
}

// make writes a whole file anew, all of its bytes, so that they are there on the
// disk when they are overwritten.
func (m *marksFile) make(marks []mark) error {
	body, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	half := m.half
	for half < int64(2*len(body)+marksHeader) {
		half *= 2
	}
	if half > maxMarksBytes {
		return fmt.Errorf("marks of %d bytes", len(body))
	}
	gen := m.gen + 1
	b := encodeHalf(gen, body)
	b = append(b, bytes.Repeat([]byte{' '}, int(2*half)-len(b))...)
	name := m.dir + "/" + marksName
	if err := disk.WriteFileAtomic(m.fsys, m.dir, name, b); err != nil {
		return err
	}
	f, err := m.fsys.OpenFile(name, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if m.f != nil {
		m.f.Close()
	}
	m.f, m.half, m.gen, m.newer = f, half, gen, 0
	return nil
}

// write makes the marks durable. After an error the ones before it hold, or
// these do.
//
// In a folder that was moved they are written all the same, for it may be moved
// back; in one that was removed there is nothing left that they could be of, and
// what was taken before is to be sent. A file that alone was removed is made anew.
func (m *marksFile) write(marks []mark) error {
	body, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	if int64(len(body)+marksHeader) > m.half {
		if err := m.gone(); err != nil {
			return err
		}
		return m.make(marks)
	}
	other := 1 - m.newer
	if _, err := m.f.WriteAt(encodeHalf(m.gen+1, body), other*m.half); err != nil {
		return err
	}
	if err := m.f.Datasync(); err != nil {
		return err
	}
	m.gen++
	m.newer = other
	if m.f.InPlace(m.dir+"/"+marksName) != nil && m.gone() == nil {
		return m.make(marks)
	}
	return nil
}

func (m *marksFile) close() error {
	if m.f == nil {
		return nil
	}
	err := m.f.Close()
	m.f = nil
	return err
}
