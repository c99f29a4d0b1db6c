package api

import (
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// answerPulled answers a pull in the form that the client accepts.
func (c *call) answerPulled(p api.Pulled) error {
	if string(c.Request.Header.Peek("Accept")) != api.ContentTypeBehind {
		return c.answer(fasthttp.StatusOK, p)
	}
	c.SetContentType(api.ContentTypeBehind)
	return appendBody(c.RequestCtx, p.AppendBehind)
}
