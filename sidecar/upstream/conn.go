package upstream

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn is a connection to a broker that writes nothing once the broker has
// closed it. The client reads only while it waits for an answer, so it does not
// see that an idle connection has ended (a broker's planned stop); its next
// request would be written into the void, and nobody could tell afterwards that
// no broker had it.
type conn struct {
	net.Conn
	raw syscall.RawConn
}

// watched is c with that look, where the system has one.
func watched(c net.Conn) net.Conn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return c
	}
	return &conn{c, raw}
}

// Write fails with EPIPE, and no byte written, when the other side has closed.
func (c *conn) Write(b []byte) (int, error) {
	if c.closedThere() {
		return 0, &net.OpError{Op: "write", Net: "tcp", Addr: c.RemoteAddr(), Err: syscall.EPIPE}
	}
	return c.Conn.Write(b)
}

// closedThere peeks: an end of file is there before any read, or it is not.
func (c *conn) closedThere() (closed bool) {
	// Control takes no lock that a pending Read holds.
	err := c.raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil || err == unix.ECONNRESET
	})
	return closed || err != nil
}
