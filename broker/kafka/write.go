package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"sidestream/broker/commitlog"
)

// sendChunk is how much is sent between two looks at the clock: a client must take it within the receive timeout.
const sendChunk = 1 << 20

// write sends pieces of answers in their order. It blocks while the client does not read, and costs nothing meanwhile.
// An error leaves the connection in the middle of an answer: it must be closed.
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
func (c *conn) patience() { c.writeBy.move(c.stream.SetWriteDeadline, c.s.cfg.ReceiveTimeout) }

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
	return c.stream.writeBytes(bufs, more)
}

// writeSlice sends a range of a segment.
func (c *conn) writeSlice(s commitlog.Slice) error {
	for pos, left := s.Pos, s.Size; left > 0; {
		c.patience()
		n, err := c.stream.writeFile(s.File, pos, min(left, sendChunk))
		switch {
		case err != nil:
			return fmt.Errorf("sending %s: %w", s.File.Name(), err)
		case n == 0:
			return fmt.Errorf("%s ends %d bytes early: %w", s.File.Name(), left, io.ErrUnexpectedEOF)
		}
		pos += int64(n)
		left -= n
	}
	return nil
}

// isReset tells whether the client went away.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
