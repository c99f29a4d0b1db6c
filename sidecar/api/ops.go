package api

import (
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

func (s *Server) status(c *call) error {
	if s.opt.Status == nil {
		return c.answer(fasthttp.StatusOK, struct{}{})
	}
	return c.answer(fasthttp.StatusOK, s.opt.Status())
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
