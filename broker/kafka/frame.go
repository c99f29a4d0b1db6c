package kafka

import (
	"encoding/binary"
	"fmt"
)

// frame is one request as it came, without its length prefix.
type frame struct {
	buf  []byte
	size int // bytes it will have
	held *budget
}

// firstChunk is how much memory a frame gets before its bytes have arrived: a length prefix alone must not make the
// server allocate.
const firstChunk = 1 << 20

// secondChunk is how much it gets when that is full: most frames never grow again, and what they leave is no waste.
const secondChunk = 16 << 20

// newFrame makes room for a frame whose size is held in the budget already; release gives it back.
func newFrame(size int, held *budget) *frame {
	b := held.shelf.take(size)
	if b == nil {
		b = held.shelf.allocate(min(size, firstChunk), held.used.Load())
	}
	return &frame{buf: b, size: size, held: held}
}

// space is where the next bytes go: never empty before the frame is whole.
func (f *frame) space() []byte {
	if len(f.buf) == cap(f.buf) {
		grown := f.held.shelf.allocate(min(f.size, max(2*cap(f.buf), secondChunk)), f.held.used.Load())
		grown = append(grown, f.buf...)
		f.held.shelf.keep(f.buf, f.held.used.Load())
		f.buf = grown
	}
	return f.buf[len(f.buf):min(f.size, cap(f.buf))]
}

func (f *frame) advance(n int) { f.buf = f.buf[:len(f.buf)+n] }

func (f *frame) whole() bool { return len(f.buf) == f.size }

// release gives the frame's bytes back to the budget. The memory itself is the collector's.
func (f *frame) release() {
	f.held.release(f.held.charge(f.size))
}

// reuse is release for a frame that nobody refers to any more: its memory serves the next frame.
func (f *frame) reuse() {
	f.release()
	f.held.shelf.keep(f.buf, f.held.used.Load())
	f.buf = nil
}

// framing cuts a stream into frames. It belongs to whoever reads the connection.
type framing struct {
	length  [4]byte
	lengthN int // bytes of length that are there
	current *frame
}

// minRequest is the shortest request there is: key, version, correlation id.
const minRequest = 8

// frameSize checks the length prefix.
func frameSize(prefix [4]byte, maxBytes int64) (int, error) {
	n := int64(int32(binary.BigEndian.Uint32(prefix[:])))
	switch {
	case n > maxBytes:
		return 0, fmt.Errorf("request of %d bytes: max_request_bytes is %d", n, maxBytes)
	case n < minRequest:
		return 0, fmt.Errorf("request of %d bytes: that is no Kafka request", n)
	}
	return int(n), nil
}

// feed takes bytes from data and returns the rest. done is a whole frame, when there is one. When the next frame's size
// is known, begin is called to get it; begin may return nil to say "not now", and then feed returns with stalled set
// and nothing of the frame's body taken.
func (fr *framing) feed(data []byte, begin func(prefix [4]byte) (*frame, error)) (done *frame, rest []byte, stalled bool, err error) {
	if fr.current == nil {
		n := copy(fr.length[fr.lengthN:], data)
		fr.lengthN += n
		data = data[n:]
		if fr.lengthN < len(fr.length) {
			return nil, data, false, nil
		}
		if fr.current, err = begin(fr.length); err != nil {
			return nil, data, false, err
		}
		if fr.current == nil {
			return nil, data, true, nil
		}
	}
	f := fr.current
	for len(data) > 0 && !f.whole() {
		n := copy(f.space(), data)
		f.advance(n)
		data = data[n:]
	}
	if !f.whole() {
		return nil, data, false, nil
	}
	fr.current, fr.lengthN = nil, 0
	return f, data, false, nil
}

// drop releases what has been received of a frame.
func (fr *framing) drop() {
	if fr.current != nil {
		fr.current.release()
		fr.current = nil
	}
}
