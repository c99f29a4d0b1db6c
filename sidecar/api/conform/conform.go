// Package conform holds answers against an OpenAPI 3.1 document: whether their
// status, media type, headers and JSON are what it says. It is for tests, which
// so find what the document forgets; it knows as much of OpenAPI and JSON Schema
// as our document uses, and says so where there is more.
package conform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

type object = map[string]any

// Document is an OpenAPI document.
type Document struct{ root object }

// Parse reads a document.
func Parse(b []byte) (*Document, error) {
	v, err := decode(b)
	root, ok := v.(object)
	if err != nil || !ok {
		return nil, fmt.Errorf("the document is no JSON object: %w", err)
	}
	return &Document{root}, nil
}

// Answer tells in what an answer to a request is not what the document says, nil
// when it is.
func (d *Document) Answer(method, path string, status int, header http.Header, body []byte) error {
	path, _, _ = strings.Cut(path, "?")
	item, pattern := d.path(path)
	operation, ok := item[strings.ToLower(method)].(object)
	if !ok && method == http.MethodHead {
		if operation, ok = item["get"].(object); ok {
			body = nil
		}
	}
	if !ok {
		return refusedAnyway(method, path, item, status, header)
	}
	responses, _ := operation["responses"].(object)
	response, ok := d.resolve(responses[strconv.Itoa(status)]).(object)
	if !ok {
		return fmt.Errorf("%s %s: status %d is not documented: %s", method, pattern, status, body)
	}
	err := errors.Join(d.headers(response, header), d.body(response, method, header, body))
	if err != nil {
		return fmt.Errorf("%s %s: %d: %w", method, pattern, status, err)
	}
	return nil
}

// refusedAnyway is what there is to say of requests that the document does not
// have.
func refusedAnyway(method, path string, item object, status int, header http.Header) error {
	switch {
	case status == http.StatusForbidden: // the first that is looked at
		return nil
	case item == nil && status != http.StatusNotFound:
		return fmt.Errorf("%s %s: the path is not documented, and is answered %d", method, path, status)
	case item != nil && (status != http.StatusMethodNotAllowed || header.Get("Allow") == ""):
		return fmt.Errorf("%s %s: the method is not documented, and is answered %d with Allow %q", method, path, status, header.Get("Allow"))
	}
	return nil
}

// path finds the path that a request means; elements that are named win over
// those that stand for any.
func (d *Document) path(path string) (object, string) {
	paths, _ := d.root["paths"].(object)
	best, found := 0, ""
	for pattern := range paths {
		if score := match(pattern, path); score > best {
			best, found = score, pattern
		}
	}
	item, _ := paths[found].(object)
	return item, found
}

// match is 0 when the path is not of the pattern, else more for each element that
// is the same.
func match(pattern, path string) int {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return 0
	}
	score := 1
	for i, w := range want {
		switch {
		case w == have[i]:
			score++
		case !strings.HasPrefix(w, "{"):
			return 0
		}
	}
	return score
}

// resolve follows references.
func (d *Document) resolve(v any) any {
	for {
		o, ok := v.(object)
		if !ok {
			return v
		}
		ref, ok := o["$ref"].(string)
		if !ok {
			return v
		}
		v = d.at(ref)
	}
}

// at is what a reference into the document names, nil for nothing.
func (d *Document) at(ref string) any {
	var v any = d.root
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		o, _ := v.(object)
		v = o[part]
	}
	return v
}

// headers checks those that are documented, and that our own all are.
func (d *Document) headers(response object, header http.Header) error {
	documented, _ := response["headers"].(object)
	var errs []error
	for name, values := range header {
		var about object
		for n, h := range documented {
			if http.CanonicalHeaderKey(n) == name {
				about, _ = d.resolve(h).(object)
			}
		}
		if about == nil {
			if strings.HasPrefix(name, "Sidestream-") || strings.HasPrefix(name, "Idempotency-") || name == "Retry-After" || strings.HasPrefix(name, "Record-Header") {
				errs = append(errs, fmt.Errorf("header %s is not documented", name))
			}
			continue
		}
		for _, value := range values {
			if err := d.text(about["schema"], value); err != nil {
				errs = append(errs, fmt.Errorf("header %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// text checks text that stands for a value of a schema.
func (d *Document) text(schema any, value string) error {
	var v any = value
	if s, ok := d.resolve(schema).(object); ok && s["type"] == "integer" {
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return err
		}
		v = json.Number(value)
	}
	return d.Check(schema, v)
}

func (d *Document) body(response object, method string, header http.Header, body []byte) error {
	content, _ := response["content"].(object)
	if len(content) == 0 {
		if len(body) > 0 {
			return fmt.Errorf("a body is not documented: %s", body)
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("Content-Type %q: %w", header.Get("Content-Type"), err)
	}
	about, ok := content[media].(object)
	if !ok {
		about, ok = content["*/*"].(object)
	}
	if !ok {
		return fmt.Errorf("media type %s is not documented", media)
	}
	schema, ok := about["schema"]
	if !ok || media != "application/json" || method == http.MethodHead {
		return nil
	}
	v, err := decode(body)
	if err != nil {
		return fmt.Errorf("%s: %w", body, err)
	}
	if err := d.Check(schema, v); err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	return nil
}

// decode reads one JSON value, with numbers as they are written.
func decode(b []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the JSON")
	}
	return v, nil
}

// Operations are all that the document has, as "GET /topics".
func (d *Document) Operations() []string {
	var all []string
	paths, _ := d.root["paths"].(object)
	for pattern, item := range paths {
		for method := range item.(object) {
			all = append(all, strings.ToUpper(method)+" "+pattern)
		}
	}
	slices.Sort(all)
	return all
}
