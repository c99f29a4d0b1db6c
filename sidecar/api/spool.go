package api

import (
	"strings"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// Spool is what tells of spooled messages: *spool.Spool.
type Spool interface {
	Event(id string) (api.SpoolEvent, error)
	Status() api.SpoolStatus
}

// prefersAsync says that the request carries Prefer: respond-async (RFC 7240,
// section 4.1): its caller takes a place in the spool in place of an error.
func prefersAsync(c *call) bool {
	for _, h := range c.Request.Header.PeekAll(api.HeaderPrefer) {
		for p := range strings.SplitSeq(string(h), ",") {
			name, _, _ := strings.Cut(p, ";")
			if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
				return true
			}
		}
	}
	return false
}

// getSpool is GET /spool: how much waits to be written.
func (s *Server) getSpool(c *call) error {
	return c.answer(fasthttp.StatusOK, s.opt.Spool.Status())
}

// getSpooled is GET /spool/{id}: what became of a message that was answered 202.
func (s *Server) getSpooled(c *call) error {
	ev, err := s.opt.Spool.Event(c.args[0])
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, ev)
}
