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

// discard takes what has arrived off the socket before it is closed: closing one with unread bytes resets the
// connection, and a reset overtakes answers that the client has not been sent yet.
func discard(fd int) {
	var b [16 << 10]byte
	for range 64 { // who goes on sending is reset
		if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT); n <= 0 || err != nil {
			return
		}
	}
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
