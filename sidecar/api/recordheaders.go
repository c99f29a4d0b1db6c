package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// recordHeaders are the headers of a record of a batch: an object of names and
// texts, or a list as pulled messages have it, which keeps the order, and has names
// several times and values that are no text.
type recordHeaders struct {
	list     []kgo.RecordHeader
	replaced int // U+FFFD in names and texts
}

const headersAre = `headers are an object such as {"trace":"abc"}, or a list such as [{"name":"trace","value":"abc"}] with name64 and value64 in place of name and value for bytes as base64`

var pairFields = fieldsOf(reflect.TypeFor[api.HeaderPair]())

// UnmarshalJSON reads both forms. The JSON is known to be valid.
func (h *recordHeaders) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case 'n': // null, as if they were not there
		return nil
	case '{':
		return h.readObject(b)
	case '[':
		return h.readList(b)
	}
	return errors.New(headersAre)
}

func (h *recordHeaders) readObject(b []byte) error {
	if name, ok := fieldTwice(b); ok {
		return fmt.Errorf(`headers: %q is given twice: send a list such as [{"name":%[1]q,"value":"…"},…], which keeps both`, name)
	}
	var values map[string]any
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // JSON objects have no order; ours must not change from run to run
	for _, name := range names {
		value, ok := values[name].(string)
		switch {
		case values[name] == nil:
			return fmt.Errorf("headers: the value of %q is null: use a string, or a list, where a header may have no value", name)
		case !ok:
			return fmt.Errorf("headers: the value of %q is no string: use one, or a list with value64", name)
		}
		if err := h.add(name, []byte(value), strings.Count(name, replaced)+replacedIn([]byte(value))); err != nil {
			return err
		}
	}
	return nil
}

func (h *recordHeaders) readList(b []byte) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(b, &elements); err != nil {
		return err
	}
	for i, raw := range elements {
		var p struct {
			Name    *string `json:"name"`
			Name64  *string `json:"name64"`
			Value   *string `json:"value"`
			Value64 *string `json:"value64"`
		}
		if raw[0] != '{' {
			return errors.New(headersAre)
		}
		if name, ok := strangeField(raw, pairFields); ok {
			return fmt.Errorf("headers: element %d has the unknown field %q: it has name or name64, and value or value64", i+1, name)
		}
		if name, ok := fieldTwice(raw); ok {
			return fmt.Errorf("headers: element %d has the field %q twice: use one", i+1, name)
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return fmt.Errorf("headers: element %d: %s", i+1, jsonWords(err))
		}
		var value []byte // without one Kafka has null
		n := 0
		name, err := nameOf(p.Name, p.Name64)
		if err != nil {
			return fmt.Errorf("headers: element %d: %w", i+1, err)
		}
		if p.Name64 == nil { // base64 is not text
			n += strings.Count(name, replaced)
		}
		switch {
		case p.Value != nil && p.Value64 != nil:
			return fmt.Errorf("headers: value and value64 of %q are both given: use one", name)
		case p.Value != nil:
			value = []byte(*p.Value)
			n += replacedIn(value)
		case p.Value64 != nil:
			if value, err = decode64(*p.Value64); err != nil {
				return fmt.Errorf("headers: value64 of %q: %w", name, err)
			}
		}
		if err := h.add(name, value, n); err != nil {
			return err
		}
	}
	return nil
}

func (h *recordHeaders) add(name string, value []byte, replacements int) error {
	if name == "" {
		return errors.New("headers: a name is empty: use one of a byte at least")
	}
	h.list = append(h.list, kgo.RecordHeader{Key: name, Value: value})
	h.replaced += replacements
	return nil
}

// nameOf is the name of a header, in one of its forms: a pulled message has an
// empty name beside name64.
func nameOf(text, base *string) (string, error) {
	switch {
	case base == nil && text == nil:
		return "", errors.New("it has no name")
	case base == nil:
		return *text, nil
	case text != nil && *text != "":
		return "", fmt.Errorf("name %q and name64 are both given: use one", *text)
	}
	b, err := decode64(*base)
	if err != nil {
		return "", fmt.Errorf("name64: %w", err)
	}
	return string(b), nil
}

// readHeaderList is readHeaders of the list that begins at b[i].
func (r *recordReader) readHeaderList(b []byte, i int) (end int) {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = r.readHeaderPair(b, skipSpace(b, i)); i == unknown {
			return unknown
		}
		if i = skipSpace(b, i); i >= len(b) {
			return unknown
		}
		switch b[i] {
		case ']':
			return i + 1
		case ',':
			i++
		default:
			return unknown
		}
	}
}

// readHeaderPair reads a header that has a name and a value.
func (r *recordReader) readHeaderPair(b []byte, i int) (end int) {
	if i >= len(b) || b[i] != '{' {
		return unknown
	}
	i++
	var name, value []byte
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return unknown
		}
		begin := i + 1
		if i = nextSpecial(b, begin); i >= len(b) || b[i] != '"' {
			return unknown
		}
		field := b[begin:i]
		if i = skipSpace(b, i+1); i >= len(b) || b[i] != ':' {
			return unknown
		}
		if i = skipSpace(b, i+1); i >= len(b) || b[i] != '"' {
			return unknown
		}
		switch {
		case name == nil && string(field) == "name":
			name, i = readString(b, i+1, &r.bytes)
		case value == nil && string(field) == "value":
			value, i = readString(b, i+1, &r.bytes)
		case value == nil && string(field) == "value64":
			value, i = r.base64(b, i)
		default:
			return unknown
		}
		if i == unknown {
			return unknown
		}
		if i = skipSpace(b, i); i >= len(b) {
			return unknown
		}
		switch b[i] {
		case '}':
			if len(name) == 0 || value == nil {
				return unknown
			}
			r.headers = append(r.headers, kgo.RecordHeader{Key: textIn(name), Value: value})
			return i + 1
		case ',':
			i++
		default:
			return unknown
		}
	}
}
