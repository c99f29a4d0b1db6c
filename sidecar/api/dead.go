package api

import (
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// getDead shows dead letters; nothing moves.
func (s *Server) getDead(c *call) error {
	group, topic, err := c.names()
	if err != nil {
		return err
	}
	r := consume.DeadRequest{Group: group, Topic: topic}
	n, err := c.integer("max", 0, 1, consume.MaxDead)
	if err != nil {
		return err
	}
	r.Max = int(n)
	if r.All, err = c.flag("all"); err != nil {
		return err
	}
	r.After, _ = c.option("after")
	r.Reason, _ = c.option("reason")
	r.Dead, _ = c.option("dead")
	ctx, cancel := s.callContext()
	defer cancel()
	letters, err := s.opt.Consumer.Dead(ctx, r)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, letters)
}

// redrive brings dead letters back: 200, or 207 when it stopped at an error
// after some.
func (s *Server) redrive(c *call) error {
	group, topic, err := c.names()
	if err != nil {
		return err
	}
	var body api.RedriveRequest
	if err := c.json(&body, true); err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	done, err := s.opt.Consumer.Redrive(ctx, group, topic, body)
	if err != nil {
		return err
	}
	status := fasthttp.StatusOK
	if done.Error != nil {
		status = fasthttp.StatusMultiStatus
		setRetryAfter(c.RequestCtx, done.Error)
	}
	return c.answer(status, done)
}
