package api

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// guard refuses what a web page in a browser on this host could send: any page
// can post to localhost, and a name that its owner points at 127.0.0.1 makes
// that a request of the "same origin".
type guard struct {
	hosts []string // allowed in Host, in small letters, without port
}

// newGuard allows the loopback names, the host listened on, and those given.
func newGuard(listen string, more []string) guard {
	hosts := []string{"localhost", "127.0.0.1", "::1", bareHost(listen)}
	for _, h := range more {
		hosts = append(hosts, bareHost(h))
	}
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return h == "" })
	slices.Sort(hosts)
	return guard{hosts: slices.Compact(hosts)}
}

// SetHosts allows further names in Host headers, from the next request on.
func (s *Server) SetHosts(more []string) {
	g := newGuard(s.opt.Listen, more)
	s.guard.Store(&g)
}

// check returns why a request is refused, nil when it is not. Sockets that no
// browser reaches need no check.
func (g guard) check(ctx *fasthttp.RequestCtx) *api.Error {
	local, ok := ctx.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	if origin := ctx.Request.Header.Peek("Origin"); len(origin) > 0 {
		return apiError(api.CodeForbidden, "requests of web pages (with an Origin header) are refused: any page could post to this address")
	}
	host := string(ctx.Request.Header.Host())
	if host == "" { // HTTP/1.0, which no browser speaks
		return nil
	}
	bare := bareHost(host)
	// The address that was dialled is no name that somebody could point here.
	if slices.Contains(g.hosts, bare) || bare == local.IP.String() {
		return nil
	}
	return apiError(api.CodeForbidden, fmt.Sprintf("host %q is not allowed: use localhost, or add it to allowed_hosts", host))
}

// bareHost is a Host header's host without port and brackets, in small letters.
func bareHost(h string) string {
	if host, _, err := net.SplitHostPort(h); err == nil {
		h = host
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(h, "["), "]"), "."))
}
