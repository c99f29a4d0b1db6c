package api

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zaptest "go.uber.org/zap/zaptest/observer"
)

// failing is a listener that accepts nothing.
type failing struct {
	net.Listener
	errs func() error
}

func (f *failing) Accept() (net.Conn, error) { return nil, f.errs() }
func (f *failing) Close() error              { return nil }

// Accepting is tried again, ever more slowly and with few words, until the
// listener is closed.
func TestAcceptingGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		core, logged := zaptest.New(zapcore.WarnLevel)
		a := newAccepting(&failing{errs: func() error {
			tries++
			return &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		}}, zap.New(core))
		ended := make(chan error)
		go func() {
			_, err := a.Accept()
			ended <- err
		}()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		// 8 pauses up to 640 ms, which make 1.275 s, and then one a second.
		if tries != 8+14 || logged.Len() != 2 {
			t.Errorf("%d tries, %d warnings in 15 s", tries, logged.Len())
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
	})
}

// Any other error is the listener's end.
func TestAcceptingEnds(t *testing.T) {
	a := newAccepting(&failing{errs: func() error { return syscall.EINVAL }}, zap.NewNop())
	if _, err := a.Accept(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Accept: %v", err)
	}
}
