package api

import (
	"container/list"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener wraps what it accepts into conns and remembers them, so that the
// last can be closed when a stop takes too long.
type listener struct {
	net.Listener
	room *room

	// mu guards open.
	mu   sync.Mutex
	open map[*conn]struct{}
}

func newListener(l net.Listener, r *room) *listener {
	return &listener{Listener: l, room: r, open: map[*conn]struct{}{}}
}

// Accept returns the next connection for which there is room.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, l: l, fits: l.room.take()}
		if c.fits {
			l.room.idle.enter(c)
		}
		l.mu.Lock()
		l.open[c] = struct{}{}
		l.mu.Unlock()
		if c.fits {
			return c, nil
		}
		l.room.turnAway(c)
	}
}

// close closes the connections of which which is true.
func (l *listener) close(which func(*conn) bool) {
	l.mu.Lock()
	all := make([]*conn, 0, len(l.open))
	for c := range l.open {
		if which(c) {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		c.giveUp()
		_ = c.Close()
	}
}

// conn tells whether an answer left, as far as the kernel lets us know:
// fasthttp reports a failed write to nobody.
type conn struct {
	net.Conn
	l    *listener
	fits bool // it takes up room

	// mu guards what follows; unsent runs outside it.
	mu     sync.Mutex
	unsent []func() // to call if the answer under way is not written
	done   []func() // to call once the answer is written, or never will be
	wrote  bool     // something was written since
	used   bool     // something was ever read
	early  []byte   // what onGone read: the beginning of the next request
	linger bool     // the client may still be sending when it is closed
	// answering: a request is under way, from its head until its handler has ended
	// and what reads or writes beside it has, too.
	answering bool
	owed      bool // its handler has ended, and nothing of the answer is written yet

	// What follows is guarded by the room's idlers.
	idleAt    *list.Element
	idleSince time.Time
	gaveWay   bool

	peer                 uint32 // the user at the other side of a UNIX socket
	peerKnown, peerAsked bool
}

// unused tells that no request has begun on it.
func (c *conn) unused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.used
}

// onUnsent has f called if writing the answer that is being made fails.
func (c *conn) onUnsent(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = append(c.unsent, f)
	c.wrote = false
}

// onDone has f called once the answer that is being made is written, or its
// connection has ended.
func (c *conn) onDone(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, f)
}

// settle calls what waits for the end of the answer.
func (c *conn) settle() {
	c.mu.Lock()
	done := c.done
	c.done = nil
	c.mu.Unlock()
	for _, f := range done {
		f()
	}
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	if err == nil {
		c.wrote, c.owed = true, false
	}
	c.mu.Unlock()
	if err != nil {
		c.fail()
	}
	return n, err
}

// Read comes after the answer to the request before was written.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	settled := len(c.done) > 0 && !c.answering && !c.owed
	if c.wrote {
		c.unsent, c.wrote = nil, false
	}
	if len(c.early) > 0 && len(b) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		c.mu.Unlock()
		return n, nil
	}
	c.mu.Unlock()
	if settled {
		c.settle()
	}
	c.waits()
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.mu.Lock()
		c.used = true
		c.mu.Unlock()
		if !c.waits() { // nothing of it is done, then
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (c *conn) Close() error {
	c.mu.Lock()
	wrote := c.wrote
	c.mu.Unlock()
	if !wrote {
		c.fail()
	}
	c.mu.Lock()
	linger := c.linger
	c.linger = false
	c.mu.Unlock()
	if linger {
		c.readOut()
	}
	c.l.room.idle.leave(c)
	c.l.mu.Lock()
	_, open := c.l.open[c]
	delete(c.l.open, c)
	c.l.mu.Unlock()
	err := c.Conn.Close()
	c.settle()
	if open && c.fits {
		c.l.room.give()
	}
	return err
}

// lingers has the connection closed in a way that lets the answer arrive though
// the client is still sending.
func (c *conn) lingers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = true
}

// giveUp has the connection closed at once.
func (c *conn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = false
}

// Bounds of what is read of a client that is not listened to any more.
const (
	lingerTime  = time.Second      // for each read: a client that sends nothing is waiting for us, or gone
	lingerAll   = 10 * time.Second // for all that it sends
	lingerBytes = 256 << 20        // more than clients send by mistake; Python sends all before it looks for an answer
)

// readOut ends our half, and reads what the client sends until it has seen
// that: closing on bytes that were not read makes its kernel throw the answer
// away.
func (c *conn) readOut() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	buf := lingerBuffers.Get().(*[lingerBuffer]byte)
	defer lingerBuffers.Put(buf)
	for end, left := time.Now().Add(lingerAll), int64(lingerBytes); left > 0; {
		now := time.Now()
		if !now.Before(end) {
			return
		}
		until := now.Add(lingerTime)
		if until.After(end) {
			until = end
		}
		_ = c.Conn.SetReadDeadline(until) // if it fails the read below does
		n, err := c.Conn.Read(buf[:])
		if err != nil {
			return
		}
		left -= int64(n)
	}
}

const lingerBuffer = 64 << 10

var lingerBuffers = sync.Pool{New: func() any { return new([lingerBuffer]byte) }}

func (c *conn) fail() {
	c.mu.Lock()
	unsent := c.unsent
	c.unsent = nil
	c.mu.Unlock()
	for _, f := range unsent {
		f()
	}
}

// onGone calls gone when the client closes the connection, and costs nothing
// until then. It reads, so nobody else may until the function that it returns
// has stopped it. A client that sends its next request meanwhile is there, and
// is not watched any more.
func (c *conn) onGone(gone func()) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		var b [1]byte
		n, err := c.Conn.Read(b[:])
		if n > 0 {
			c.mu.Lock()
			c.early = append(c.early, b[0])
			c.mu.Unlock()
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			gone()
		}
	})
	return func() {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // fasthttp sets its own for the next request
		wg.Wait()
		_ = c.Conn.SetReadDeadline(time.Time{})
	}
}

// alive looks at the socket: false once the other side has closed it. A client
// that closes only its sending half cannot be told from one that is gone, and
// counts as gone.
func (c *conn) alive() bool {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		for {
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			switch err {
			case nil:
				gone = n == 0
			case unix.EINTR:
				continue
			case unix.EAGAIN:
			default:
				gone = true
			}
			return
		}
	})
	return err == nil && !gone
}
