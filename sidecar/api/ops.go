package api

import (
	"encoding/json"
	"fmt"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"sidestream/sdk/api"
)

// healthz says that the process answers.
func (s *Server) healthz(c *call) error {
	return c.answer(fasthttp.StatusOK, api.Health{Status: "ok"})
}

// readyz says whether publishing and pulling would work now, and what is amiss:
// there may be causes for worry while both work.
func (s *Server) readyz(c *call) error {
	var causes []string
	ready := true
	if s.opt.Ready != nil {
		causes, ready = s.opt.Ready()
	}
	if s.draining.Load() {
		causes, ready = append(causes, "draining"), false
	}
	if !ready {
		return c.answer(fasthttp.StatusServiceUnavailable, api.Health{Status: "not ready", Causes: causes})
	}
	return c.answer(fasthttp.StatusOK, api.Health{Status: "ok", Causes: causes})
}

// about says what this is to who comes upon the port.
func (s *Server) about(c *call) error {
	c.SetContentType("text/plain; charset=utf-8")
	_, err := fmt.Fprintf(c, `This is a Sidestream sidecar (%s): applications on this host post events to it and pull messages from it.

  curl %[2]s/topics/hello -d 'hi'                                    publish
  curl -X POST '%[2]s/groups/me/topics/hello/pull?wait=5s&ack=auto'  pull

  GET /topics, /groups     what there is
  GET /readyz              whether publishing and pulling work, and what is amiss
  GET /status              session, brokers, spool, groups
  GET /metrics             for Prometheus
  GET /openapi.json        all of the API, for programs

The same on one screen: sidestream status
`, s.opt.Version, c.LocalAddr())
	return err
}

// status is indented, since people read it.
func (s *Server) status(c *call) error {
	var v any = struct{}{}
	if s.opt.Status != nil {
		v = s.opt.Status()
	}
	c.SetContentType(api.ContentTypeJSON)
	e := json.NewEncoder(c.Response.BodyWriter())
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (s *Server) metricsPage(c *call) error {
	if s.opt.Gatherer == nil {
		return apiError(api.CodeNotFound, "metrics are not collected")
	}
	fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(s.opt.Gatherer, promhttp.HandlerOpts{}))(c.RequestCtx)
	return nil
}

// drain begins the end: new work is refused, acknowledgements are still taken,
// partitions go to other sidecars. The process goes on until it is stopped.
func (s *Server) drain(c *call) error {
	s.BeginDrain()
	return c.answer(fasthttp.StatusOK, api.Health{Status: "draining"})
}
