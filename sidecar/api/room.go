package api

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what connections cost for which there is no room.
const (
	turnedAtOnce = 64                    // are waited for
	turnedWrite  = 10 * time.Millisecond // for the answer to any other: a new connection takes it at once
	turnedHead   = 4 << 10               // bytes of its request that are looked for
)

// room is how many connections there may be, those of all listeners and those
// that became streams together. fasthttp would count each listener alone and
// streams not at all, and refuse in plain text, on the goroutine that accepts.
type room struct {
	most   int64
	taken  atomic.Int64
	answer func() []byte // to a connection for which there is none
	idle   idlers        // those that give way
	gave   func()        // counts one that did

	turned chan struct{} // a place for each that is waited for
	wg     sync.WaitGroup
}

func newRoom(most int, answer func() []byte, gave func()) *room {
	return &room{most: int64(most), answer: answer, idle: idlers{least: idleLeast}, gave: gave, turned: make(chan struct{}, turnedAtOnce)}
}

// take is false when there is no room; else give must follow. Of those that are
// idle the oldest gives way: a client that keeps thousands of connections and uses
// none must not lock out one that has something to say.
func (r *room) take() bool {
	for {
		if r.taken.Add(1) <= r.most {
			return true
		}
		r.give()
		c := r.idle.takeOldest()
		if c == nil {
			return false
		}
		_ = c.Close() // nobody waits for anything on it
		r.gave()
	}
}

func (r *room) give() { r.taken.Add(-1) }

// turnAway answers a connection for which there is no room and closes it. The
// first few may take their time, in goroutines that wait waits for; a flood of
// others costs a write each.
func (r *room) turnAway(c *conn) {
	select {
	case r.turned <- struct{}{}:
		r.wg.Go(func() {
			defer func() { <-r.turned }()
			c.turnAway(r.answer())
		})
	default:
		c.turnAwayNow(r.answer())
	}
}

// wait is for when nothing is accepted any more.
func (r *room) wait() { r.wg.Wait() }

// turnAway waits for the beginning of the request, since clients take an answer
// that comes before for a fault, then answers, and closes when the client has
// seen it. It takes lingerTime twice and lingerAll at most.
func (c *conn) turnAway(answer []byte) {
	_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) // if it fails the read does too
	_, _ = c.Conn.Read(make([]byte, 1))
	_ = c.Conn.SetWriteDeadline(time.Now().Add(lingerTime))
	_, _ = c.Conn.Write(answer) // nobody is to know that it failed
	c.lingers()
	_ = c.Close()
}

// turnAwayNow answers at once. What has arrived of the request is read, so that
// closing does not take the answer away from who has sent a small one.
func (c *conn) turnAwayNow(answer []byte) {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(turnedWrite))
	_, _ = c.Conn.Write(answer)
	c.dropArrived()
	_ = c.Close()
}

// dropArrived reads what has arrived, a little of it, without waiting.
func (c *conn) dropArrived() {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		var b [turnedHead]byte
		_, _, _ = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
	})
}
