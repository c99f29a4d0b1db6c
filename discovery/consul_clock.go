package discovery

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// dateKey is where a call says that it wants the Date header of its answer.
type dateKey struct{}

// Clock implements Store. The header Date is written by the Consul agent that
// answers, so it says something only where that is not on this host.
func (c *consul) Clock(ctx context.Context) (time.Time, error) {
	date, from, err := c.dated(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if own, err := onThisHost(from); err != nil || own {
		return time.Time{}, ErrNoClock
	}
	at, err := http.ParseTime(date)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: Consul's answer is dated %q", ErrNoClock, date)
	}
	return at, nil
}

// dated asks for something small, and returns the date of the answer and who
// gave it.
func (c *consul) dated(ctx context.Context) (date string, from net.Addr, err error) {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { from = i.Conn.RemoteAddr() }})
	ctx = context.WithValue(ctx, dateKey{}, &date)
	if _, err := c.calls.Status().LeaderWithQueryOptions(poll(ctx, 0)); err != nil {
		return "", nil, readError(ctx, err)
	}
	return date, from, nil
}

// onThisHost says whether an address is one of this host.
func onThisHost(a net.Addr) (bool, error) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() { // a UNIX socket, or nothing
		return true, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, own := range addrs {
		if n, ok := own.(*net.IPNet); ok && n.IP.Equal(tcp.IP) {
			return true, nil
		}
	}
	return false, nil
}
