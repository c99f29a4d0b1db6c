package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/valyala/fasthttp"

	"sidestream/discovery/httpd"
)

// guard knows the names that this host is asked by. An operator or a scraper
// reaches an agent from elsewhere, so addresses and the host's own name will do.
func (a *Agent) guard() httpd.Guard {
	names := append([]string{a.cfg.Broker.Advertise}, a.cfg.AllowedHosts...)
	if host, _, err := net.SplitHostPort(a.cfg.Broker.Listen); err == nil {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		}
	}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	return httpd.NewGuard(a.cfg.Listen, names, true)
}

// refused answers what a web page could send, and what does not say where its
// body ends.
func refused(c *fasthttp.RequestCtx, guard httpd.Guard) bool {
	if why := guard.Check(c); why != "" {
		fail(c, fasthttp.StatusForbidden, "forbidden", why)
		return true
	}
	fault, last := httpd.CheckBody(&c.Request.Header, bytes.Equal(c.Path(), []byte(rebuildPath)))
	if last {
		c.SetConnectionClose()
	}
	if fault != nil {
		failBody(c, fault)
	}
	return fault != nil
}

// unreadable answers a request that fasthttp could not read.
func unreadable(c *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	fault := httpd.CheckError(err)
	switch {
	case fault != nil:
		failBody(c, fault)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		fail(c, fasthttp.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("the request's body is larger than %d bytes", maxHTTPBody))
	case errors.As(err, &small):
		fail(c, fasthttp.StatusRequestHeaderFieldsTooLarge, "bad_request", "the request's head is too large")
	case errors.As(err, &netErr) && netErr.Timeout():
		fail(c, fasthttp.StatusRequestTimeout, "bad_request", "the request did not arrive in time")
	default:
		fail(c, fasthttp.StatusBadRequest, "bad_request", "the request cannot be read: it is not valid HTTP/1.1")
	}
}

func failBody(c *fasthttp.RequestCtx, f *httpd.Fault) {
	code := "bad_request"
	switch f.Status {
	case fasthttp.StatusLengthRequired:
		code = "length_required"
	case fasthttp.StatusNotImplemented:
		code = "not_implemented"
	}
	fail(c, f.Status, code, f.Why)
}

// about is GET /: what this is, for who comes upon the port.
func (a *Agent) about(c *fasthttp.RequestCtx) {
	c.SetContentType("text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(c, `This is the agent of a Sidestream storage host (%s): it runs broker %d of cluster %s.
Kafka clients connect to %s. Applications speak to the sidecar on their own host.

  GET  /healthz            whether this process answers
  GET  /readyz             whether the broker serves, and what is amiss
  GET  /status             partitions led here, brokers, alarms
  GET  /topics             the cluster's topics as this agent knows them
  GET  /metrics            for Prometheus
  POST %s   writes the cluster's metadata again after the store was wiped

The same on one screen: sidestream status
`, Version, a.ID(), orNone(a.folderCluster()), orNone(a.BrokerAddr()), rebuildPath) // into memory
}

func orNone(s string) string {
	if s == "" {
		return "(not known yet)"
	}
	return s
}
