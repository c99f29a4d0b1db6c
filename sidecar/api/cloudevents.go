package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// CloudEvents 1.0 come as its HTTP protocol binding says (binary, structured and
// batched content modes), and are written as its Kafka protocol binding's binary
// mode: the attributes are headers ce_…, the type of the data the header
// content-type, the data the value, and the attribute partitionkey the key.
// https://github.com/cloudevents/spec, v1.0.2.
const (
	typeEvent  = "application/cloudevents+json"
	typeEvents = "application/cloudevents-batch+json"

	eventPrefix     = "ce_" // of a record's headers
	eventVersion    = "1.0"
	contentTypeName = "content-type"
	typeJSON        = "application/json"
)

// eventAttributes are those that every event has.
var eventAttributes = []string{"id", "source", "specversion", "type"}

// mediaType is a content type without its parameters, in small letters.
func mediaType(s string) string {
	s, _, _ = strings.Cut(s, ";")
	return strings.ToLower(strings.TrimSpace(s))
}

func isJSON(contentType string) bool {
	t := mediaType(contentType)
	return t == typeJSON || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "/json")
}

// sendsEvents tells that the body is a batch of CloudEvents.
func (c *call) sendsEvents() bool {
	t := c.Request.Header.ContentType()
	return bytes.HasPrefix(t, []byte("application/cloudevents-")) && mediaType(string(t)) == typeEvents
}

// readEvent turns the message of a request that is a CloudEvent into what is
// written; any other stays as it is.
func (c *call) readEvent(m *publish.Message) error {
	var e event
	contentType := string(c.Request.Header.ContentType())
	switch t := mediaType(contentType); {
	case t == typeEvent:
		var err error
		if e, m.Value, err = readEvent(m.Value); err != nil {
			return apiError(api.CodeBadRecord, "the CloudEvent: "+err.Error()+"; nothing of this request was written")
		}
	case strings.HasPrefix(t, "application/cloudevents"):
		return apiError(api.CodeBadRequest, fmt.Sprintf("Content-Type %q: CloudEvents are taken as %s, %s, or with their attributes in headers ce-…", t, typeEvent, typeEvents))
	case len(c.Request.Header.Peek("Ce-Specversion")) == 0:
		return nil
	default:
		for name, value := range c.Request.Header.All() {
			if name = bytes.ToLower(name); bytes.HasPrefix(name, []byte("ce-")) {
				e.set(string(name[len("ce-"):]), eventHeaderValue(string(value)))
			}
		}
		if err := e.check(); err != nil {
			return apiError(api.CodeBadRequest, "the CloudEvent in the headers ce-…: "+err.Error())
		}
		e.contentType = contentType
	}
	e.apply(m)
	return nil
}

// event is a CloudEvent without its data.
type event struct {
	attributes  []kgo.RecordHeader // their names are without prefix
	contentType string
}

func (e *event) set(name, value string) {
	e.attributes = append(e.attributes, kgo.RecordHeader{Key: name, Value: []byte(value)})
}

func (e *event) get(name string) (string, bool) {
	for _, a := range e.attributes {
		if a.Key == name {
			return string(a.Value), true
		}
	}
	return "", false
}

// check says what is wrong with the attributes.
func (e *event) check() error {
	for _, name := range eventAttributes {
		if value, _ := e.get(name); value == "" {
			return fmt.Errorf("it has no %s: id, source, specversion and type are needed", name)
		}
	}
	if v, _ := e.get("specversion"); v != eventVersion {
		return fmt.Errorf("specversion %q is not known: send %s", v, eventVersion)
	}
	for i, a := range e.attributes {
		if !isAttribute(a.Key) {
			return fmt.Errorf("%q is no name of an attribute: use a-z and 0-9", a.Key)
		}
		if slices.ContainsFunc(e.attributes[:i], func(b kgo.RecordHeader) bool { return b.Key == a.Key }) {
			return fmt.Errorf("the attribute %s is given twice", a.Key)
		}
		if !utf8.Valid(a.Value) {
			return fmt.Errorf("the attribute %s is not UTF-8", a.Key)
		}
		if a.Key == "time" && !isTime(string(a.Value)) {
			return fmt.Errorf("the attribute time is %q: use RFC 3339, such as 2026-01-31T08:00:00Z", a.Value)
		}
	}
	return nil
}

// isTime says whether a text is a time as RFC 3339 has it, which allows small
// letters and leap seconds too.
func isTime(s string) bool {
	s = strings.ToUpper(s)
	if len(s) > 19 && s[17:19] == "60" {
		s = s[:17] + "59" + s[19:]
	}
	_, err := time.Parse(time.RFC3339, s)
	return err == nil && !strings.Contains(s, ",")
}

func isAttribute(name string) bool {
	return name != "" && strings.IndexFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') }) < 0
}

// apply adds the event's headers to the message, and its key where it has none.
func (e *event) apply(m *publish.Message) {
	for _, a := range e.attributes {
		m.Headers = append(m.Headers, kgo.RecordHeader{Key: eventPrefix + a.Key, Value: a.Value})
	}
	if e.contentType != "" {
		m.Headers = append(m.Headers, kgo.RecordHeader{Key: contentTypeName, Value: []byte(e.contentType)})
	}
	if key, ok := e.get("partitionkey"); ok && m.Key == nil {
		m.Key = []byte(key)
	}
}

// readEvent reads an event in the JSON event format, and its data.
func readEvent(b []byte) (e event, data []byte, err error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return e, nil, errors.New("it is not a JSON object")
	}
	if !utf8.Valid(b) {
		return e, nil, errors.New("it is not UTF-8: put other bytes as base64 into data_base64")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return e, nil, errors.New(jsonWords(err))
	}
	if name, ok := fieldTwice(b); ok {
		return e, nil, fmt.Errorf("the attribute %q is given twice: use one", name)
	}
	names := make([]string, 0, len(fields))
	for name, value := range fields {
		if string(value) != "null" { // as if it were not there
			names = append(names, name)
		}
	}
	slices.Sort(names)
	e.contentType = typeJSON // of data, unless it says otherwise
	var plain, base64 json.RawMessage
	for _, name := range names {
		value := fields[name]
		switch name {
		case "data":
			plain = value
			continue
		case "data_base64":
			base64 = value
			continue
		}
		text, err := attributeText(value)
		if err != nil {
			return e, nil, fmt.Errorf("%s: %w", name, err)
		}
		if name == "datacontenttype" {
			e.contentType = text
			continue
		}
		e.set(name, text)
	}
	if err := e.check(); err != nil {
		return e, nil, err
	}
	data = []byte{} // without data it is no tombstone
	if plain == nil && !slices.Contains(names, "datacontenttype") {
		e.contentType = ""
	}
	switch {
	case plain != nil && base64 != nil:
		return e, nil, errors.New("data and data_base64 are both given: use one")
	case plain != nil && isJSON(e.contentType):
		data = plain
	case plain != nil:
		if data, err = textOf(plain); err != nil {
			return e, nil, fmt.Errorf("data: %w", err)
		}
	case base64 != nil:
		var s string
		if err := json.Unmarshal(base64, &s); err != nil {
			return e, nil, errors.New("data_base64 is not a string")
		}
		if data, err = decode64(s); err != nil {
			return e, nil, fmt.Errorf("data_base64: %w", err)
		}
	}
	return e, data, nil
}

// attributeText is an attribute's value as text: of the types that the JSON event
// format has.
func attributeText(value json.RawMessage) (string, error) {
	switch c := value[0]; {
	case c == '"':
		b, err := textOf(value)
		return string(b), err
	case c == '{' || c == '[':
		return "", errors.New("an attribute is a string, a whole number, true or false")
	case c == 't' || c == 'f':
		return string(value), nil
	}
	if bytes.ContainsAny(value, ".eE") {
		return "", errors.New("an attribute is a string, a whole number, true or false")
	}
	return string(value), nil
}

// readEvents reads a batch of events of at most so many.
func readEvents(body []byte, most int) (*batch, error) {
	if size := countElements(body); size > most {
		return nil, publish.TooMany(size, most)
	}
	var events []json.RawMessage
	if err := json.Unmarshal(body, &events); err != nil {
		return nil, badRecord(1, "it is not a JSON array of CloudEvents: "+jsonWords(err))
	}
	if len(events) == 0 {
		return nil, apiError(api.CodeBadRequest, "the batch of CloudEvents is empty")
	}
	b := newBatch(len(events), 0)
	for i, raw := range events {
		e, data, err := readEvent(raw)
		if err != nil {
			b.free()
			return nil, badRecord(i+1, "CloudEvent of the array: "+err.Error())
		}
		m := publish.Message{Value: data}
		e.apply(&m)
		b.add(i+1, m)
	}
	return b, nil
}

// eventHeaderValue is what the value of a header ce-… stands for: without the
// quotes of a quoted string, then without its percent signs.
func eventHeaderValue(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		var b strings.Builder
		for i := 1; i < len(s)-1; i++ {
			if s[i] == '\\' && i < len(s)-2 {
				i++
			}
			b.WriteByte(s[i])
		}
		s = b.String()
	}
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' {
			if r, ok := hex2(s[i+1:]); ok {
				b = append(b, r)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func hex2(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	r, ok := hex4([]byte{'0', '0', s[0], s[1]}, 0)
	return byte(r), ok
}

// eventHeaderText is the other way.
func eventHeaderText(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f && c != '"' && c != '%' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// longMediaType is the most bytes of a content type that stands in a header.
const longMediaType = 255

// formatMediaType leaves a content type out that could not stand in a header.
func formatMediaType(s string) string {
	if len(s) > longMediaType {
		return "application/octet-stream"
	}
	if _, _, err := mime.ParseMediaType(s); err != nil || !fitsHeader(s) {
		return "application/octet-stream"
	}
	return s
}
