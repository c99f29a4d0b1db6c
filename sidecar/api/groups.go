package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// requestContext is for work that its own timers end: a publish under way is
// not cut off by a drain.
func (s *Server) requestContext() context.Context { return context.Background() }

// callTime bounds calls that ask brokers or the store and have no option for it.
const callTime = 30 * time.Second

func (s *Server) callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTime)
}

// names checks the group and topic of the path.
func (c *call) names() (group, topic string, err error) {
	if err := discovery.CheckName("group", c.args[0]); err != nil {
		return "", "", apiError(api.CodeBadRequest, err.Error())
	}
	if err := discovery.CheckName("topic", c.args[1]); err != nil {
		return "", "", apiError(api.CodeBadRequest, err.Error())
	}
	return c.args[0], c.args[1], nil
}

// chosen is names where several topics may be chosen: names and patterns with
// commas between them.
func (c *call) chosen() (group, topics string, err error) {
	if group, err = c.group(); err != nil {
		return "", "", err
	}
	return group, c.args[1], consume.CheckTopics(c.args[1])
}

func (c *call) group() (string, error) {
	if err := discovery.CheckName("group", c.args[0]); err != nil {
		return "", apiError(api.CodeBadRequest, err.Error())
	}
	return c.args[0], nil
}

// maxPullWait bounds the option; the consumer waits no longer than it is
// configured to.
const maxPullWait = time.Hour

func (s *Server) pullRequestOf(c *call) (r consume.PullRequest, raw bool, err error) {
	if r.Group, r.Topic, err = c.chosen(); err != nil {
		return r, false, err
	}
	if raw, err = c.flag("raw"); err != nil {
		return r, false, err
	}
	n, err := c.integer("max", 0, 1, consume.MaxPull)
	if err != nil {
		return r, false, err
	}
	r.Max = int(n)
	if raw {
		if r.Max > 1 {
			return r, false, bad("max", strconv.Itoa(r.Max), "1 with raw: the body is one message")
		}
		r.Max = 1
	}
	if r.Wait, err = c.duration("wait", 0, maxPullWait); err != nil {
		return r, false, err
	}
	if r.Lease, r.From, r.AutoAck, err = c.delivery(); err != nil {
		return r, false, err
	}
	if token, given := c.option("attempt_token"); given {
		if token == "" || len(token) > consume.MaxAttemptToken {
			return r, false, bad("attempt_token", token, fmt.Sprintf("1 to %d bytes of your own choice, or leave it out", consume.MaxAttemptToken))
		}
		r.AttemptToken = token
	}
	var body api.PullBody
	if err := c.json(&body, true); err != nil {
		return r, false, err
	}
	r.Ack, r.Nack, r.Brief = body.Ack, body.Nack, c.acceptsBehind()
	return r, raw, nil
}

// delivery reads the options that pulls and streams share.
func (c *call) delivery() (lease time.Duration, from string, auto bool, err error) {
	if lease, err = c.duration("lease", consume.MinLease, consume.MaxLease); err != nil {
		return 0, "", false, err
	}
	from, given := c.option("from")
	if given && from == "" {
		return 0, "", false, bad("from", "", "earliest, latest or a time such as 2026-01-31T08:00:00Z")
	}
	ack, given := c.option("ack")
	if given && ack != "auto" {
		return 0, "", false, bad("ack", ack, "auto, or leave it out")
	}
	return lease, from, given, nil
}

func (s *Server) pull(c *call) error {
	r, raw, err := s.pullRequestOf(c)
	settle := raw && r.AutoAck && r.AttemptToken == ""
	if settle {
		r.AutoAck = false // it is acknowledged once it is known to go out whole
	}
	if s.draining.Load() {
		return s.pullInDrain(c, r)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, r.Wait+callTime)
	defer cancel()
	sock, _ := c.Conn().(*conn)
	if sock != nil {
		looks, stop := 0, func() {}
		r.Alive = func() bool {
			// A pull looks before each hand-out: from the second time on it waits.
			if looks++; looks == 2 {
				stop = sock.onGone(cancel)
			}
			return sock.alive()
		}
		defer func() { stop() }()
	}
	d, err := s.opt.Consumer.Pull(ctx, r)
	if err != nil {
		if s.draining.Load() && ctx.Err() != nil {
			return draining()
		}
		return err
	}
	var head []headerLine
	if raw && len(d.Messages) > 0 {
		if head, err = s.rawHeadOf(r, d, settle); err != nil {
			return err
		}
	}
	if sock != nil && d.Return != nil && len(d.Messages) > 0 {
		sock.onUnsent(d.Return)
	}
	if raw {
		return answerRaw(c, d, head)
	}
	if d.Messages == nil {
		d.Messages = []api.Message{}
	}
	if !c.acceptsBehind() {
		release, err := s.roomToWrite(ctx, c, d)
		if err != nil {
			return err
		}
		defer release()
	}
	if c.acceptsEvents() {
		err = answerEvents(c, d)
	} else {
		err = c.answerPulled(d.Pulled)
	}
	d.Recycle()
	return err
}

// Headers of a raw pull.
const (
	headerID        = "Sidestream-Id"
	headerReceipt   = "Sidestream-Receipt"
	headerKey       = "Sidestream-Key"
	headerTimestamp = "Sidestream-Timestamp" // Unix milliseconds
	headerAttempt   = "Sidestream-Attempt"
	headerTombstone = "Sidestream-Tombstone" // 1: the message has no value
	headerReason    = "Sidestream-Reason"    // with 204: why there is none
	headerOwnership = "Sidestream-Ownership"
	headerAway      = "Sidestream-Away"        // partitions here whose leader is away
	headerAcksBad   = "Sidestream-Acks-Failed" // receipts in the request's body that were not settled
)

// answerRaw writes one message as it is, what belongs to it in lines of the head.
func answerRaw(c *call, d *consume.Delivery, lines []headerLine) error {
	h := &c.Response.Header
	if d.Ownership != "" {
		h.Set(headerOwnership, d.Ownership)
	}
	if d.Away > 0 {
		h.Set(headerAway, strconv.Itoa(d.Away))
	}
	if d.Acks != nil && d.Acks.Failed > 0 {
		h.Set(headerAcksBad, strconv.Itoa(d.Acks.Failed))
	}
	if len(d.Messages) == 0 {
		if d.Reason != nil {
			h.Set(headerReason, string(*d.Reason))
		}
		c.SetStatusCode(fasthttp.StatusNoContent)
		return nil
	}
	setHead(h, lines)
	m := &d.Messages[0]
	switch {
	case m.Value != nil:
		c.Response.SetBodyString(*m.Value)
	case m.Value64 != nil:
		b, err := base64.StdEncoding.DecodeString(*m.Value64)
		if err != nil {
			return err
		}
		c.Response.SetBody(b)
	}
	return nil
}

// fitsHeader tells that a key passes through a header unchanged: printable
// ASCII without spaces at its ends, and not empty.
func fitsHeader(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && s[0] != ' ' && s[len(s)-1] != ' '
}

type receiptsCall func(Consumer, context.Context, string, string, api.Receipts) (api.ReceiptResponse, error)

type receiptsFailed struct {
	Error *api.Error `json:"error"`
	api.ReceiptResponse
}

// receipts is ack, nack and extend.
func (s *Server) receipts(do receiptsCall) func(*call) error {
	return func(c *call) error {
		group, topic, err := c.chosen()
		if err != nil {
			return err
		}
		var body api.Receipts
		if err := c.json(&body, false); err != nil {
			return err
		}
		if len(body.Receipts) == 0 {
			return apiError(api.CodeBadRequest, `receipts is empty: send {"receipts":["…"]} with those of the pull`)
		}
		ctx, cancel := s.callContext()
		defer cancel()
		r, err := do(s.opt.Consumer, ctx, group, topic, body)
		if err != nil {
			return err
		}
		errs := make([]*api.Error, len(r.Results))
		for i := range r.Results {
			errs[i] = r.Results[i].Error
		}
		status, common := statusOf(errs)
		if common != nil {
			setRetryAfter(c.RequestCtx, common)
			return c.answer(status, receiptsFailed{common, r})
		}
		return c.answer(status, r)
	}
}

func (s *Server) getOffsets(c *call) error {
	group, topic, err := c.chosen()
	if err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	o, err := s.opt.Consumer.Offsets(ctx, group, topic)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, o)
}

func (s *Server) putOffsets(c *call) error {
	group, topic, err := c.chosen()
	if err != nil {
		return err
	}
	var body api.SeekRequest
	if err := c.json(&body, false); err != nil {
		return err
	}
	if (body.To == "") == (len(body.Offsets) == 0) {
		return apiError(api.CodeBadRequest, `give one of to ("earliest", "latest" or a time) and offsets ({"0":12})`)
	}
	ctx, cancel := s.callContext()
	defer cancel()
	sought, err := s.opt.Consumer.Seek(ctx, group, topic, body)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, sought)
}

func (s *Server) listGroups(c *call) error {
	ctx, cancel := s.callContext()
	defer cancel()
	list, err := s.opt.Consumer.Groups(ctx)
	if err != nil {
		return err
	}
	if list.Groups == nil {
		list.Groups = []string{}
	}
	return c.answer(fasthttp.StatusOK, list)
}

func (s *Server) getGroup(c *call) error {
	group, err := c.group()
	if err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	g, err := s.opt.Consumer.Group(ctx, group)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, g)
}

func (s *Server) putGroup(c *call) error {
	group, err := c.group()
	if err != nil {
		return err
	}
	var body api.GroupConfig
	if err := c.json(&body, true); err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	g, err := s.opt.Consumer.Configure(ctx, group, body)
	if err != nil {
		return err
	}
	return c.answer(fasthttp.StatusOK, g)
}

func (s *Server) deleteGroup(c *call) error {
	group, err := c.group()
	if err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	if err := s.opt.Consumer.DeleteGroup(ctx, group); err != nil {
		return err
	}
	c.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}
