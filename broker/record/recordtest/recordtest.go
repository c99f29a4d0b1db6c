// Package recordtest builds record batches for tests.
package recordtest

import (
	"encoding/binary"

	"sidestream/broker/record"
)

// Spec says what batch to build. The zero value is an empty-bodied batch of one
// record, without a producer id.
type Spec struct {
	Values     []string // one record each; nil: one record "v"
	Keys       []string // of the records, in order; missing ones have none
	Tombstones []bool   // whether a record has no value, in order
	Timestamps []int64  // of the records, in order; missing ones repeat the last, 0 if there is none
	Producer   bool     // whether the three fields below count
	ID         int64
	Epoch      int16
	Sequence   int32
	Attributes int16
}

// Batch builds an uncompressed batch with base offset 0 and leader epoch -1, as
// a producer sends it.
func Batch(s Spec) []byte {
	values := s.Values
	if values == nil {
		values = []string{"v"}
	}
	first, maxTS, ts := int64(0), int64(0), int64(0)
	b := make([]byte, record.HeaderSize, record.HeaderSize+64*len(values))
	for i, v := range values {
		if i < len(s.Timestamps) {
			ts = s.Timestamps[i]
		}
		if i == 0 {
			first, maxTS = ts, ts
		}
		maxTS = max(maxTS, ts)
		var r []byte
		r = append(r, 0)
		r = binary.AppendVarint(r, ts-first)
		r = binary.AppendVarint(r, int64(i))
		if i < len(s.Keys) {
			r = binary.AppendVarint(r, int64(len(s.Keys[i])))
			r = append(r, s.Keys[i]...)
		} else {
			r = binary.AppendVarint(r, -1)
		}
		if i < len(s.Tombstones) && s.Tombstones[i] {
			r = binary.AppendVarint(r, -1)
		} else {
			r = binary.AppendVarint(r, int64(len(v)))
			r = append(r, v...)
		}
		r = binary.AppendVarint(r, 0) // no headers
		b = binary.AppendVarint(b, int64(len(r)))
		b = append(b, r...)
	}
	id, epoch, sequence := int64(-1), int16(-1), int32(-1)
	if s.Producer {
		id, epoch, sequence = s.ID, s.Epoch, s.Sequence
	}
	be := binary.BigEndian
	be.PutUint32(b[8:], uint32(len(b)-12))
	be.PutUint32(b[12:], ^uint32(0))
	b[16] = record.Magic
	be.PutUint16(b[21:], uint16(s.Attributes))
	be.PutUint32(b[23:], uint32(len(values)-1))
	be.PutUint64(b[27:], uint64(first))
	be.PutUint64(b[35:], uint64(maxTS))
	be.PutUint64(b[43:], uint64(id))
	be.PutUint16(b[51:], uint16(epoch))
	be.PutUint32(b[53:], uint32(sequence))
	be.PutUint32(b[57:], uint32(len(values)))
	Seal(b)
	return b
}

// Seal writes the right checksum into a batch whose fields were changed.
func Seal(b []byte) { binary.BigEndian.PutUint32(b[17:], record.CRC(b)) }
