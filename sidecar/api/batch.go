package api

import (
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// publishBatch is POST /topics/T/batch. The whole batch is read before anything
// of it is sent: one bad line and nothing is written.
func (s *Server) publishBatch(c *call) error {
	if acceptsLines(c.RequestCtx) && c.Request.IsBodyStream() {
		return s.streamBatch(c)
	}
	o, err := s.publishOptionsOf(c)
	if err != nil {
		return err
	}
	lines, err := c.batchLines()
	if err != nil {
		return err
	}
	field, err := s.keyFieldOf(c)
	if err != nil {
		return err
	}
	taken, err := s.memory.takeBatch(s.ctx, c.PostBody(), lines, s.opt.MaxBatch)
	if err != nil {
		return err
	}
	defer func() { s.memory.give(taken) }()
	var b *batch
	if c.sendsEvents() {
		b, err = readEvents(c.PostBody(), s.opt.MaxBatch)
	} else {
		b, err = readBatch(c.PostBody(), lines, s.opt.MaxBatch)
	}
	if err != nil {
		return err
	}
	defer b.free()
	traceAll(b.messages, c.trace())
	if err := keyByField(b, field); err != nil {
		return err
	}
	results, err := s.opt.Publisher.PublishBatch(s.requestContext(), c.args[0], b.messages, o)
	if err != nil {
		if e := asError(err); e.Line > 0 && e.Line <= len(b.lines) {
			e.Line = b.lines[e.Line-1] // it counted messages
		}
		return err
	}
	return answerBatch(c, results)
}

// batchLines is the option lines of a batch. It refuses what belongs to one
// message and would have no effect here.
func (c *call) batchLines() (bool, error) {
	for _, name := range []string{api.HeaderRecord, headerRecord64} {
		if c.Request.Header.Peek(name) != nil {
			return false, apiError(api.CodeBadRequest, name+` is for a single message: the records of a batch have headers of their own, as {"value":…,"headers":{"name":"value"}}`)
		}
	}
	contentType := mediaType(string(c.Request.Header.ContentType()))
	if contentType == typeEvent {
		return false, apiError(api.CodeBadRequest, fmt.Sprintf("Content-Type %s is one CloudEvent: post it to /topics/%s, or several in a JSON array as %s", typeEvent, c.args[0], typeEvents))
	}
	lines, err := c.flag("lines")
	if lines && contentType == typeEvents {
		return false, apiError(api.CodeBadRequest, "a batch of CloudEvents is one JSON array, not lines: leave lines out, or the Content-Type to write the lines as they are")
	}
	return lines, err
}

// publishEvents is POST /topics/T with a batch of CloudEvents.
func (s *Server) publishEvents(c *call) error {
	for _, name := range []string{"key", "key64", "partition", "ts"} {
		if value, ok := c.option(name); ok {
			return bad(name, value, "it with a single message: a batch of CloudEvents takes keys from their partitionkey")
		}
	}
	return s.publishBatch(c)
}

func answerBatch(c *call, results []api.BatchResult) error {
	body := api.BatchPublished{Topic: c.args[0], Results: results}
	for i := range results {
		switch r := &results[i]; {
		case r.Error != nil:
			body.Failed++
		case r.SpoolID != "":
			body.Spooled++
		default:
			body.Written++
		}
	}
	status, common := fasthttp.StatusOK, (*api.Error)(nil)
	switch {
	case body.Failed == 0 && body.Spooled > 0:
		status = fasthttp.StatusAccepted
	case body.Failed > 0:
		errs := make([]*api.Error, len(results))
		for i := range results {
			errs[i] = results[i].Error
		}
		status, common = statusOf(errs)
	}
	c.SetStatusCode(status)
	c.SetContentType(api.ContentTypeJSON)
	if common != nil {
		setRetryAfter(c.RequestCtx, common)
	}
	return appendBody(c.RequestCtx, func(b []byte) ([]byte, error) {
		if common != nil {
			return append(body.AppendFailed(b, common), '\n'), nil
		}
		return append(body.AppendJSON(b), '\n'), nil
	})
}

// statusOf is 200 when none failed, 207 when some did, and the common status
// with one of the errors when all failed alike.
func statusOf(errs []*api.Error) (int, *api.Error) {
	failed := 0
	alike := true
	for _, e := range errs {
		if e != nil {
			failed++
			alike = alike && errs[0] != nil && e.Code == errs[0].Code
		}
	}
	switch {
	case failed == 0:
		return fasthttp.StatusOK, nil
	case failed == len(errs) && alike:
		return errs[0].Code.Status(), errs[0]
	}
	return fasthttp.StatusMultiStatus, nil
}

func badRecord(line int, why string) *api.Error {
	e := apiError(api.CodeBadRecord, fmt.Sprintf("line %s: %s; nothing of this request was written", strconv.Itoa(line), why))
	e.Line = line
	return e
}
