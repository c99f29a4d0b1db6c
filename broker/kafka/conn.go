package kafka

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// conn is one client's connection: its requests in their order, and who serves it.
type conn struct {
	s      *Server
	remote string
	ip     string
	active atomic.Int64 // when the last byte came or the last answer was ready, Unix nanoseconds
	// between: nothing has come of a request, none is being served by who reads, and the next is waited for.
	between atomic.Bool
	pace    pace // of the request that is arriving

	framing framing   // belongs to the reader: the loop, later the goroutine
	muted   time.Time // likewise: not read before
	readBy  deadline  // of the goroutine that reads

	writeBy deadline // of whoever writes: there is one at a time

	mu      sync.Mutex // guards everything below
	changed *sync.Cond // slots were taken, writing ended or the connection died
	link    link       // changed once, by a hand-over
	stream  stream     // of the link, nil while an event loop serves it; does not change while it is read or written
	dead    bool
	leaving bool    // it gave way to another
	doomed  bool    // the link has been asked to close it
	slots   []*slot // requests begun and not yet handed to the socket, in their order
	bytes   int64   // their frames' bytes
	failed  bool    // a request cannot be answered: the connection ends, and no further one is served
	ended   bool    // what came before that request has been handed to the socket
	writing bool    // the writer goroutine runs
	unsent  [][]byte
}

// slot is one request's place in the order of answers.
type slot struct {
	c     *conn
	api   *api
	frame *frame
	begun time.Time
	resp  *response
	done  bool
	last  bool // there is no answer, and the connection ends here
}

func newConn(s *Server, l link, ip, remote string) *conn {
	c := &conn{s: s, remote: remote, ip: ip, link: l, framing: framing{maxBytes: s.cfg.MaxRequestBytes, held: s.memory}}
	c.changed = sync.NewCond(&c.mu)
	c.active.Store(time.Now().UnixNano())
	c.between.Store(true)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	return c
}

// full tells whether another request of size bytes must wait. One may always be in flight. mu is held.
func (c *conn) full(size int) bool {
	return len(c.slots) >= c.s.cfg.MaxInFlightRequests ||
		(len(c.slots) > 0 && c.bytes+int64(size) > c.s.cfg.MaxInFlightBytes)
}

// push gives a request its place in the order of answers and takes over its frame.
func (c *conn) push(a *api, f *frame) *slot {
	sl := &slot{c: c, api: a, frame: f, begun: time.Now()}
	c.s.perAPI[a.key].requests.Inc()
	c.s.inFlight.Add(1)
	c.mu.Lock()
	c.slots = append(c.slots, sl)
	c.bytes += int64(f.size)
	c.mu.Unlock()
	return sl
}

// finish fills the slot. It may be called from any goroutine, once; a nil response means that none is sent, an error
// that the connection is to be closed when everything before has been answered.
func (sl *slot) finish(resp *response, err error) {
	c := sl.c
	now := time.Now()
	c.active.Store(now.UnixNano())
	c.s.perAPI[sl.api.key].duration.Observe(now.Sub(sl.begun).Seconds())
	size := int64(sl.frame.size)
	if sl.api.kind == produce { // its batches are written and its answer is encoded
		sl.frame.reuse()
	} else {
		sl.frame.release()
	}
	sl.frame = nil
	if err != nil {
		c.closing("not_answerable", err)
	}
	c.mu.Lock()
	c.bytes -= size
	if c.dead {
		c.mu.Unlock()
		resp.release()
		c.s.inFlight.Add(-1)
		return
	}
	sl.resp, sl.done = resp, true
	if err != nil {
		sl.last, c.failed = true, true
	}
	c.kick()
	c.mu.Unlock()
}

// fail has the connection end when what has been asked is answered; false when it ends already.
func (c *conn) fail() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.failed {
		return false
	}
	c.failed = true
	c.slots = append(c.slots, &slot{c: c, done: true, last: true})
	c.s.inFlight.Add(1)
	c.kick()
	return true
}

// closing counts and tells why the server closes a connection.
func (c *conn) closing(reason string, err error) {
	c.s.metrics.refused.WithLabelValues(reason).Inc()
	c.s.complain(reason, "closing a connection", zap.String("client", c.remote), zap.Error(err))
}

// owes tells whether requests wait for their answers.
func (c *conn) owes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.slots) > 0
}

// kick has answers that are ready written. mu is held.
func (c *conn) kick() {
	ready := len(c.unsent) > 0 || (len(c.slots) > 0 && c.slots[0].done)
	if ready && !c.dead {
		c.link.wake(c)
	}
}

// maxTake is how many answers go out in one write.
const maxTake = 256

// take removes the answers that are next in order and ready. mu is held.
func (c *conn) take() []*response {
	var out []*response
	n := 0
	for ; n < len(c.slots) && n < maxTake && c.slots[n].done; n++ {
		if c.slots[n].last {
			c.ended = true
			break
		}
		if r := c.slots[n].resp; r != nil {
			out = append(out, r)
		}
		c.slots[n] = nil
	}
	if n > 0 {
		c.s.inFlight.Add(int64(-n))
		c.slots = c.slots[n:]
		if len(c.slots) == 0 {
			c.slots = nil // let the array go
		}
		c.changed.Broadcast()
	}
	return out
}

// kill closes the connection from any goroutine. Whoever serves it cleans up.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killLocked()
}

func (c *conn) killLocked() {
	if c.dead {
		return
	}
	if c.doomed = true; !c.link.close() {
		return
	}
	c.dead = true
	c.changed.Broadcast()
}

// gone cleans up when nobody reads the connection any more. It is called once.
func (c *conn) gone() {
	c.mu.Lock()
	c.dead = true
	slots := c.slots
	c.slots = nil
	var answered int64
	for _, sl := range slots {
		if sl.done { // the others release theirs in finish
			answered++
			sl.resp.release()
		}
	}
	if c.stream != nil {
		_ = c.stream.Close()
	}
	if c.leaving {
		c.s.admission.leaving(-1)
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	c.s.inFlight.Add(-answered)
	c.framing.drop()
	c.s.admission.leave(c.ip)
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
}

// expire closes a connection without deadlines that has been idle for too long.
func (c *conn) expire(now time.Time) {
	if now.Sub(time.Unix(0, c.active.Load())) <= c.s.cfg.IdleTimeout || c.pace.running() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link.timed() || c.dead || len(c.slots) > 0 {
		return
	}
	c.s.metrics.refused.WithLabelValues("idle").Inc()
	c.killLocked()
}
