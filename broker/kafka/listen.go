package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/panjf2000/gnet/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// Serve binds the listener and returns; serving goes on in the background until Close.
func (s *Server) Serve() error {
	if err := probe(s.cfg.Listen); err != nil {
		return fmt.Errorf("listen: cannot serve on %q: %w: choose a free address", s.cfg.Listen, err)
	}
	s.descriptors = descriptorLimit()
	booted := make(chan error)
	var once sync.Once
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer close(s.loopsGone)
		s.keepListening(func(err error) { once.Do(func() { booted <- err }) })
	}()
	if err := <-booted; err != nil {
		return fmt.Errorf("listen: cannot serve on %q: %w: choose a free address", s.cfg.Listen, err)
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.sweep()
	}()
	return nil
}

// How long it takes until a listener that failed begins again.
const (
	againAfter = 250 * time.Millisecond // the first time
	againMost  = 5 * time.Second
)

// keepListening runs the event loops until the server stops; booted is told how the first start went. gnet ends them
// all, with their connections, when it cannot accept one because the process or the machine has no file descriptor
// left. That passes, and a broker without a listener is of no use, so they begin again on the same address.
func (s *Server) keepListening(booted func(error)) {
	listen := s.cfg.Listen
	for again := againAfter; ; again = min(2*again, againMost) {
		begun := time.Now()
		err := gnet.Run(&loops{s: s, booted: booted}, "tcp://"+listen,
			gnet.WithNumEventLoop(s.cfg.Loops),
			gnet.WithReuseAddr(true),
			gnet.WithTCPNoDelay(gnet.TCPNoDelay),
			gnet.WithTCPKeepAlive(time.Minute),
			gnet.WithLogger(sparing(atLeastWarn(s.log.Named("gnet"))).Sugar()))
		if s.addr.Load() == nil { // it was never bound
			if err == nil {
				err = errors.New("the event loops ended at once")
			}
			booted(err)
			return
		}
		if s.draining.Load() {
			return
		}
		if time.Since(begun) > time.Minute {
			again = againAfter
		}
		why := "the listener failed and begins again; is the process or the machine short of file descriptors (ulimit -n)?"
		s.trouble.Store(&why)
		s.metrics.listens.Inc()
		s.complain("listener", why, zap.Error(err), zap.Duration("in", again))
		select {
		case <-time.After(again):
		case <-s.ctx.Done():
			return
		}
		listen = s.Addr()
	}
}

// boot is the event loops' begin.
func (s *Server) boot(eng gnet.Engine) error {
	s.engine.Store(&eng)
	if s.draining.Load() {
		return errors.New("the server stops")
	}
	fd, err := eng.Dup()
	if err != nil {
		return err
	}
	addr, err := boundAddress(fd)
	if err != nil {
		return err
	}
	s.addr.Store(&addr)
	s.trouble.Store(nil)
	return nil
}

// stopLoops ends the event loops and waits for them.
func (s *Server) stopLoops(ctx context.Context) {
	if s.addr.Load() == nil {
		return // never served
	}
	// Stop looks only twice a second whether the loops have ended, so it is not waited for: the loops are. They may be
	// about to begin again just now, and are then told once more.
	now, cancel := context.WithCancel(ctx)
	cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if eng := s.engine.Load(); eng != nil && eng.Validate() == nil {
			_ = eng.Stop(now)
		}
		select {
		case <-s.loopsGone:
			return
		case <-tick.C:
		}
	}
}

// Trouble says why nobody can connect; empty when all is well.
func (s *Server) Trouble() string {
	if why := s.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// descriptorLimit is how many file descriptors the process may have.
func descriptorLimit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 1 << 30
	}
	return int(min(limit.Cur, 1<<30))
}

// short tells whether a connection has a file descriptor of the last eighth that there are, which are kept for the logs'
// files. The kernel gives out the lowest that is free.
func (s *Server) short(fd int) bool { return fd >= s.descriptors-s.descriptors/8 }

// atLeastWarn leaves out what is below a warning. A logger that is stricter stays as it is: raising its level to a lower
// one is an error that zap prints.
func atLeastWarn(log *zap.Logger) *zap.Logger {
	if log.Level() >= zap.WarnLevel {
		return log
	}
	return log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))
}

// sparing lets few equal lines through: gnet tells of each connection that it cannot accept while descriptors are short.
func sparing(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, logEvery, 5, 0)
	}))
}

// probe binds the address for a moment, because gnet loses the reason when it cannot.
func probe(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// boundAddress reads the address that a listening socket is bound to. It closes fd.
func boundAddress(fd int) (string, error) {
	defer func() { _ = unix.Close(fd) }() // a copy that was only asked for its name
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return "", fmt.Errorf("getsockname: %w", err)
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return (&net.TCPAddr{IP: a.Addr[:], Port: a.Port}).String(), nil
	case *unix.SockaddrInet6:
		return (&net.TCPAddr{IP: a.Addr[:], Port: a.Port}).String(), nil
	default:
		return "", fmt.Errorf("listener has an address of type %T", sa)
	}
}
