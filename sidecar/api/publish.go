package api

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// publishOptionsOf reads the options that both forms of publishing take.
func (s *Server) publishOptionsOf(c *call) (publish.Options, error) {
	o := publish.Options{Begun: c.Time()}
	switch ack, ok := c.option("ack"); {
	case !ok, ack == "all":
		o.Ack = publish.AckAll
	case ack == "leader":
		o.Ack = publish.AckLeader
	case ack == "spool":
		return o, apiError(api.CodeBadRequest, "ack=spool is not available yet: use all or leader")
	default:
		return o, bad("ack", ack, "all or leader")
	}
	if len(c.Request.Header.Peek(api.HeaderIdempotencyKey)) > 0 {
		return o, apiError(api.CodeBadRequest, "Idempotency-Key is not available yet: leave it out, and mind that a repeat after 504 may write the message twice")
	}
	var err error
	if o.Caller, err = s.callerOf(c); err != nil {
		return o, err
	}
	if o.Timeout, err = c.duration("timeout", s.opt.MaxTimeout); err != nil {
		return o, err
	}
	if t, given := c.option("timeout"); given && o.Timeout < minTimeout {
		return o, bad("timeout", t, "a duration from "+minTimeout.String()+" to "+s.opt.MaxTimeout.String())
	}
	return o, nil
}

// minTimeout is the shortest ?timeout: within less nothing can be sent.
const minTimeout = time.Millisecond

// publish is POST /topics/T: the body is the message, whatever its type.
func (s *Server) publish(c *call) error {
	o, err := s.publishOptionsOf(c)
	if err != nil {
		return err
	}
	m := publish.Message{Value: c.PostBody()}
	if m.Value == nil {
		m.Value = []byte{} // an empty message is no tombstone
	}
	if m.Key, err = c.either("key"); err != nil {
		return err
	}
	if _, ok := c.option("partition"); ok {
		n, err := c.integer("partition", 0, 0, 1<<31-1)
		if err != nil {
			return err
		}
		p := int32(n)
		m.Partition = &p
	}
	if _, ok := c.option("ts"); ok {
		ms, err := c.integer("ts", 0, 0, maxTimestamp)
		if err != nil {
			return err
		}
		m.Timestamp = time.UnixMilli(ms)
	}
	for _, h := range c.Request.Header.PeekAll(api.HeaderRecord) {
		name, value, ok := bytes.Cut(h, []byte{'='})
		if !ok || len(name) == 0 {
			return bad(api.HeaderRecord, string(h), "name=value")
		}
		m.Headers = append(m.Headers, kgo.RecordHeader{Key: unsafe.String(&name[0], len(name)), Value: value}) // copied by Publish
	}
	for _, h := range c.Request.Header.PeekAll(headerRecord64) {
		name, value, ok := recordHeader64(string(h))
		if !ok {
			return bad(headerRecord64, string(h), "base64 of the name, =, base64 of the value")
		}
		m.Headers = append(m.Headers, kgo.RecordHeader{Key: name, Value: value})
	}
	done, err := s.opt.Publisher.Publish(s.requestContext(), c.args[0], m, o)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, done)
}

// maxTimestamp is the last millisecond, in the year 2262, that the brokers'
// client can write: it counts nanoseconds in 64 bits.
const maxTimestamp = (1<<63 - 1) / int64(time.Millisecond)

// publishBatch is POST /topics/T/batch. The whole batch is read before anything
// of it is sent: one bad line and nothing is written.
func (s *Server) publishBatch(c *call) error {
	o, err := s.publishOptionsOf(c)
	if err != nil {
		return err
	}
	lines, err := c.flag("lines")
	if err != nil {
		return err
	}
	field, byField := c.option("key_field")
	if byField && field == "" {
		return bad("key_field", field, "the name of a field such as visitor, or a JSON pointer such as /user/id")
	}
	b, err := readBatch(c.PostBody(), lines, s.opt.MaxBatch)
	if err != nil {
		return err
	}
	defer b.free()
	if byField {
		if err := keyByField(b, field); err != nil {
			return err
		}
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

type batchFailed struct {
	Error *api.Error `json:"error"`
	api.BatchPublished
}

func answerBatch(c *call, results []api.BatchResult) error {
	body := api.BatchPublished{Topic: c.args[0], Results: results}
	errs := make([]*api.Error, len(results))
	for i, r := range results {
		errs[i] = r.Error
		if r.Error != nil {
			body.Failed++
		} else {
			body.Written++
		}
	}
	status, common := statusOf(errs)
	if common != nil {
		setRetryAfter(c.RequestCtx, common)
		return c.answer(status, batchFailed{common, body})
	}
	return c.answer(status, body)
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
