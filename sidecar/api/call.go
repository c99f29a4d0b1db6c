package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"sidestream/discovery/httpd"
	"sidestream/sdk/api"
	"sidestream/sidecar/timespan"
)

// call is one request at its route. Nothing of it may be kept when the handler
// returns: fasthttp reuses its memory.
type call struct {
	*fasthttp.RequestCtx
	args    []string  // the {…} elements of the path
	arrived time.Time // with its body
}

// checkOptions refuses what the route does not take, since a misspelt option
// would be silently without effect.
func (c *call) checkOptions(allowed []string) error {
	if len(c.URI().QueryString()) == 0 {
		return nil
	}
	seen := map[string]bool{}
	var err error
	for k := range c.QueryArgs().All() {
		name := string(k)
		switch {
		case err != nil:
		case !slices.Contains(allowed, name) && len(allowed) == 0:
			err = apiError(api.CodeBadRequest, fmt.Sprintf("unknown option %q: this request takes none", name))
		case !slices.Contains(allowed, name):
			err = apiError(api.CodeBadRequest, fmt.Sprintf("unknown option %q: this request takes %s", name, strings.Join(allowed, ", ")))
		case seen[name]:
			err = apiError(api.CodeBadRequest, fmt.Sprintf("option %q is given twice", name))
		}
		seen[name] = true
	}
	return err
}

// option is the raw value of a query option and whether it is there.
func (c *call) option(name string) (string, bool) {
	if !c.QueryArgs().Has(name) {
		return "", false
	}
	return string(c.QueryArgs().Peek(name)), true
}

func bad(name, got, want string) *api.Error {
	return apiError(api.CodeBadRequest, fmt.Sprintf("%s: got %q: use %s", name, got, want))
}

// flag is true for ?name, ?name=1 and ?name=true.
func (c *call) flag(name string) (bool, error) {
	s, ok := c.option(name)
	switch {
	case !ok, s == "0", s == "false":
		return false, nil
	case s == "", s == "1", s == "true":
		return true, nil
	}
	return false, bad(name, s, "1 or 0")
}

// duration reads what timespan.Parse takes, from least to most; 0 when absent.
func (c *call) duration(name string, least, most time.Duration) (time.Duration, error) {
	s, ok := c.option(name)
	if !ok {
		return 0, nil
	}
	d, err := timespan.Parse(s)
	if err != nil {
		return 0, bad(name, s, timespan.Form)
	}
	if d < least || d > most {
		return 0, bad(name, s, "a duration from "+durationText(least)+" to "+durationText(most)+timespan.Hint(s, least, most))
	}
	return d, nil
}

// durationText is a duration without the zeros at its end: 5m, not 5m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// integer reads a number from least to most; def when absent.
func (c *call) integer(name string, def, least, most int64) (int64, error) {
	s, ok := c.option(name)
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, bad(name, s, fmt.Sprintf("a number from %d to %d", least, most))
	}
	return n, nil
}

// either reads the option name or its base64 form name64, at most one of them;
// nil when both are absent.
func (c *call) either(name string) ([]byte, error) {
	plain, isPlain := c.option(name)
	coded, isCoded := c.option(name + "64")
	switch {
	case isPlain && isCoded:
		return nil, apiError(api.CodeBadRequest, fmt.Sprintf("%s and %s64 are both given: use one", name, name))
	case isPlain:
		return []byte(plain), nil
	case isCoded:
		b, err := decode64(coded)
		if err != nil {
			return nil, bad(name+"64", coded, "base64")
		}
		return b, nil
	}
	return nil, nil
}

// decode64 takes base64 in the standard or the URL alphabet, padded or not. In
// a query a plus sign arrives as a space.
func decode64(s string) ([]byte, error) {
	s = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/", " ", "+").Replace(s), "=")
	b, err := base64.RawStdEncoding.DecodeString(s)
	if b == nil {
		b = []byte{}
	}
	return b, err
}

// json decodes the body into v, whatever its Content-Type says: curl -d calls
// everything a form. An empty body leaves v as it is when optional.
func (c *call) json(v any, optional bool) error {
	body := bytes.TrimSpace(c.PostBody())
	if len(body) == 0 {
		if optional {
			return nil
		}
		return apiError(api.CodeBadRequest, "the body is empty: send a JSON object such as "+exampleOf(v))
	}
	switch v := v.(type) { // lists of hundreds of receipts
	case *api.Receipts:
		if v.DecodeJSON(body) {
			return nil
		}
	case *api.PullBody:
		if v.DecodeJSON(body) {
			return nil
		}
	}
	fields := fieldsOf(reflect.TypeOf(v))
	if fields != nil && body[0] != '{' {
		return apiError(api.CodeBadRequest, "the body is not a JSON object: send one such as "+exampleOf(v))
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		words := jsonWords(err)
		if strings.Contains(words, "unknown field") && fields != nil {
			words += ": it has " + strings.Join(fields, ", ")
		}
		return apiError(api.CodeBadRequest, "the body is not the JSON expected: "+words)
	}
	if fields != nil {
		if name, ok := strangeField(body[:d.InputOffset()], fields); ok {
			return apiError(api.CodeBadRequest, fmt.Sprintf("the body is not the JSON expected: unknown field %q: it has %s", name, strings.Join(fields, ", ")))
		}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return apiError(api.CodeBadRequest, "the body has more after its JSON object")
	}
	if fields != nil {
		if err := httpd.CheckJSON(body, v); err != nil {
			return apiError(api.CodeBadRequest, "the body is not the JSON expected: "+err.Error())
		}
	}
	return nil
}

// exampleOf is a body as v takes it.
func exampleOf(v any) string {
	switch v.(type) {
	case *api.Receipts:
		return `{"receipts":["…"]} with the receipts of a pull`
	case *api.PullBody:
		return `{"ack":["…"]} with the receipts of an earlier pull`
	case *api.SeekRequest:
		return `{"to":"earliest"} or {"offsets":{"0":12}}`
	case *api.GroupConfig:
		return `{"order":"key","max_attempts":5}`
	case *api.TopicSpec:
		return `{"partitions":4}`
	case *api.RedriveRequest:
		return `{"max":100,"reason":"max_attempts"}`
	}
	return "{}"
}

// jsonWords says what is wrong with JSON without naming Go types.
func jsonWords(err error) string {
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &t):
		return fmt.Sprintf("%q has %s where %s belongs", t.Field, jsonKind(t.Value), kindWords(t.Type.Kind()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends in the middle"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// jsonKind is encoding/json's name of a kind of value with its article.
func jsonKind(name string) string {
	switch name {
	case "bool":
		return "true or false"
	case "array", "object":
		return "an " + name
	}
	return "a " + name
}

// kindWords names a kind of Go value as JSON knows it.
func kindWords(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number in its range"
	}
	return "another kind of value"
}

// answer writes v as JSON.
func (c *call) answer(status int, v any) error {
	c.SetStatusCode(status)
	return writeJSON(c.RequestCtx, v)
}

func writeJSON(ctx *fasthttp.RequestCtx, v any) error {
	ctx.SetContentType(api.ContentTypeJSON)
	switch v := v.(type) { // lists of hundreds of messages or receipts, and what is answered most often
	case api.Published:
		body := v.AppendJSON(ctx.Response.SwapBody(nil)[:0])
		ctx.Response.SwapBody(append(body, '\n'))
		return nil
	case api.Pulled:
		return appendBody(ctx, line(v.AppendJSON))
	case api.ReceiptResponse:
		return appendBody(ctx, line(v.AppendJSON))
	}
	e := json.NewEncoder(ctx.Response.BodyWriter())
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// appendBody has the answer written into the memory that its body will use.
func appendBody(ctx *fasthttp.RequestCtx, appendTo func([]byte) ([]byte, error)) error {
	body, err := appendTo(ctx.Response.SwapBody(nil)[:0])
	ctx.Response.SwapBody(body)
	return err
}

// line ends what is appended with a line end.
func line(appendTo func([]byte) ([]byte, error)) func([]byte) ([]byte, error) {
	return func(b []byte) ([]byte, error) {
		b, err := appendTo(b)
		return append(b, '\n'), err
	}
}

// writeError answers with the error, its status and Retry-After.
func writeError(ctx *fasthttp.RequestCtx, e *api.Error) {
	ctx.Response.ResetBody()
	ctx.SetStatusCode(e.Code.Status())
	setRetryAfter(ctx, e)
	_ = writeJSON(ctx, api.ErrorBody{Error: e}) // into memory: cannot fail
}

// setRetryAfter rounds up: an early repeat would meet the same answer.
func setRetryAfter(ctx *fasthttp.RequestCtx, e *api.Error) {
	if e.RetryAfterMillis > 0 {
		ctx.Response.Header.Set(api.HeaderRetryAfter, strconv.FormatInt((e.RetryAfterMillis+999)/1000, 10))
	}
}

// asError makes an *api.Error of any error.
func asError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return apiError(api.CodeInternal, err.Error())
}
