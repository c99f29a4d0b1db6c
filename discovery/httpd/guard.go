package httpd

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// Guard refuses what a web page in a browser on this host could send: any page
// can post to localhost, and a name that its owner points at 127.0.0.1 makes
// that a request of the "same origin".
type Guard struct {
	hosts []string            // allowed in Host, in small letters, without port
	plain map[string]struct{} // what nearly every Host is: one of them, or with the port listened on
	addrs bool                // any address is allowed
}

// NewGuard allows the loopback names, the host listened on, and those given. With
// addresses any address is allowed in Host, since it is no name that somebody
// could point here, but for that which stands for all.
func NewGuard(listen string, more []string, addresses bool) Guard {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	// Browsers let a page speak to this host by the address that stands for
	// all, so it is no name of ours.
	if h := bareHost(listen); h != "0.0.0.0" && h != "::" {
		hosts = append(hosts, h)
	}
	for _, h := range more {
		hosts = append(hosts, bareHost(h))
	}
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return h == "" })
	slices.Sort(hosts)
	g := Guard{hosts: slices.Compact(hosts), plain: map[string]struct{}{}, addrs: addresses}
	_, port, _ := net.SplitHostPort(listen) // the configuration was checked
	for _, h := range g.hosts {
		g.plain[h] = struct{}{}
		g.plain[net.JoinHostPort(h, port)] = struct{}{}
	}
	return g
}

// Check returns why a request is refused, "" when it is not. Sockets that no
// browser reaches need no check.
func (g Guard) Check(ctx *fasthttp.RequestCtx) (why string) {
	local, ok := ctx.LocalAddr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	if origin := ctx.Request.Header.Peek("Origin"); len(origin) > 0 {
		return "requests of web pages (with an Origin header) are refused: any page could post to this address"
	}
	// The images and scripts of a page are fetched without Origin, and a stream
	// hands messages out to a GET; browsers tell where such a request is from.
	// "none" is somebody who typed the address.
	if site := ctx.Request.Header.Peek("Sec-Fetch-Site"); len(site) > 0 && string(site) != "none" && string(site) != "same-origin" {
		return "requests that a web page makes (with a Sec-Fetch-Site header) are refused: any page could reach this address"
	}
	// A target with a host of its own overrules the header.
	if target := ctx.RequestURI(); len(target) > 0 && target[0] != '/' && string(target) != "*" {
		if why := g.checkHost(string(ctx.URI().Host()), local); why != "" {
			return why
		}
	}
	if _, ok := g.plain[string(ctx.Request.Header.Host())]; ok {
		return ""
	}
	return g.checkHost(string(ctx.Request.Header.Host()), local)
}

func (g Guard) checkHost(host string, local *net.TCPAddr) string {
	if host == "" { // HTTP/1.0, which no browser speaks
		return ""
	}
	bare := bareHost(host)
	// The address that was dialled is no name that somebody could point here.
	if slices.Contains(g.hosts, bare) || bare == local.IP.String() {
		return ""
	}
	if ip := net.ParseIP(bare); g.addrs && ip != nil && !ip.IsUnspecified() {
		return ""
	}
	return fmt.Sprintf("host %q is not allowed: use localhost, or add it to allowed_hosts", host)
}

// bareHost is a Host header's host without port and brackets, in small letters.
func bareHost(h string) string {
	if host, _, err := net.SplitHostPort(h); err == nil {
		h = host
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(h, "["), "]"), "."))
}
