package api

import (
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// flushAt is how much of an answer without end is put together before it is
// written; keepAtMost is how large its buffer may stay after a large message.
const (
	flushAt    = 64 << 10
	keepAtMost = 256 << 10
)

// wire writes an answer without end, chunk by chunk, and counts how much of it
// the kernel took.
type wire struct {
	conn    net.Conn
	chunked bool         // HTTP/1.1
	stall   atomic.Int64 // how long one write may take, in nanoseconds

	sent int64  // bytes that the kernel took
	buf  []byte // the next chunk, behind room for its header
	ends []int  // where the marks are in it

	// marks are the ends of what is watched in the stream of bytes, those that
	// the reader's kernel may not have yet.
	marks []int64
	first uint64 // number of the first mark
}

// chunkHead has room for a chunk's header: its size and a line's end.
const chunkHead = 8 + 2

func newWire(c net.Conn, chunked bool, stall time.Duration) *wire {
	w := &wire{conn: c, chunked: chunked, buf: make([]byte, chunkHead, 4<<10), first: 1}
	w.stall.Store(int64(stall))
	return w
}

// Write adds to the next chunk.
func (w *wire) Write(b []byte) (int, error) {
	w.buf = append(w.buf, b...)
	return len(b), nil
}

// pending is how much waits for a flush.
func (w *wire) pending() int { return len(w.buf) - chunkHead }

// mark remembers what was added so far as one more whole message.
func (w *wire) mark() { w.ends = append(w.ends, len(w.buf)) }

// flush writes the chunk. After an error nothing may be written any more.
func (w *wire) flush() error {
	if w.pending() == 0 {
		return nil
	}
	b, skip := w.buf, chunkHead
	if w.chunked {
		var head [chunkHead]byte
		h := append(strconv.AppendUint(head[:0], uint64(w.pending()), 16), "\r\n"...)
		skip -= len(h)
		copy(b[skip:], h)
		b = append(b, "\r\n"...)
	}
	for _, end := range w.ends {
		w.marks = append(w.marks, w.sent+int64(end-skip))
	}
	w.ends = w.ends[:0]
	err := w.raw(b[skip:])
	if w.buf = b[:chunkHead]; cap(b) > keepAtMost {
		w.buf = make([]byte, chunkHead, 4<<10)
	}
	return err
}

// raw writes bytes as they are.
func (w *wire) raw(b []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(time.Duration(w.stall.Load()))); err != nil {
		return err
	}
	n, err := w.conn.Write(b)
	w.sent += int64(n)
	return err
}

// end writes what ends the answer.
func (w *wire) end() error {
	if err := w.flush(); err != nil || !w.chunked {
		return err
	}
	return w.raw([]byte("0\r\n\r\n"))
}

// reached is the number of the last mark that came to the reader's kernel
// whole, as far as ours knows: that of a TCP connection knows what the other
// side confirmed.
func (w *wire) reached() uint64 {
	there := w.sent - int64(unconfirmed(w.conn))
	n := 0
	for n < len(w.marks) && w.marks[n] <= there {
		n++
	}
	w.marks, w.first = w.marks[n:], w.first+uint64(n)
	return w.first - 1
}

// hurry cuts the write under way and all that follow short. Any goroutine may
// call it.
func (w *wire) hurry(stall time.Duration) {
	w.stall.Store(int64(stall))
	_ = w.conn.SetWriteDeadline(time.Now().Add(stall)) // what fails then fails in the write too
}

// unconfirmed is how many bytes that were written the other side has not
// confirmed; 0 where that cannot be known.
func unconfirmed(c net.Conn) int {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	err = raw.Control(func(fd uintptr) {
		var e error
		if n, e = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ); e != nil {
			n = 0
		}
	})
	if err != nil {
		return 0
	}
	return n
}
