package api

import (
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

func (c *call) acceptsBehind() bool {
	return preferred(&c.Request.Header) == api.ContentTypeBehind
}

// answerPulled answers a pull in the form that the client accepts.
func (c *call) answerPulled(p api.Pulled) error {
	if !c.acceptsBehind() {
		return c.answer(fasthttp.StatusOK, p)
	}
	c.SetContentType(api.ContentTypeBehind)
	return appendBody(c.RequestCtx, p.AppendBehind)
}
