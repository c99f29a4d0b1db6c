package api

import (
	"context"

	"github.com/valyala/fasthttp"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

type pauseCall func(Consumer, context.Context, string, string) (api.Group, error)

// pauseOrResume is pause and resume, of a group or of one of its topics.
func (s *Server) pauseOrResume(do pauseCall) func(*call) error {
	return func(c *call) error {
		if err := discovery.CheckName("group", c.args[0]); err != nil {
			return apiError(api.CodeBadRequest, err.Error())
		}
		topic := ""
		if len(c.args) > 1 {
			topic = c.args[1]
			if err := discovery.CheckName("topic", topic); err != nil {
				return apiError(api.CodeBadRequest, err.Error())
			}
		}
		ctx, cancel := s.callContext()
		defer cancel()
		g, err := do(s.opt.Consumer, ctx, c.args[0], topic)
		if err != nil {
			return err
		}
		return c.answer(fasthttp.StatusOK, g)
	}
}
