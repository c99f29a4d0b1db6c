package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// frame is one request as it came, without its length prefix. It belongs to who reads it, then to who serves it.
type frame struct {
	buf   []byte
	size  int // bytes it will have
	room  int // of them, those that the budget has given room for
	held  *budget
	share share

	asked time.Time    // when it first stood by for room; guarded by the budget's mu like
	given time.Time    // when it got room in plenty
	came  atomic.Int64 // of its bytes, since

	atOnce bool // all of it was there when it got room, so it is none of those that are arriving
}

// newFrame is a frame of which nothing is there and which has no room yet; release gives back what it gets.
func newFrame(size int, held *budget) *frame { return &frame{size: size, held: held} }

// full tells that the frame needs more room before the next byte.
func (f *frame) full() bool { return len(f.buf) == f.room }

// grow asks for room without waiting. ahead is how many of the bytes that are still to be taken are at hand.
func (f *frame) grow(ahead int) bool {
	known := f.known(ahead)
	room := f.held.try(f, known)
	if room == 0 {
		return false
	}
	f.extend(room, known)
	return true
}

// known is how many of the frame's bytes are there.
func (f *frame) known(ahead int) int { return min(f.size, len(f.buf)+ahead) }

// extend moves the frame to memory of the size that it has got room for when so many of its bytes were known.
func (f *frame) extend(room, known int) {
	f.atOnce = f.room == 0 && known == f.size
	shelf, used := &f.held.shelf, f.held.used.Load()
	grown := shelf.take(room)
	if grown == nil {
		grown = shelf.allocate(room, used)
	}
	if len(f.buf) > 0 {
		grown = append(grown, f.buf...)
		shelf.keep(f.buf, used)
	}
	f.buf, f.room = grown, room
}

// space is where the next bytes go; empty when the frame is full or whole.
func (f *frame) space() []byte { return f.buf[len(f.buf):f.room] }

// advance tells that n bytes were put there.
func (f *frame) advance(n int) {
	f.buf = f.buf[:len(f.buf)+n]
	f.came.Add(int64(n))
	if f.whole() && !f.atOnce {
		f.held.arrived(f)
	}
}

func (f *frame) whole() bool { return len(f.buf) == f.size }

// release gives the frame's bytes back to the budget. The memory itself is the collector's.
func (f *frame) release() { f.held.release(f) }

// reuse is release for a frame that nobody refers to any more: its memory serves the next frame.
func (f *frame) reuse() {
	f.release()
	f.held.shelf.keep(f.buf, f.held.used.Load())
	f.buf = nil
}

// framing cuts a stream into frames. It belongs to whoever reads the connection.
type framing struct {
	maxBytes int64
	held     *budget

	head    [headBytes]byte // length and key
	headN   int             // bytes of it that are there
	current *frame
}

const (
	lengthBytes = 4
	// headBytes are read before a request gets any memory: its length, and its key, which tells how long it may be.
	headBytes = lengthBytes + 2
	// minRequest is the shortest request there is: key, version, correlation id.
	minRequest = 8
)

// errOversized is a request that is longer than its kind may be.
var errOversized = errors.New("request is too large")

// check looks at what is there of the head.
func (fr *framing) check() error {
	if fr.headN < lengthBytes {
		return nil
	}
	n := int64(int32(binary.BigEndian.Uint32(fr.head[:])))
	switch {
	case n > fr.maxBytes:
		return fmt.Errorf("request of %d bytes: max_request_bytes is %d: %w", n, fr.maxBytes, errOversized)
	case n < minRequest:
		return fmt.Errorf("request of %d bytes: that is no Kafka request", n)
	case fr.headN < headBytes || n <= maxSmallRequest:
		return nil
	}
	if key := int16(binary.BigEndian.Uint16(fr.head[lengthBytes:])); key != keyProduce {
		return fmt.Errorf("request of key %d and %d bytes: the limit of all but Produce is %d: %w", key, n, maxSmallRequest, errOversized)
	}
	return nil
}

// begin makes the frame that the head tells of.
func (fr *framing) begin() *frame {
	fr.current = newFrame(int(binary.BigEndian.Uint32(fr.head[:])), fr.held)
	return fr.current
}

// start puts the key, which was read with the length, into a frame that has room.
func (fr *framing) start() {
	if f := fr.current; len(f.buf) == 0 {
		f.buf = append(f.buf, fr.head[lengthBytes:]...)
	}
}

// whole returns the frame if it is complete, and then the next one may begin.
func (fr *framing) whole() *frame {
	f := fr.current
	if !f.whole() {
		return nil
	}
	fr.current, fr.headN = nil, 0
	return f
}

// feed takes bytes from data and returns the rest. done is a whole frame, when there is one. stalled says that there is
// no room for the next byte now; whoever can wait goes on from there.
func (fr *framing) feed(data []byte) (done *frame, rest []byte, stalled bool, err error) {
	if fr.current == nil {
		n := copy(fr.head[fr.headN:], data)
		fr.headN += n
		data = data[n:]
		if err := fr.check(); err != nil || fr.headN < headBytes {
			return nil, data, false, err
		}
		fr.begin()
	}
	f := fr.current
	for len(data) > 0 {
		if f.full() {
			if !f.grow(fr.ahead(len(data))) {
				return nil, data, true, nil
			}
			fr.start()
		}
		n := copy(f.space(), data)
		f.advance(n)
		data = data[n:]
		if done := fr.whole(); done != nil {
			return done, data, false, nil
		}
	}
	return nil, data, false, nil
}

// ahead is how many bytes of the frame are at hand besides those in it, when n are still to be taken.
func (fr *framing) ahead(n int) int {
	if len(fr.current.buf) == 0 {
		n += headBytes - lengthBytes
	}
	return n
}

// drop releases what has been received of a frame.
func (fr *framing) drop() {
	if fr.current != nil {
		fr.current.release()
		fr.current = nil
	}
}
