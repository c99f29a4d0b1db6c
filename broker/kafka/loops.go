package kafka

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/panjf2000/gnet/v2"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// loops are the event loops' callbacks. All but OnBoot run on the loop of their connection.
type loops struct {
	gnet.BuiltinEventEngine
	s      *Server
	booted func(error)
}

func (l *loops) OnBoot(eng gnet.Engine) gnet.Action {
	err := l.s.boot(eng)
	l.booted(err)
	if err != nil {
		return gnet.Shutdown
	}
	return gnet.None
}

func (l *loops) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	remote := gc.RemoteAddr()
	ip := remote.String()
	if a, ok := remote.(*net.TCPAddr); ok {
		ip = a.IP.String()
	}
	if reason := l.s.admit(ip, gc.Fd()); reason != "" {
		l.s.metrics.refused.WithLabelValues(reason).Inc()
		l.s.complain(reason, "connection refused: limit reached", zap.String("address", ip))
		return nil, gnet.Close
	}
	gc.SetContext(newConn(l.s, &onLoop{gc: gc}, ip, remote.String()))
	l.s.metrics.connections.WithLabelValues("loop").Inc()
	return nil, gnet.None
}

func (l *loops) OnClose(gc gnet.Conn, err error) gnet.Action {
	c, ok := gc.Context().(*conn)
	if !ok { // refused, or handed over
		return gnet.None
	}
	// To gnet the end of what a client sends is the end of the connection. But a client may shut its own side only and
	// wait for the answers to what it sent: a goroutine writes them, and finds out if nobody is there.
	if errors.Is(err, io.EOF) && c.owes() && c.takeOff(gc, nil, nil, "half-closed") == nil {
		return gnet.None
	}
	l.s.metrics.connections.WithLabelValues("loop").Dec()
	c.gone()
	return gnet.None
}

// OnTraffic runs when bytes have come, and when answers are ready. It takes every byte each time, so gnet never
// buffers input; and it writes to the socket itself, so gnet never buffers output, which could not be taken along in a
// hand-over and would grow without bound under a client that does not read.
func (l *loops) OnTraffic(gc gnet.Conn) gnet.Action {
	c, ok := gc.Context().(*conn)
	if !ok {
		return gnet.Close
	}
	c.mu.Lock()
	at := c.link.(*onLoop)
	at.flushes, at.woken = true, false
	failed, doomed := c.failed, c.doomed
	c.mu.Unlock()
	if doomed { // what is served now could not be answered any more
		return gnet.Close
	}

	data, _ := gc.Next(-1) // aliases the loop's buffer
	came, ended := len(data), false
	if came > 0 {
		c.active.Store(time.Now().UnixNano())
		l.s.metrics.received.Add(float64(came))
	}
	c.between.Store(false)
	direct := true // one direct read in each callback, so that one connection does not keep the loop
	for !failed {  // else what comes is taken off the socket and dropped
		f, rest, stalled, err := c.framing.feed(data)
		data = rest
		if err != nil {
			c.refuse(err)
			break
		}
		if stalled {
			return c.handOver(gc, nil, data, "memory")
		}
		if f == nil && direct && c.framing.current != nil {
			direct = false
			var n int
			f, n = c.readDirect(gc.Fd())
			came += n
		}
		if f == nil {
			break
		}
		ended = true
		why, err := c.serveOnLoop(f)
		if err != nil {
			c.refuse(err)
			break
		}
		if why != "" {
			return c.handOver(gc, f, data, why)
		}
		if !c.muted.IsZero() {
			return c.handOver(gc, nil, data, "quota")
		}
	}
	c.keepPace(came, ended)
	switch err := c.flush(at); {
	case err == nil:
		c.between.Store(c.framing.headN == 0)
		return gnet.None
	case errors.Is(err, errBackPressure):
		return c.handOver(gc, nil, nil, "slow reader")
	case errors.Is(err, errEnded):
		discard(gc.Fd())
	}
	return gnet.Close
}

// keepPace has the clock of the pace run while a request is arriving. came bytes came; ended tells that some of them
// ended a request.
func (c *conn) keepPace(came int, ended bool) {
	switch {
	case c.framing.headN == 0:
		c.pace.end()
	case ended || !c.pace.running():
		c.pace.begin(time.Now(), c.s.cfg.ReceiveTimeout)
	case came > 0:
		c.pace.progress(time.Now(), came, c.s.cfg.ReceiveTimeout)
	}
}

// readDirect reads what is left of a large request from the socket into its own memory, past the loop's buffer, and
// tells how many bytes came. An end, an error and a lack of memory are left for the loop to find.
func (c *conn) readDirect(fd int) (done *frame, came int) {
	f := c.framing.current
	for {
		if f.full() {
			if !f.grow(c.framing.ahead(0)) {
				return nil, came
			}
			c.framing.start()
		}
		n, err := unix.Read(fd, f.space())
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return nil, came
		}
		f.advance(n)
		came += n
		c.s.metrics.received.Add(float64(n))
		if done := c.framing.whole(); done != nil {
			return done, came
		}
	}
}

// serveOnLoop serves a request without waiting. It returns why that is not possible, and then f still belongs to the
// caller, or "".
func (c *conn) serveOnLoop(f *frame) (why string, err error) {
	if c.s.draining.Load() {
		f.release()
		return "", nil
	}
	a, call, err := parse(f)
	if err != nil {
		f.release()
		return "", err
	}
	c.mu.Lock()
	full, failed := c.full(f.size), c.failed
	c.mu.Unlock()
	switch {
	case failed: // by the request before it
		f.release()
		return "", nil
	case a.kind == waiting:
		return a.name, nil
	case full:
		return "in flight", nil
	}
	call.ctx = c.s.ctx
	if a.kind == produce {
		if c.s.unpacks(call.req) {
			return "unpacking", nil
		}
		a.enqueue(c.s, call, c.push(a, f).finish)
		c.muteFor(call.mute)
		return "", nil
	}
	resp, err := a.serve(c.s, call)
	switch {
	case errors.Is(err, errWouldBlock):
		return a.name, nil
	case err != nil:
		f.release()
		return "", err
	}
	c.push(a, f).finish(resp, nil)
	return "", nil
}

// refuse has a connection whose bytes make no sense or break a limit closed, after the answers to what came before.
func (c *conn) refuse(err error) {
	c.closing(refusal(err), err)
	c.fail() // false: it ends for another reason
}

// refusal is the reason under which a refused request is counted.
func refusal(err error) string {
	if errors.Is(err, errOversized) {
		return "oversized_request"
	}
	return "bad_request"
}

var (
	// errBackPressure: the socket takes no more now.
	errBackPressure = errors.New("socket buffer is full")
	// errEnded: everything has been written that is to be, and the connection is to be closed.
	errEnded = errors.New("nothing more is answered")
)

// flush writes the answers that are ready. What the socket does not take is left in unsent.
func (c *conn) flush(at *onLoop) error {
	fd := at.gc.Fd()
	for {
		c.mu.Lock()
		resps := c.take()
		if len(resps) == 0 {
			at.flushes = false
			ended := c.ended
			c.mu.Unlock()
			if ended {
				return errEnded
			}
			return nil
		}
		c.mu.Unlock()
		var bufs [][]byte
		for _, r := range resps {
			for _, p := range r.pieces { // no file pieces: a Fetch is never served on a loop
				bufs = append(bufs, p.bytes)
			}
		}
		for len(bufs) > 0 {
			n, err := unix.Writev(fd, bufs)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				c.mu.Lock()
				c.unsent = bufs
				c.mu.Unlock()
				return errBackPressure
			case err != nil:
				return os.NewSyscallError("writev", err)
			}
			c.s.metrics.sent.Add(float64(n))
			bufs = skip(bufs, n)
		}
	}
}

// skip drops the first n bytes.
func skip(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}

// handOver takes the connection off its loop: the descriptor is duplicated and the loop closes its own. f is a request
// to begin with (or nil), rest the bytes that were read after it. Answers still to come find the connection where it is
// then.
func (c *conn) handOver(gc gnet.Conn, f *frame, rest []byte, why string) gnet.Action {
	if c.takeOff(gc, f, rest, why) != nil && f != nil {
		f.release()
	}
	return gnet.Close
}

// takeOff is handOver without the close. When it returns an error, which it has told, f still belongs to the caller.
func (c *conn) takeOff(gc gnet.Conn, f *frame, rest []byte, why string) error {
	nc, err := c.duplicate(gc)
	if err != nil {
		c.s.complain("not_handed_over", "a connection could not be handed over and is closed", zap.String("client", c.remote), zap.Error(err))
		return err
	}
	if ce := c.s.log.Check(zap.DebugLevel, "connection handed over"); ce != nil {
		ce.Write(zap.String("client", c.remote), fieldReason(why))
	}
	carry := append([]byte(nil), rest...)
	c.pace.end()       // whoever reads on begins it anew
	gc.SetContext(nil) // OnClose has nothing to clean up
	c.s.metrics.connections.WithLabelValues("loop").Dec()
	c.s.metrics.connections.WithLabelValues("goroutine").Inc()
	c.s.wg.Add(1) // the engine's own count keeps the group from being waited out here
	c.mu.Lock()
	c.link, c.stream = handed{nc}, nc
	c.kick()
	c.mu.Unlock()
	go func() {
		defer c.s.wg.Done()
		c.run(f, carry)
	}()
	return nil
}

// duplicate makes a connection of its own of what a loop serves.
func (c *conn) duplicate(gc gnet.Conn) (stream, error) {
	c.mu.Lock()
	doomed := c.doomed
	c.mu.Unlock()
	if doomed {
		return nil, errDead
	}
	if gc.OutboundBuffered() != 0 {
		return nil, errors.New("the event loop holds unsent bytes")
	}
	fd, err := gc.Dup()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "handed-over")
	nc, err := net.FileConn(file) // duplicates once more; the loop does no more I/O on this socket
	_ = file.Close()
	if err != nil {
		return nil, err
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		_ = nc.Close()
		return nil, errors.New("not a TCP connection")
	}
	out, err := newSocket(tcp, c.s.copies)
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return out, nil
}
