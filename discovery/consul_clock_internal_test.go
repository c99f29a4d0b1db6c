package discovery

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A Consul agent on this host has this host's clock: that they agree says
// nothing.
func TestConsulClock(t *testing.T) {
	const date = "Tue, 15 Nov 1994 08:12:31 GMT"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", date)
		_, _ = w.Write([]byte(`"127.0.0.1:8300"`))
	}))
	defer server.Close()
	cfg := DefaultConsulConfig()
	cfg.Address = server.URL
	store, err := NewConsul(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if got, from, err := store.(*consul).dated(t.Context()); err != nil || got != date || from.String() != server.Listener.Addr().String() {
		t.Errorf("%q from %v, %v", got, from, err)
	}
	if at, err := store.Clock(t.Context()); !errors.Is(err, ErrNoClock) {
		t.Errorf("%v, %v", at, err)
	}
	server.Close()
	if _, err := store.Clock(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Consul: %v", err)
	}
}

func TestOnThisHost(t *testing.T) {
	own := []net.Addr{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 53)}, &net.TCPAddr{IP: net.IPv6loopback}, &net.UnixAddr{Name: "/run/consul"}, nil}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			own = append(own, &net.TCPAddr{IP: n.IP, Port: 8500})
		}
	}
	for _, a := range own {
		if here, err := onThisHost(a); err != nil || !here {
			t.Errorf("%v is not on this host, %v", a, err)
		}
	}
	if here, err := onThisHost(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}); err != nil || here { // of documentation alone (RFC 5737)
		t.Errorf("a foreign address is on this host, %v", err)
	}
}
