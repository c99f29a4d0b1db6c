package api

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/valyala/fasthttp"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// publishOptionsOf reads the options that both forms of publishing take.
func (s *Server) publishOptionsOf(c *call) (publish.Options, error) {
	o := publish.Options{Begun: c.arrived}
	if err := discovery.CheckName("topic", c.args[0]); err != nil {
		return o, apiError(api.CodeBadRequest, err.Error()) // before anything is said of its messages
	}
	switch ack, ok := c.option("ack"); {
	case !ok, ack == "all":
		o.Ack = publish.AckAll
	case ack == "leader":
		o.Ack = publish.AckLeader
	case ack == "spool":
		o.Ack = publish.AckSpool
	default:
		return o, bad("ack", ack, "all, leader or spool")
	}
	o.MaySpool = prefersAsync(c)
	if o.MaySpool && acceptsLines(c.RequestCtx) {
		o.Sequence = publish.NewSequence() // of the pieces of one batch
	}
	var err error
	if o.IdempotencyKey, err = idempotencyKey(c); err != nil {
		return o, err
	}
	if o.IdempotencyKey != "" {
		o.Replayed = func() { c.Response.Header.Set(api.HeaderIdempotencyReplayed, "true") }
	}
	if o.Caller, err = s.callerOf(c); err != nil {
		return o, err
	}
	if o.Timeout, err = c.duration("timeout", minTimeout, s.opt.MaxTimeout); err != nil {
		return o, err
	}
	return o, nil
}

// minTimeout is the shortest ?timeout: within less nothing can be sent.
const minTimeout = time.Millisecond

// publish is POST /topics/T: the body is the message, whatever its type.
func (s *Server) publish(c *call) error {
	if c.sendsEvents() {
		return s.publishEvents(c)
	}
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
	if err := c.readEvent(&m); err != nil {
		return err
	}
	m.Headers = withTrace(m.Headers, c.trace())
	field, err := s.keyFieldOf(c)
	if err != nil {
		return err
	}
	if field.isFor(&m) {
		if m.Key, err = field.of(m.Value); err != nil {
			return err
		}
	}
	done, err := s.opt.Publisher.Publish(s.requestContext(), c.args[0], m, o)
	if err != nil {
		return err
	}
	if done.SpoolID != "" {
		return c.answer(fasthttp.StatusAccepted, done)
	}
	return c.answer(fasthttp.StatusOK, done)
}

// keyField is the field of a value that holds the key.
type keyField struct {
	name    string // "" for none
	ofTopic bool   // by the configuration: the request did not ask for it
	most    int    // bytes of a value that is looked into; 0: any
}

// keyFieldOf is the request's own, or its topic's by the configuration.
func (s *Server) keyFieldOf(c *call) (keyField, error) {
	name, given := c.option("key_field")
	switch {
	case given && name == "":
		return keyField{}, bad("key_field", name, "the name of a field such as visitor, or a JSON pointer such as /user/id")
	case !given && s.opt.KeyField != nil:
		name = s.opt.KeyField(c.args[0])
	}
	return keyField{name, !given, s.opt.MaxMessageSize}, nil
}

// isFor says whether a message takes its key from the field: one without a key,
// unless it names its partition and so needs none. One that is too large is refused
// for that, and not looked into before.
func (k keyField) isFor(m *publish.Message) bool {
	return k.name != "" && m.Key == nil && (m.Partition == nil || !k.ofTopic) && (k.most == 0 || len(m.Value) <= k.most)
}

// of is the key in the value of a single message.
func (k keyField) of(value []byte) ([]byte, error) {
	key, err := decodeKey(value, pathOf(k.name))
	if err != nil {
		return nil, apiError(api.CodeBadRecord, fmt.Sprintf("key_field %s: %v; nothing of this request was written", k.name, err))
	}
	return key, nil
}

// maxTimestamp is the last millisecond, in the year 2262, that the brokers'
// client can write: it counts nanoseconds in 64 bits.
const maxTimestamp = (1<<63 - 1) / int64(time.Millisecond)
