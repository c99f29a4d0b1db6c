package kafka

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// readBuffer is what a handed-over connection reads small requests through; larger ones go straight to their frame.
const readBuffer = 4 << 10

// run serves a handed-over connection until it ends. Its requests are read one after another; several produce requests
// may be in flight, and any other waits until all before it are answered.
func (c *conn) run(first *frame, carry []byte) {
	defer c.s.metrics.connections.WithLabelValues("goroutine").Dec()
	defer c.gone()
	var in io.Reader = c.stream
	if len(carry) > 0 {
		in = io.MultiReader(bytes.NewReader(carry), c.stream)
	}
	r := bufio.NewReaderSize(in, readBuffer)
	for f := first; ; f = nil {
		if f == nil {
			err := c.sitOut()
			if err == nil {
				f, err = c.readFrame(r)
			}
			if err != nil {
				c.end(err)
				return
			}
		}
		if err := c.serve(f, r); err != nil {
			c.end(err)
			return
		}
	}
}

// end stops reading. What has been asked is still answered: a client may have shut its own side only, and a request
// that makes no sense takes nothing from those before it.
func (c *conn) end(err error) {
	c.logEnd(err)
	if c.await(func() bool { return len(c.slots) > 0 || c.writing }) == nil {
		c.stream.discard()
	}
}

// logEnd tells why a connection ends, unless it simply ended.
func (c *conn) logEnd(err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, errDead), c.s.ctx.Err() != nil, isReset(err):
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.s.metrics.refused.WithLabelValues("timeout").Inc()
	default:
		c.closing(refusal(err), err)
	}
}

// readFrame reads the next request. Between requests the idle timeout holds, within one the receive timeout.
func (c *conn) readFrame(r *bufio.Reader) (*frame, error) {
	fr := &c.framing
	for fr.headN < headBytes {
		if fr.headN == 0 {
			c.readBy.move(c.stream.SetReadDeadline, c.s.cfg.IdleTimeout)
		} else {
			c.expect(r, 0)
		}
		c.active.Store(time.Now().UnixNano())
		c.between.Store(fr.headN == 0)
		n, err := r.Read(fr.head[fr.headN:])
		c.between.Store(false)
		if err != nil {
			return nil, err
		}
		fr.headN += n
		if err := fr.check(); err != nil {
			return nil, err
		}
	}
	f := fr.current
	if f == nil {
		f = fr.begin()
	}
	for came := 0; ; {
		if f.full() {
			if err := c.grow(f, fr.ahead(min(r.Buffered(), f.size))); err != nil {
				return nil, err
			}
			fr.start()
		}
		c.expect(r, came)
		n, err := r.Read(f.space())
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		came = n
		f.advance(n)
		if done := fr.whole(); done != nil {
			c.pace.end()
			c.s.metrics.received.Add(float64(done.size + lengthBytes))
			return done, nil
		}
	}
}

// expect is called before a read within a request, of which came bytes came with the read before. If it may have to
// wait, the client is held to its pace; the deadline of the socket is only there in case that nobody looks at that.
func (c *conn) expect(r *bufio.Reader, came int) {
	patience := c.s.cfg.ReceiveTimeout
	switch now := time.Now(); {
	case r.Buffered() > 0:
		return
	case c.pace.running():
		c.pace.progress(now, came, patience)
	default:
		c.pace.begin(now, patience)
	}
	c.readBy.move(c.stream.SetReadDeadline, 2*patience)
}

// grow gets room for a frame, and waits for it if need be. The client is not measured meanwhile: it is not read.
func (c *conn) grow(f *frame, ahead int) error {
	if f.grow(ahead) {
		return nil
	}
	c.pace.end()
	known := f.known(ahead)
	room, err := c.s.memory.wait(c.s.ctx, f, known, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dead
	})
	if err == nil {
		f.extend(room, known)
	}
	return err
}

var errDead = errors.New("connection closed")

// await blocks while the connection lives and the condition holds, which is called with mu held.
func (c *conn) await(while func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.dead && while() {
		c.changed.Wait()
	}
	if c.dead {
		return errDead
	}
	return nil
}

// serve serves one request and takes over its frame. r is what is read from behind it.
func (c *conn) serve(f *frame, r *bufio.Reader) error {
	c.mu.Lock()
	failed := c.failed
	c.mu.Unlock()
	if failed || c.s.draining.Load() {
		f.release()
		return errDead
	}
	a, call, err := parse(f)
	if err != nil {
		f.release()
		return err
	}
	call.ctx, call.mayBlock, call.gone = c.s.ctx, true, c.stream.peerGone
	if a.kind == produce {
		if err := c.await(func() bool { return c.full(f.size) }); err != nil {
			f.release()
			return err
		}
		if c.s.unpacks(call.req) { // few are at once, and the others must not hold up the server's stop
			select {
			case c.s.unpacking <- struct{}{}:
				defer func() { <-c.s.unpacking }()
			case <-c.s.ctx.Done():
				f.release()
				return errDead
			}
		}
		a.enqueue(c.s, call, c.push(a, f).finish)
		c.muteFor(call.mute)
		return nil
	}
	if err := c.await(func() bool { return len(c.slots) > 0 || c.writing }); err != nil {
		f.release()
		return err
	}
	c.s.perAPI[a.key].requests.Inc()
	if a.takeOver != nil {
		f.release()
		return c.giveTo(a, call, r)
	}
	begun := time.Now()
	c.s.inFlight.Add(1)
	defer c.s.inFlight.Add(-1)
	resp, err := a.serve(c.s, call)
	f.release()
	c.s.perAPI[a.key].duration.Observe(time.Since(begun).Seconds())
	if err != nil {
		return err
	}
	defer resp.release()
	c.muteFor(call.mute)
	return c.write(resp.pieces)
}

// giveTo leaves the connection to an API that speaks a protocol of its own on it.
func (c *conn) giveTo(a *api, call *call, r *bufio.Reader) error {
	if err := c.stream.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if err := a.takeOver(c, call, r); err != nil {
		return err
	}
	return io.EOF
}

// muteFor keeps the connection from being read for a while.
func (c *conn) muteFor(d time.Duration) {
	if d > 0 {
		c.muted = time.Now().Add(d)
	}
}

// writeReady writes answers while there are any in order, then ends. There is at most one at a time.
func (c *conn) writeReady() {
	for {
		c.mu.Lock()
		var pieces []piece
		for _, b := range c.unsent {
			pieces = append(pieces, piece{bytes: b})
		}
		c.unsent = nil
		resps := c.take()
		if idle := len(pieces) == 0 && len(resps) == 0; idle && c.ended && !c.dead {
			c.mu.Unlock()
			c.stream.discard()
			c.kill()
			continue
		} else if idle || c.dead {
			c.writing = false
			c.changed.Broadcast()
			c.mu.Unlock()
			for _, r := range resps {
				r.release()
			}
			return
		}
		c.mu.Unlock()
		for _, r := range resps {
			pieces = append(pieces, r.pieces...)
		}
		err := c.write(pieces)
		for _, r := range resps {
			r.release()
		}
		if err != nil {
			c.logEnd(err)
			c.kill()
		}
	}
}
