package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sidestream/broker/commitlog"
)

const (
	// sendChunk is how much is sent between two looks at the clock: a client must take it within the receive timeout.
	sendChunk = 1 << 20
	// copyChunk is the memory that a copy takes where there is no sendfile.
	copyChunk = 256 << 10
)

// write sends pieces in their order: bytes by writev, ranges of files by sendfile. It blocks while the client does not
// read, and costs nothing meanwhile. An error leaves the connection in the middle of an answer: it must be closed.
func (c *conn) write(pieces []piece) error {
	var bufs net.Buffers
	for _, p := range pieces {
		if !p.file {
			bufs = append(bufs, p.bytes)
			continue
		}
		if err := c.writeBytes(bufs, true); err != nil {
			return err
		}
		bufs = nil
		if err := c.writeSlice(p.slice); err != nil {
			return err
		}
		c.s.metrics.sent.Add(float64(p.slice.Size))
	}
	return c.writeBytes(bufs, false)
}

// patience gives the client time for what is written next.
func (c *conn) patience() { c.writeBy.move(c.net.SetWriteDeadline, c.s.cfg.ReceiveTimeout) }

// deadline is one of a connection's two. It is moved only when it would come too early or much too late, since moving
// one with every request shows in the profile. It belongs to whoever reads or writes the connection.
type deadline struct{ at time.Time }

// move sets it to wait from now, or up to an eighth later.
func (d *deadline) move(set func(time.Time) error, wait time.Duration) {
	now := time.Now()
	if left := d.at.Sub(now); left >= wait && left <= wait+wait/8 {
		return
	}
	d.at = now.Add(wait + wait/8)
	_ = set(d.at) // an error shows in what follows
}

// writeBytes sends bytes; more says that a file follows, so that a header does not travel in a packet of its own.
func (c *conn) writeBytes(bufs net.Buffers, more bool) error {
	var n int64
	for _, b := range bufs {
		n += int64(len(b))
	}
	if n == 0 {
		return nil
	}
	c.s.metrics.sent.Add(float64(n))
	c.patience()
	if !more {
		_, err := bufs.WriteTo(c.net)
		return err
	}
	rc, err := c.net.SyscallConn()
	if err != nil {
		return err
	}
	for _, b := range bufs {
		for len(b) > 0 {
			sent, err := writeRaw(rc, func(fd int) (int, error) {
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

// writeSlice sends a range of a segment.
func (c *conn) writeSlice(s commitlog.Slice) error {
	fd, ok := s.File.Fd()
	if !ok {
		return c.copySlice(s)
	}
	rc, err := c.net.SyscallConn()
	if err != nil {
		return err
	}
	pos, left := s.Pos, s.Size
	for left > 0 {
		c.patience()
		n, err := writeRaw(rc, func(out int) (int, error) {
			off := pos // our own offset: the segment's descriptor is shared by all readers
			return unix.Sendfile(out, int(fd), &off, min(left, sendChunk))
		})
		switch {
		case err != nil:
			return os.NewSyscallError("sendfile", err)
		case n == 0:
			return fmt.Errorf("%s ends %d bytes early: %w", s.File.Name(), left, io.ErrUnexpectedEOF)
		}
		pos += int64(n)
		left -= n
	}
	return nil
}

// copySlice is for files without a descriptor.
func (c *conn) copySlice(s commitlog.Slice) error {
	buf := make([]byte, min(s.Size, copyChunk))
	for pos, left := s.Pos, s.Size; left > 0; {
		b := buf[:min(left, len(buf))]
		if _, err := s.File.ReadAt(b, pos); err != nil {
			return fmt.Errorf("reading %s: %w", s.File.Name(), err)
		}
		c.patience()
		if _, err := c.net.Write(b); err != nil {
			return err
		}
		pos += int64(len(b))
		left -= len(b)
	}
	return nil
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

// isReset tells whether the client went away.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
