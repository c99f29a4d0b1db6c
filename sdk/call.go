package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// request is one call before it is sent.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
	contentType  string
	// repeatable: sending it twice is harmless, so a broken connection may be retried.
	repeatable bool
	publish    bool // its error says what became of the message
}

// pathOf joins path elements, escaped: a name with a slash cannot become two.
func pathOf(elements ...string) string {
	var b strings.Builder
	for _, e := range elements {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String()
}

func (r *request) jsonBody(v any) error {
	var body []byte
	var err error
	if p, ok := v.(api.PullBody); ok { // hundreds of receipts
		body, err = p.AppendJSON(nil)
	} else {
		body, err = json.Marshal(v)
	}
	if err != nil {
		return fmt.Errorf("encoding the request: %w", err)
	}
	r.body, r.contentType = body, api.ContentTypeJSON
	return nil
}

// call sends the request, repeats it as c.retry says, and decodes the answer
// into answer (nil: ignored). A 207 is no error: the results tell.
func (c *Client) call(ctx context.Context, r request, answer any) error {
	doubt := false // an attempt before this one may have been written
	told := func(err error) error {
		if r.publish {
			return publishError(err, doubt)
		}
		return err
	}
	for n := 1; ; n++ {
		err := c.once(ctx, r, answer)
		if err == nil || n >= c.retry.Attempts || !mayRepeat(err, r.repeatable) {
			return told(err)
		}
		timer := time.NewTimer(c.retry.wait(n, RetryAfter(err)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return told(err)
		}
		doubt = doubt || outcomeOf(err) == api.Unknown
		if answer != nil { // decoding would leave what the last answer had and the next one has not
			reflect.ValueOf(answer).Elem().SetZero()
		}
	}
}

func (c *Client) once(ctx context.Context, r request, answer any) error {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if c.caller != "" {
		req.Header.Set(api.HeaderCaller, c.caller)
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if _, pull := answer.(*api.Pulled); pull {
		req.Header.Set("Accept", api.ContentTypeBehind)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreached(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end, or has failed
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	body, err := readBody(resp, buf)
	if err != nil {
		return fmt.Errorf("reading the sidecar's answer to %s %s: %w", r.method, r.path, err)
	}
	if resp.StatusCode >= 300 {
		if answer != nil {
			_ = json.Unmarshal(body, answer) // the results of a batch that failed alike, if it has any
		}
		return apiError(resp, body, r)
	}
	if answer == nil || len(body) == 0 {
		return nil
	}
	if err := decode(resp, body, answer); err != nil {
		return fmt.Errorf("%s %s: the answer is not what a sidecar says (is something else listening at %s?): %w", r.method, r.path, c.where, err)
	}
	return nil
}

// buffers are for answers, whose decoding copies what it keeps: pulls get large
// ones one after the other.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keepAtMost is how large a buffer is kept.
const keepAtMost = 4 << 20

// readBody reads an answer into the buffer, or past it where it is too large.
func readBody(resp *http.Response, buf *[]byte) ([]byte, error) {
	if n := resp.ContentLength; n < 0 || n > keepAtMost {
		return io.ReadAll(resp.Body)
	}
	b := slices.Grow((*buf)[:0], int(resp.ContentLength))[:resp.ContentLength]
	*buf = b
	_, err := io.ReadFull(resp.Body, b)
	return b, err
}

func decode(resp *http.Response, body []byte, answer any) error {
	if p, ok := answer.(*api.Pulled); ok && resp.Header.Get("Content-Type") == api.ContentTypeBehind {
		return p.DecodeBehind(body)
	}
	if d, ok := answer.(interface{ DecodeJSON([]byte) error }); ok { // hundreds of messages
		return d.DecodeJSON(body)
	}
	return json.Unmarshal(body, answer)
}

// unreached tells what a call that got no answer met, without the URL that
// net/http puts in front.
func (c *Client) unreached(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("no sidecar answers at %s (is one running there?): %w", c.where, err)
	}
	return fmt.Errorf("asking the sidecar at %s: %w", c.where, err)
}

// partial is what answers to batches have: they carry one error for each
// element when all failed alike, under the common status.
type partial struct {
	Error   *api.Error `json:"error"`
	Results []struct {
		Error *api.Error `json:"error"`
	} `json:"results"`
}

func apiError(resp *http.Response, body []byte, r request) error {
	var p partial
	_ = json.Unmarshal(body, &p) // not JSON: told below
	e := p.Error
	if e == nil && len(p.Results) > 0 {
		e = p.Results[0].Error
	}
	if e == nil {
		text := strings.TrimSpace(string(body))
		if len(text) > 200 {
			text = text[:200] + "…"
		}
		return &StatusError{Status: resp.StatusCode, Text: fmt.Sprintf("%s %s: status %s: %s", r.method, r.path, resp.Status, text)}
	}
	if e.RetryAfterMillis == 0 {
		if seconds, err := strconv.Atoi(resp.Header.Get(api.HeaderRetryAfter)); err == nil {
			e.RetryAfterMillis = int64(seconds) * 1000
		}
	}
	return e
}

// StatusError is an answer with a failing status that is not the sidecar's:
// something else listens there, or a proxy stands between.
type StatusError struct {
	Status int
	Text   string
}

func (e *StatusError) Error() string { return e.Text }

// RetryAfter is how long the sidecar asked to wait in err, 0 when it did not.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return time.Duration(e.RetryAfterMillis) * time.Millisecond
	}
	return 0
}

// mayRepeat reports whether a repeat of the call may help and cannot harm.
func mayRepeat(err error, repeatable bool) bool {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Retryable && (repeatable || e.Code != api.CodeUnknownOutcome)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true // nothing was sent
	}
	_, foreign := errors.AsType[*StatusError](err)
	return repeatable && !foreign
}
