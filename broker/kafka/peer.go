package kafka

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookEvery is how often a connection that waits is looked at.
	lookEvery = time.Second
	// muteStep bounds how long a muted connection outlives the server or its client.
	muteStep = 250 * time.Millisecond
)

// peerGone tells whether the client has closed its side or the connection is broken. It takes no byte from the socket.
func (c *conn) peerGone() bool {
	rc, err := c.net.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = rc.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return err != nil || gone
}

// sitOut waits until a client over its quota may be read again. Its answers go out meanwhile.
func (c *conn) sitOut() error {
	for {
		left := time.Until(c.muted)
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, muteStep))
		select {
		case <-timer.C:
		case <-c.s.ctx.Done():
			timer.Stop()
			return errDead
		}
		c.mu.Lock()
		dead := c.dead
		c.mu.Unlock()
		if dead {
			return errDead
		}
	}
}
