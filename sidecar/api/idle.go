package api

import (
	"container/list"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// idleLeast is how long a connection must have been without a request before it
// gives way to another: the next request of one that is in use is on its way.
const idleLeast = time.Second

// idleSeen bounds how many connections are looked at to find one that gives way.
const idleSeen = 64

// idlers are the connections on which no request is under way, in the order in
// which that began. One on which a request has begun to arrive and is not there
// yet is among them, from its last byte on.
type idlers struct {
	least time.Duration

	mu   sync.Mutex // guards list, and of each conn where it is in it
	list list.List  // of *conn, longest idle first
}

// enter begins the idleness of a connection anew; false when it has given way.
func (i *idlers) enter(c *conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	c.idleSince = time.Now()
	switch {
	case c.gaveWay:
		return false
	case c.idleAt == nil:
		c.idleAt = i.list.PushBack(c)
	default:
		i.list.MoveToBack(c.idleAt)
	}
	return true
}

// leave ends it.
func (i *idlers) leave(c *conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c.idleAt != nil {
		i.list.Remove(c.idleAt)
		c.idleAt = nil
	}
}

// takeOldest takes the connection out that has been idle longest; nil when none has
// been for long enough. One whose next request has arrived is passed over.
func (i *idlers) takeOldest() *conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	for e, n := i.list.Front(), 0; e != nil && n < idleSeen; e, n = e.Next(), n+1 {
		c := e.Value.(*conn)
		if now.Sub(c.idleSince) < i.least {
			return nil
		}
		if !arrived(c.Conn) {
			i.list.Remove(e)
			c.idleAt, c.gaveWay = nil, true
			return c
		}
	}
	return nil
}

// arrived tells whether bytes wait to be read.
func arrived(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	waits := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		waits = err == nil && n > 0
	})
	return err == nil && waits
}

// begins says that a request has arrived on the connection.
func (c *conn) begins() {
	c.mu.Lock()
	c.answering = true
	c.mu.Unlock()
	c.l.room.idle.leave(c)
}

// ends says that the connection is free once the answer is written.
func (c *conn) ends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answering, c.owed = false, !c.wrote
}

// waits notes that the server reads, or has read: when no request is under way it
// waits for one. It is false when the connection has given way to another.
func (c *conn) waits() bool {
	c.mu.Lock()
	free := c.fits && !c.answering && !c.owed
	c.mu.Unlock()
	return !free || c.l.room.idle.enter(c)
}
