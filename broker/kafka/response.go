package kafka

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/commitlog"
)

// response is an encoded answer: pieces of bytes and, in a Fetch answer, ranges of segment files between them. A nil
// *response is "no answer", as for a produce request with acks=0.
type response struct {
	pieces []piece
}

// piece is either bytes or a range of a segment file.
type piece struct {
	bytes []byte
	slice commitlog.Slice
	file  bool
}

// size is the number of bytes that the answer has on the wire, its length prefix included.
func (r *response) size() (n int) {
	for _, p := range r.pieces {
		if p.file {
			n += p.slice.Size
		} else {
			n += len(p.bytes)
		}
	}
	return n
}

// release lets go of the segments that the answer holds. Every answer is released exactly once, sent or not.
func (r *response) release() {
	if r == nil {
		return
	}
	for i := range r.pieces {
		if p := &r.pieces[i]; p.file {
			p.slice.Release()
			p.file = false
		}
	}
	r.pieces = nil
}

// encode makes the answer of a request from its body.
func encode(h header, body kmsg.Response) *response {
	b := appendHeader(make([]byte, 0, 128), h, body.IsFlexible())
	b = body.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return &response{pieces: []piece{{bytes: b}}}
}

// appendHeader appends room for the length and the response header: version 1 (with tagged fields) for flexible
// versions, always version 0 for ApiVersions, since its asker does not know yet what we speak (KIP-511).
func appendHeader(b []byte, h header, flexible bool) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(h.correlation))
	if flexible && h.key != keyApiVersions {
		b = append(b, 0)
	}
	return b
}
