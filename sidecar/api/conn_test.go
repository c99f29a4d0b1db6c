package api

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// deaf is a connection whose writes fail when told so.
type deaf struct {
	net.Conn
	err error
}

func (d *deaf) Write(b []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	return len(b), nil
}
func (d *deaf) Read([]byte) (int, error) { return 1, nil }
func (d *deaf) Close() error             { return nil }

func TestUnsentAnswers(t *testing.T) {
	broken := errors.New("broken pipe")
	for name, c := range map[string]struct {
		do     func(*conn, *deaf)
		unsent int
	}{
		"written, then the next request":     {func(c *conn, d *deaf) { c.Write(nil); c.Read(nil); d.err = broken; c.Write(nil) }, 0},
		"written, then closed":               {func(c *conn, d *deaf) { c.Write(nil); c.Close() }, 0},
		"the write fails":                    {func(c *conn, d *deaf) { d.err = broken; c.Write(nil); c.Close() }, 1},
		"the second part of it fails":        {func(c *conn, d *deaf) { c.Write(nil); d.err = broken; c.Write(nil) }, 1},
		"closed before anything was written": {func(c *conn, d *deaf) { c.Close() }, 1},
		"the next is read before it is sent": {func(c *conn, d *deaf) { c.Read(nil); d.err = broken; c.Write(nil) }, 1},
		"closed twice":                       {func(c *conn, d *deaf) { c.Close(); c.Close() }, 1},
	} {
		d := &deaf{}
		cn := &conn{Conn: d, l: newListener(nil, newRoom(1, nil, func() {}))}
		n := 0
		cn.onUnsent(func() { n++ })
		c.do(cn, d)
		if n != c.unsent {
			t.Errorf("%s: returned %d times, want %d", name, n, c.unsent)
		}
	}
}

func TestAlive(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln, newRoom(10, nil, func() {}))
	defer l.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := nc.(*conn)
	defer c.Close()
	if !c.alive() {
		t.Error("an idle client counts as gone")
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if !c.alive() {
		t.Error("a client that sent more counts as gone")
	}
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil || b[0] != 'x' {
		t.Fatalf("looking took a byte away: %q, %v", b, err)
	}
	client.Close()
	for deadline := time.Now().Add(10 * time.Second); c.alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a client that closed counts as there")
		}
	}
}

func TestClientThatGoesWhileItWaits(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln, newRoom(10, nil, func() {}))
	defer l.Close()
	dial := func() (client net.Conn, c *conn) {
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(); nc.Close() })
		return client, nc.(*conn)
	}

	client, c := dial()
	gone := make(chan struct{})
	stop := c.onGone(func() { close(gone) })
	client.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("a client that closed is not noticed")
	}
	stop()

	// One that stays, and sends its next request early or late.
	client, c = dial()
	for _, early := range []bool{true, false} {
		stop := c.onGone(func() { t.Error("a client that stays counts as gone") })
		if early {
			_, _ = client.Write([]byte("next"))
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				c.mu.Lock()
				n := len(c.early)
				c.mu.Unlock()
				if n > 0 {
					break
				}
			}
		}
		stop()
		if !early {
			_, _ = client.Write([]byte("next"))
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "next" {
			t.Errorf("the next request is read as %q, %v", b, err)
		}
	}
}
