package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// What a broker did not take before the connection ended it never gets: the
// kernel does not go on to send it.
func TestAClosedConnectionSendsNothingMore(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial, err := dialler(DefaultConfig(), new(dials))
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	broker, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	// Until neither kernel takes more.
	if err := c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for block := make([]byte, 64<<10); ; {
		n, err := c.Write(block)
		sent += n
		if err != nil {
			break
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // for the reset to come through the loopback
	got, err := io.Copy(io.Discard, broker)
	if got >= int64(sent) || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("of %d bytes %d came, %v; want less, and a reset", sent, got, err)
	}
}
