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
	for _, o := range []struct {
		name, want string
		to         *string
	}{
		{"after", "next of the answer before", &r.After},
		{"reason", "max_attempts, window_full, undecodable or oversized", &r.Reason},
		{"dead", "the name of a topic", &r.Dead},
	} {
		text, given := c.option(o.name)
		if given && text == "" {
			return bad(o.name, "", o.want+", or leave it out")
		}
		*o.to = text
	}
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
