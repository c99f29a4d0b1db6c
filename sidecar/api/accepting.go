package api

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
	acceptWarning  = 10 * time.Second // between two warnings
)

// accepting is a listener that goes on accepting after errors that pass by
// themselves: the HTTP server takes any error for the end of the listener, and
// would never serve again once the process was out of file descriptors.
type accepting struct {
	net.Listener
	log    *zap.Logger
	warned time.Time // belongs to the one goroutine that accepts

	closing sync.Once
	closed  chan struct{}
}

func newAccepting(l net.Listener, log *zap.Logger) *accepting {
	return &accepting{Listener: l, log: log, closed: make(chan struct{})}
}

func (a *accepting) Accept() (net.Conn, error) {
	for pause := acceptPauseMin; ; pause = min(2*pause, acceptPauseMax) {
		c, err := a.Listener.Accept()
		if err == nil || !passes(err) {
			return c, err
		}
		if now := time.Now(); now.Sub(a.warned) >= acceptWarning {
			a.warned = now
			a.log.Warn("no connection can be accepted at the moment; it is tried again until one can. When file descriptors ran out, raise their limit (LimitNOFILE, ulimit -n)", zap.Error(err))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-a.closed:
			timer.Stop()
			return nil, net.ErrClosed
		}
	}
}

func (a *accepting) Close() error {
	a.closing.Do(func() { close(a.closed) })
	return a.Listener.Close()
}

// passes tells errors of accept(2) that are of the host's state, or of one
// connection, from those of the listener.
func passes(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
