package kafka

import (
	"fmt"
	"sync/atomic"
	"time"
)

// minRate is how fast a request must come in, in bytes a second, once the receive timeout is used up.
const minRate = 64 << 10

// pace holds a client to sending its request in time. It has the receive timeout for it, and each byte that comes gives
// it back what the byte takes at the minimum rate, never more. So a request as a whole must be there after the receive
// timeout and its size at the minimum rate, one that stands still is noticed after the receive timeout, and a byte now
// and then, which used to begin the timeout anew, helps nobody.
type pace struct {
	due atomic.Int64 // when the client is too late, Unix nanoseconds; 0: nothing is expected of it
}

// begin starts the clock.
func (p *pace) begin(now time.Time, patience time.Duration) {
	p.due.Store(now.Add(patience).UnixNano())
}

// progress tells that n bytes came.
func (p *pace) progress(now time.Time, n int, patience time.Duration) {
	p.due.Store(later(p.due.Load(), now.UnixNano(), n, patience))
}

// end stops the clock: the request is whole, or waits for us.
func (p *pace) end() {
	if p.due.Load() != 0 {
		p.due.Store(0)
	}
}

func (p *pace) running() bool { return p.due.Load() != 0 }

// later is when a client is too late that was due at a time and sent n bytes by now.
func later(due, now int64, n int, patience time.Duration) int64 {
	return min(due+int64(n)*int64(time.Second)/minRate, now+int64(patience))
}

// late tells whether the client has fallen behind its pace by more than allowed, which is at most patience.
func (p *pace) late(now time.Time, patience, allowed time.Duration) bool {
	due := p.due.Load()
	return due != 0 && now.UnixNano()-due > int64(allowed-patience)
}

// cutSlow closes a connection whose request comes too slowly. While others wait for the memory that such requests hold,
// a quarter of the patience must do.
func (c *conn) cutSlow(now time.Time, short bool) {
	patience := c.s.cfg.ReceiveTimeout
	allowed := patience
	if short {
		allowed /= 4
	}
	if !c.pace.late(now, patience, allowed) {
		return
	}
	if c.fail() {
		c.closing("receive_timeout", fmt.Errorf("a request stood still for %s or came at less than %d bytes a second", allowed, minRate))
	}
}
