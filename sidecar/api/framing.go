package api

import (
	"github.com/valyala/fasthttp"

	"sidestream/discovery/httpd"
	"sidestream/sdk/api"
)

// checkFraming refuses a request that does not say where its body ends, or says
// it in two ways, and has the connection closed where what follows may be a body
// all the same. found may be nil.
func checkFraming(ctx *fasthttp.RequestCtx, found *compiled) *api.Error {
	fault, last := httpd.CheckBody(&ctx.Request.Header, found != nil && found.bodyIsMessage())
	if last {
		closeAfter(ctx)
	}
	if fault == nil {
		return nil
	}
	return framingError(fault)
}

func framingError(f *httpd.Fault) *api.Error {
	switch f.Status {
	case fasthttp.StatusLengthRequired:
		return apiError(api.CodeLengthRequired, f.Why)
	case fasthttp.StatusNotImplemented:
		return apiError(api.CodeNotImplemented, f.Why)
	}
	return apiError(api.CodeBadRequest, f.Why)
}

// bodyIsMessage tells that the body is what the route is about: one that was
// not announced would be an empty message.
func (c *compiled) bodyIsMessage() bool {
	return c.method == fasthttp.MethodPost && (c.pattern == "/topics/{topic}" || c.pattern == batchPattern)
}
