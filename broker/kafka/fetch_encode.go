package kafka

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// copyBelow is the size up to which records are copied into the answer: below it one write costs less than a write and
// a sendfile.
const copyBelow = 16 << 10

// fetchFlexible is the first Fetch version with compact types and tagged fields (KIP-482).
const fetchFlexible = 12

// fetchEncoder writes a Fetch answer with the records left in their files. It is by hand, because kmsg wants the
// records in memory; a test decodes its work with kmsg. Layout: Kafka protocol guide, "Fetch Response", versions 4-13.
type fetchEncoder struct {
	version  int16
	flexible bool
	buf      []byte
	pieces   []piece
}

// encodeFetch makes the answer and takes over the slices of topics, on an error too.
func encodeFetch(h header, req *kmsg.FetchRequest, topics []fetchedTopic, code int16, throttleMillis int32) (*response, error) {
	e := fetchEncoder{version: req.Version, flexible: req.Version >= fetchFlexible}
	e.buf = appendHeader(make([]byte, 0, 256), h, e.flexible)
	e.int32(throttleMillis)
	if e.version >= 7 {
		e.int16(code)
		e.int32(0) // session id: none, always legal (KIP-227)
	}
	e.length(len(topics))
	for _, t := range topics {
		if e.version >= fetchByID {
			e.buf = append(e.buf, t.id[:]...)
		} else {
			e.string(t.name)
		}
		e.length(len(t.parts))
		for _, f := range t.parts {
			e.partition(f, req.IsolationLevel)
		}
		e.tags()
	}
	e.tags()
	e.cut()
	r := &response{pieces: e.pieces}
	size := r.size() - 4
	if size > 1<<31-1 {
		r.release()
		return nil, fmt.Errorf("fetch answer of %d bytes does not fit a frame", size)
	}
	binary.BigEndian.PutUint32(r.pieces[0].bytes, uint32(size))
	return r, nil
}

func (e *fetchEncoder) partition(f *fetched, isolation int8) {
	if f.err != nil {
		f.drop()
	}
	e.int32(f.req.Partition)
	e.int16(codeOf(f.err))
	e.int64(f.at.HighWatermark)
	e.int64(f.at.HighWatermark) // last stable offset: without transactions the same
	if e.version >= 5 {
		e.int64(f.at.Start)
	}
	if isolation == 1 {
		e.length(0) // no aborted transactions
	} else {
		e.null()
	}
	if e.version >= 11 {
		e.int32(-1) // preferred read replica: none
	}
	if !f.present {
		e.bytesLength(0)
		e.tags()
		return
	}
	e.bytesLength(f.slice.Size)
	if f.slice.Size <= copyBelow {
		if b, err := f.slice.ReadAll(); err == nil && len(b) == f.slice.Size {
			e.buf = append(e.buf, b...)
			f.drop()
			e.tags()
			return
		} // else let the sending path meet the error: it closes the connection
	}
	e.cut()
	e.pieces = append(e.pieces, piece{slice: f.slice, file: true})
	f.present = false // the answer releases it
	e.tags()
}

// cut ends the piece of bytes that is being written.
func (e *fetchEncoder) cut() {
	if len(e.buf) > 0 {
		e.pieces = append(e.pieces, piece{bytes: e.buf})
		e.buf = nil
	}
}

func (e *fetchEncoder) int16(v int16) { e.buf = binary.BigEndian.AppendUint16(e.buf, uint16(v)) }
func (e *fetchEncoder) int32(v int32) { e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(v)) }
func (e *fetchEncoder) int64(v int64) { e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(v)) }

// length writes the length of an array.
func (e *fetchEncoder) length(n int) {
	if e.flexible {
		e.buf = binary.AppendUvarint(e.buf, uint64(n)+1)
	} else {
		e.int32(int32(n))
	}
}

func (e *fetchEncoder) bytesLength(n int) { e.length(n) } // bytes have the same length prefix as arrays

// null writes a null array.
func (e *fetchEncoder) null() {
	if e.flexible {
		e.buf = append(e.buf, 0)
	} else {
		e.int32(-1)
	}
}

func (e *fetchEncoder) string(s string) {
	if e.flexible {
		e.buf = binary.AppendUvarint(e.buf, uint64(len(s))+1)
	} else {
		e.int16(int16(len(s)))
	}
	e.buf = append(e.buf, s...)
}

func (e *fetchEncoder) tags() {
	if e.flexible {
		e.buf = append(e.buf, 0)
	}
}
