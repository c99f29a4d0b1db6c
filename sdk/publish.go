package sdk

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sidestream/sdk/api"
)

// Message is an event to publish.
type Message struct {
	Key       []byte    // nil: none, the sidecar spreads over the partitions
	Value     []byte    // nil: a tombstone (only in a batch), empty: an empty value
	Headers   []Header  // of the record, in order
	Partition *int32    // nil: chosen by the key
	Timestamp time.Time // zero: now
}

// Header is one header of a record.
type Header struct{ Name, Value string }

// PublishOption changes one publish.
type PublishOption func(*publishOptions)

type publishOptions struct {
	query  url.Values
	header http.Header
}

// AckLeader makes the answer come when the partition's leader has the event,
// without waiting for replicas and fsync.
func AckLeader() PublishOption {
	return func(o *publishOptions) { o.query.Set("ack", "leader") }
}

// Timeout bounds how long the sidecar tries, 10 s by default. When it is over
// the error is brokers_unavailable (nothing was written) or unknown_outcome.
func Timeout(d time.Duration) PublishOption {
	return func(o *publishOptions) { o.query.Set("timeout", d.String()) }
}

// KeyField takes each event's key from a field of its JSON value (a name, or a
// JSON pointer such as /user/id), where the event has none of its own.
func KeyField(name string) PublishOption {
	return func(o *publishOptions) { o.query.Set("key_field", name) }
}

// IdempotencyKey makes the publish safe to repeat: a further one with the same key
// and the same messages, to the same sidecar, gets the first one's answer and
// writes nothing twice. Use a key of its own for each publish, and keep it until
// there is an answer. With [WithRetry] it is then also repeated when the outcome
// is unknown or the connection breaks.
func IdempotencyKey(key string) PublishOption {
	return func(o *publishOptions) { o.header.Set(api.HeaderIdempotencyKey, key) }
}

func applyPublish(options []PublishOption) publishOptions {
	o := publishOptions{query: url.Values{}, header: http.Header{}}
	for _, apply := range options {
		apply(&o)
	}
	return o
}

// request is a publish to a path. What has an idempotency key may be sent again
// after anything.
func (o publishOptions) request(path string, body []byte, contentType string) request {
	return request{method: http.MethodPost, path: path, query: o.query, header: o.header, body: body, contentType: contentType,
		repeatable: o.header.Get(api.HeaderIdempotencyKey) != "", publish: true}
}

// Publish writes one event and returns where it is: with the default ack it is
// then safe on disk. The error is [ErrNotWritten] or [ErrUnknown]. The value is sent as it is, so nil and empty are the same:
// an empty value. A tombstone needs [Client.PublishBatch].
func (c *Client) Publish(ctx context.Context, topic string, m Message, options ...PublishOption) (api.Published, error) {
	o := applyPublish(options)
	if m.Key != nil {
		if utf8.Valid(m.Key) {
			o.query.Set("key", string(m.Key))
		} else {
			o.query.Set("key64", base64.StdEncoding.EncodeToString(m.Key))
		}
	}
	if m.Partition != nil {
		o.query.Set("partition", strconv.Itoa(int(*m.Partition)))
	}
	if !m.Timestamp.IsZero() {
		o.query.Set("ts", strconv.FormatInt(m.Timestamp.UnixMilli(), 10))
	}
	addRecordHeaders(o.header, m.Headers)
	var answer api.Published
	err := c.call(ctx, o.request(pathOf("topics", topic), m.Value, "application/octet-stream"), &answer)
	return answer, err
}

// addRecordHeaders gives a request the headers of its record. One that a line of
// HTTP would not carry unchanged turns all of them to base64, since the sidecar
// reads those of one form before those of the other.
func addRecordHeaders(to http.Header, headers []Header) {
	plain := true
	for _, h := range headers {
		plain = plain && carries(h.Name) && h.Name != "" && !strings.Contains(h.Name, "=") && carries(h.Value)
	}
	for _, h := range headers {
		if plain {
			to.Add(api.HeaderRecord, h.Name+"="+h.Value)
			continue
		}
		encode := base64.RawStdEncoding.EncodeToString
		to.Add(api.HeaderRecord64, encode([]byte(h.Name))+"="+encode([]byte(h.Value)))
	}
}

// carries tells that a line of HTTP has a text as it is: printable ASCII without
// spaces at its ends, which are trimmed on the way.
func carries(s string) bool {
	return s == strings.TrimSpace(s) && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// PublishBatch writes several events in one request. The result has one entry
// an event, in order; the error is nil when some were written and some not
// ([api.BatchPublished].Failed tells), and the common error when all failed. The
// error, and that of each result, is [ErrNotWritten] or [ErrUnknown].
func (c *Client) PublishBatch(ctx context.Context, topic string, messages []Message, options ...PublishOption) (api.BatchPublished, error) {
	var body []byte
	for i, m := range messages {
		record, err := recordOf(m)
		if err != nil {
			return api.BatchPublished{}, &PublishError{api.NotWritten, fmt.Errorf("message %d: %w", i, err)}
		}
		line, err := json.Marshal(record)
		if err != nil {
			return api.BatchPublished{}, &PublishError{api.NotWritten, fmt.Errorf("message %d: %w", i, err)}
		}
		body = append(append(body, line...), '\n')
	}
	return c.publishBody(ctx, topic, body, options)
}

// PublishLines writes one event a line of text, each line being a value as it
// stands, without its line end.
func (c *Client) PublishLines(ctx context.Context, topic string, lines []byte, options ...PublishOption) (api.BatchPublished, error) {
	options = append(options, func(o *publishOptions) { o.query.Set("lines", "1") })
	return c.publishBody(ctx, topic, lines, options)
}

// PublishNDJSON writes one event a line of JSON, each an [api.Record].
func (c *Client) PublishNDJSON(ctx context.Context, topic string, records []byte, options ...PublishOption) (api.BatchPublished, error) {
	return c.publishBody(ctx, topic, records, options)
}

// publishBody publishes a batch. The results of an attempt are those of the answer
// that came last.
func (c *Client) publishBody(ctx context.Context, topic string, body []byte, options []PublishOption) (api.BatchPublished, error) {
	o := applyPublish(options)
	var answer api.BatchPublished
	err := c.call(ctx, o.request(pathOf("topics", topic, "batch"), body, api.ContentTypeNDJSON), &answer)
	return answer, err
}

// recordOf writes a message as an element of a batch: text as strings, other
// bytes as base64.
func recordOf(m Message) (api.Record, error) {
	r := api.Record{Partition: m.Partition}
	if m.Value != nil {
		if utf8.Valid(m.Value) {
			text, err := json.Marshal(string(m.Value))
			if err != nil {
				return r, err
			}
			r.Value = text
		} else {
			r.Value64 = new(base64.StdEncoding.EncodeToString(m.Value))
		}
	}
	if m.Key != nil {
		if utf8.Valid(m.Key) {
			r.Key = new(string(m.Key))
		} else {
			r.Key64 = new(base64.StdEncoding.EncodeToString(m.Key))
		}
	}
	if !m.Timestamp.IsZero() {
		r.Timestamp = new(m.Timestamp.UnixMilli())
	}
	if len(m.Headers) == 1 && utf8.ValidString(m.Headers[0].Name) && utf8.ValidString(m.Headers[0].Value) {
		r.Headers = map[string]string{m.Headers[0].Name: m.Headers[0].Value}
		return r, nil
	}
	for _, h := range m.Headers { // a list keeps their order, and takes any value
		r.HeaderList = append(r.HeaderList, api.PairOf(h.Name, []byte(h.Value)))
	}
	return r, nil
}
