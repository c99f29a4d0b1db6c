package chaos

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// Wire is what lies between the sidecars and one broker: all connections go
// through it, and it fails in the ways in which networks do.
type Wire struct {
	Addr string // that the broker is known by

	t  testing.TB
	to string // where the broker listens
	wg sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held across I/O that waits
	state    wireState  // of connections that are made now
	listener net.Listener
	links    map[*link]struct{}
	closed   bool
}

type wireState int

const (
	flows  wireState = iota
	cut              // connections are reset, new ones refused
	silent           // nothing arrives on either side
	deaf             // requests arrive, answers do not
	held             // requests of present connections wait, and arrive when it is over, whoever sent them
)

// link is one connection, with the broker's end.
type link struct {
	client, broker net.Conn

	mu    sync.Mutex // guards what follows
	state wireState
	kept  []byte // requests that wait
	gone  bool   // the sidecar has closed its end meanwhile
}

// NewWire makes a wire in front of a broker; the test's end takes it away.
func NewWire(t testing.TB, addr, to string) *Wire {
	t.Helper()
	w := &Wire{Addr: addr, t: t, to: to, links: map[*link]struct{}{}}
	w.listen()
	t.Cleanup(w.close)
	return w
}

func (w *Wire) listen() {
	l, err := net.Listen("tcp", w.Addr)
	if err != nil {
		w.t.Errorf("the wire in front of %s: %v", w.to, err)
		return
	}
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	w.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.serve(conn) })
		}
	})
}

// Fail lets the wire fail until Heal. With held only the connections that are
// there are concerned.
func (w *Wire) Fail(how wireState) {
	w.mu.Lock()
	if w.state = how; how == held {
		w.state = flows
	}
	l := w.listener
	var links []*link
	for k := range w.links {
		links = append(links, k)
	}
	w.mu.Unlock()
	if how == cut {
		_ = l.Close()
	}
	for _, k := range links {
		k.fail(how)
	}
}

// Heal ends the failure. Connections over which something was lost are reset;
// requests that waited arrive.
func (w *Wire) Heal() {
	w.mu.Lock()
	was := w.state
	w.state = flows
	var links []*link
	for k := range w.links {
		links = append(links, k)
	}
	w.mu.Unlock()
	for _, k := range links {
		k.heal()
	}
	if was == cut {
		w.listen()
	}
}

// Waits tells whether a request waits in the network that has some text in it.
func (w *Wire) Waits(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.links {
		if k.waits(text) {
			return true
		}
	}
	return false
}

func (w *Wire) close() {
	w.mu.Lock()
	w.closed = true
	_ = w.listener.Close()
	for k := range w.links {
		k.reset()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *Wire) serve(client net.Conn) {
	broker, err := net.Dial("tcp", w.to)
	if err != nil {
		reset(client)
		return
	}
	k := &link{client: client, broker: broker}
	w.mu.Lock()
	if w.closed || w.state == cut {
		w.mu.Unlock()
		k.reset()
		return
	}
	k.state = w.state
	w.links[k] = struct{}{}
	w.mu.Unlock()
	w.wg.Go(func() {
		k.answers()
		w.mu.Lock()
		delete(w.links, k)
		w.mu.Unlock()
	})
	k.requests()
}

// requests brings what the sidecar sends to the broker.
func (k *link) requests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := k.client.Read(buf)
		k.mu.Lock()
		state := k.state
		if state == held {
			k.kept = append(k.kept, buf[:n]...)
		}
		k.mu.Unlock()
		if state == flows || state == deaf {
			if _, err := k.broker.Write(buf[:n]); err != nil {
				k.reset()
				return
			}
		}
		if err != nil {
			if !k.left() {
				k.reset()
			}
			return
		}
	}
}

// left notes that the sidecar has closed its end. It is true where requests
// wait, which arrive in spite of that.
func (k *link) left() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = true
	return k.state == held
}

// waits tells whether a request waits that has some text in it.
func (k *link) waits(text string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return bytes.Contains(k.kept, []byte(text))
}

// answers brings what the broker sends to the sidecar, until its end.
func (k *link) answers() {
	buf := make([]byte, 64<<10)
	for {
		n, err := k.broker.Read(buf)
		k.mu.Lock()
		state := k.state
		k.mu.Unlock()
		if state == flows {
			if _, err := k.client.Write(buf[:n]); err != nil {
				k.reset()
				return
			}
		}
		if err != nil {
			k.reset()
			return
		}
	}
}

func (k *link) fail(how wireState) {
	k.mu.Lock()
	k.state = how
	k.mu.Unlock()
	if how == cut {
		k.reset()
	}
}

func (k *link) heal() {
	k.mu.Lock()
	state := k.state
	k.mu.Unlock()
	if state == silent || state == deaf {
		k.reset()
	}
	for state == held {
		k.mu.Lock()
		kept := k.kept
		k.kept = nil
		switch {
		case len(kept) > 0:
		case k.gone:
			k.state = deaf // whoever waited for the answers is gone
		default:
			k.state = flows
		}
		state = k.state
		k.mu.Unlock()
		if _, err := k.broker.Write(kept); err != nil {
			k.reset()
			return
		}
	}
}

func (k *link) reset() {
	reset(k.client)
	reset(k.broker)
}

// reset ends a connection without the courtesies, as a network does.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
