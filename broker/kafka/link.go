package kafka

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/broker/disk"
)

// link is what carries a connection: an event loop, or a stream that goroutines of its own read and write. Dispatch, the
// order of answers, memory, quotas and giving way know no more of it. Its methods are called with the connection's mu
// held, and do not block.
type link interface {
	// wake has the answers that are ready written.
	wake(c *conn)
	// close closes it and tells whether the connection is dead with that. Otherwise who serves it is told to end it.
	close() (dead bool)
	// timed tells whether reads have deadlines. Otherwise the sweeper looks for what is idle.
	timed() bool
}

// stream is what a handed-over connection is read from and written to. Every method but the two that look at the socket
// may block, within the deadlines; one reads and one writes at a time.
type stream interface {
	io.ReadCloser
	SetReadDeadline(at time.Time) error
	SetWriteDeadline(at time.Time) error
	// writeBytes sends bytes; more says that a file follows, so that a header need not travel in a packet of its own.
	writeBytes(bufs net.Buffers, more bool) error
	// writeFile sends up to n bytes of a file and tells how many; 0 without an error means that the file has ended.
	writeFile(f disk.File, pos int64, n int) (int, error)
	// peerGone tells whether the client has closed its side or the connection is broken. It takes no byte.
	peerGone() bool
	// discard takes what has arrived off the socket, before it is closed.
	discard()
}

// onLoop is a connection on an event loop. The connection's mu guards it.
type onLoop struct {
	gc      gnet.Conn
	flushes bool // a callback is running and will flush at its end
	woken   bool // the loop was asked to run one
}

// wake is called under mu: that keeps it off a loop that is gone, since OnClose marks the connection dead under mu first.
func (l *onLoop) wake(c *conn) {
	if l.flushes || l.woken {
		return
	}
	l.woken = true
	if err := l.gc.Wake(nil); err != nil {
		c.s.complain("not_woken", "an event loop could not be woken", zap.Error(err))
	}
}

func (l *onLoop) close() bool {
	_ = l.gc.Close() // queued; OnClose follows on the loop
	return false
}

func (l *onLoop) timed() bool { return false }

// handed is a connection that goroutines serve.
type handed struct{ stream }

func (h handed) wake(c *conn) {
	if c.writing {
		return
	}
	c.writing = true
	c.s.wg.Add(1) // safe: the connection's reader is still counted, it marks the connection dead before it ends
	go func() {
		defer c.s.wg.Done()
		c.writeReady()
	}()
}

func (h handed) close() bool {
	_ = h.Close()
	return true
}

func (h handed) timed() bool { return true }

// socket sends ranges of files by sendfile.
type socket struct{ copied }

func newSocket(tcp *net.TCPConn, memory *copies) (socket, error) {
	raw, err := tcp.SyscallConn()
	return socket{copied{tcp, raw, memory}}, err
}

func (l socket) writeBytes(bufs net.Buffers, more bool) error {
	if !more {
		return l.copied.writeBytes(bufs, false)
	}
	for _, b := range bufs {
		for len(b) > 0 {
			sent, err := writeRaw(l.raw, func(fd int) (int, error) {
				return unix.SendmsgN(fd, b, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			})
			if err != nil {
				return os.NewSyscallError("sendmsg", err)
			}
			b = b[sent:]
		}
	}
	return nil
}

func (l socket) writeFile(f disk.File, pos int64, n int) (int, error) {
	fd, ok := f.Fd()
	if !ok {
		return l.copied.writeFile(f, pos, n)
	}
	sent, err := writeRaw(l.raw, func(out int) (int, error) {
		off := pos // our own offset: the segment's descriptor is shared by all readers
		return unix.Sendfile(out, int(fd), &off, n)
	})
	return sent, os.NewSyscallError("sendfile", err)
}

// writeRaw runs a system call that writes to the socket, waiting (off the CPU) until the socket takes something.
func writeRaw(rc syscall.RawConn, call func(fd int) (int, error)) (n int, err error) {
	waitErr := rc.Write(func(fd uintptr) bool {
		for {
			if n, err = call(int(fd)); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return max(n, 0), err
}

// copied sends ranges of files through memory: what has to be changed on its way cannot go by sendfile.
type copied struct {
	net.Conn
	raw    syscall.RawConn // of the socket beneath, nil if there is none
	memory *copies
}

func (l copied) writeBytes(bufs net.Buffers, _ bool) error {
	_, err := bufs.WriteTo(l.Conn)
	return err
}

func (l copied) writeFile(f disk.File, pos int64, n int) (int, error) {
	if n > smallCopy {
		if room := l.memory.take(min(n, largeCopy)); room != nil {
			defer l.memory.giveBack(room)
			return l.copy(room.space(), f, pos)
		}
	}
	small := l.memory.small.Get().(*[smallCopy]byte)
	defer l.memory.small.Put(small)
	return l.copy(small[:min(n, smallCopy)], f, pos)
}

func (l copied) copy(b []byte, f disk.File, pos int64) (int, error) {
	n, err := f.ReadAt(b, pos)
	if n < len(b) && err != nil && err != io.EOF {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	return l.Write(b[:n])
}

func (l copied) peerGone() bool {
	if l.raw == nil {
		return false // the next write finds out
	}
	gone := false
	err := l.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return err != nil || gone
}

func (l copied) discard() {
	if l.raw != nil {
		_ = l.raw.Control(func(fd uintptr) { discard(int(fd)) }) // an error: it is closed already
	}
}

const (
	// largeCopy is what a range of a file is copied through while there is memory, smallCopy otherwise: as much as a TLS
	// record holds.
	largeCopy = 256 << 10
	smallCopy = 16 << 10
)

// copies is the memory that ranges of files are copied through. How long it is held is for the client to say, who may
// not read, and memory for requests counts on those that have it to give it back. So an eighth of that is lent at most,
// nobody waits for it, and it is lent anew for each step, behind requests that wait. A step that gets nothing makes do
// with a small buffer, which is not counted, as the buffers are not that each connection reads through.
type copies struct {
	held  *budget
	most  int64
	lent  atomic.Int64
	small sync.Pool // of *[smallCopy]byte
}

func newCopies(held *budget) *copies {
	c := &copies{held: held, most: held.bytes / 8}
	c.small.New = func() any { return new([smallCopy]byte) }
	return c
}

// take lends memory for n bytes, or nothing.
func (c *copies) take(n int) *frame {
	if c.lent.Add(int64(n)) <= c.most {
		if f := newFrame(n, c.held); f.grow(n) {
			return f
		}
	}
	c.lent.Add(-int64(n))
	return nil
}

func (c *copies) giveBack(f *frame) {
	c.lent.Add(-int64(f.size))
	f.reuse()
}
