package api

import (
	"context"

	"github.com/valyala/fasthttp"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
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

type refusedPull struct {
	Error *api.Error           `json:"error"`
	Acks  *api.ReceiptResponse `json:"acks,omitempty"`
}

// pullInDrain hands out nothing more, but settles the receipts that came along:
// an application that acknowledges with its next pull would otherwise do again,
// elsewhere, what it has just done.
func (s *Server) pullInDrain(c *call, r consume.PullRequest) error {
	if len(r.Ack)+len(r.Nack) == 0 {
		return draining()
	}
	ctx, cancel := s.callContext()
	defer cancel()
	acks := api.ReceiptResponse{Results: []api.ReceiptResult{}}
	for _, part := range []struct {
		do       receiptsCall
		receipts []string
	}{{Consumer.Ack, r.Ack}, {Consumer.Nack, r.Nack}} {
		if len(part.receipts) == 0 {
			continue
		}
		a, err := part.do(s.opt.Consumer, ctx, r.Group, r.Topic, api.Receipts{Receipts: part.receipts})
		if err != nil {
			return err
		}
		acks.OK, acks.Failed, acks.Results = acks.OK+a.OK, acks.Failed+a.Failed, append(acks.Results, a.Results...)
	}
	e := draining()
	setRetryAfter(c.RequestCtx, e)
	return c.answer(e.Code.Status(), refusedPull{e, &acks})
}
