package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A key is found in one pass over the value, however many names the pointer to it
// has: a caller chooses both, and a thousand names in a value of megabytes must
// cost no more than one.

// pathOf is the names in a key_field: a JSON pointer (RFC 6901), or one name.
func pathOf(field string) []string {
	if !strings.HasPrefix(field, "/") {
		return []string{field}
	}
	path := strings.Split(field[1:], "/")
	for i, p := range path {
		path[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return path
}

var errNotKnown = errors.New("not known")

// findKey is what decodeKey makes of a value, or errNotKnown: that must read it.
func (r *recordReader) findKey(value []byte, path []string) ([]byte, error) {
	if !utf8.Valid(value) {
		return nil, errNotKnown
	}
	found, end := memberAt(value, 0, path, 1)
	if end == unknown || skipSpace(value, end) < len(value) || len(found) == 0 || string(found) == "null" {
		return nil, errNotKnown
	}
	if found[0] != '"' {
		return found, nil
	}
	key, end := readString(found, 1, &r.bytes)
	if end == unknown {
		return nil, errNotKnown
	}
	return key, nil
}

// memberAt is the text of what a path names in the value that begins at or behind
// b[i], and where that value ends: nil when it is not there, unknown when the value
// is anything but nested JSON objects as most clients write them. Of members of the
// same name the last counts.
func memberAt(b []byte, i int, path []string, depth int) (found []byte, end int) {
	i = skipSpace(b, i)
	if len(path) == 0 {
		if end = skipValue(b, i, depth); end == unknown {
			return nil, unknown
		}
		return b[i:end:end], end
	}
	if i >= len(b) || b[i] != '{' || depth > deepest {
		return nil, unknown
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return nil, i + 1
	}
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return nil, unknown
		}
		begin := i + 1
		if i = nextSpecial(b, begin); i >= len(b) || b[i] != '"' {
			return nil, unknown
		}
		is := string(b[begin:i]) == path[0]
		if i = skipSpace(b, i+1); i >= len(b) || b[i] != ':' {
			return nil, unknown
		}
		if is {
			found, i = memberAt(b, i+1, path[1:], depth+1)
		} else {
			i = skipValue(b, i+1, depth)
		}
		if i == unknown {
			return nil, unknown
		}
		if i = skipSpace(b, i); i >= len(b) {
			return nil, unknown
		}
		switch b[i] {
		case '}':
			return found, i + 1
		case ',':
			i++
		default:
			return nil, unknown
		}
	}
}

// decodeKey is findKey for all JSON, with what is wrong.
func decodeKey(value []byte, path []string) ([]byte, error) {
	raw, err := lookUp(value, path)
	if err != nil {
		return nil, err
	}
	return textOf(raw)
}

var errNoObject = errors.New("the value is not a JSON object")

func lookUp(raw []byte, path []string) ([]byte, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("the value is not UTF-8")
	}
	raw = bytes.TrimSpace(raw)
	if len(path) > 0 && (len(raw) == 0 || raw[0] != '{' && raw[0] != '[') {
		return nil, errNoObject
	}
	if !json.Valid(raw) {
		var all json.RawMessage
		return nil, errors.New("the value is not a JSON object: " + jsonWords(json.Unmarshal(raw, &all)))
	}
	raw, _, err := walk(raw, 0, path)
	if err != nil {
		return nil, err
	}
	if string(raw) == "null" {
		return nil, errors.New("the field is null")
	}
	return raw, nil
}

// walk is memberAt of any valid JSON, elements of arrays included, and says what
// is not there. b[i] is the first byte of a value.
func walk(b []byte, i int, path []string) (found []byte, end int, err error) {
	if len(path) == 0 {
		end = endOf(b, i)
		return b[i:end:end], end, nil
	}
	named := b[i] == '{'
	index := -1
	switch {
	case named:
		err = fmt.Errorf("the value has no field %q", path[0])
	case b[i] == '[':
		err = fmt.Errorf("the array has no element %q", path[0])
		if n, bad := strconv.Atoi(path[0]); bad == nil && strconv.Itoa(n) == path[0] {
			index = n
		}
	default:
		return nil, endOf(b, i), errNoObject
	}
	if i = skipSpace(b, i+1); b[i] == '}' || b[i] == ']' {
		return nil, i + 1, err
	}
	for at := 0; ; at++ {
		is := at == index
		if named {
			begin := i
			i = stringEnd(b, i)
			name, ok := unquoted(b[begin:i])
			is = ok && name == path[0]
			i = skipSpace(b, skipSpace(b, i)+1) // the colon
		}
		if is {
			found, i, err = walk(b, i, path[1:])
		} else {
			i = endOf(b, i)
		}
		if i = skipSpace(b, i); b[i] != ',' {
			return found, i + 1, err
		}
		i = skipSpace(b, i+1)
	}
}

// endOf is the end of the value that begins at b[i], of valid JSON.
func endOf(b []byte, i int) int {
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ' ', '\t', '\r', '\n', ',', ':':
			i++
			continue
		default: // a number or a word
			for i < len(b) && !slices.Contains([]byte(" \t\r\n,:}]"), b[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

// stringEnd is the end of the string whose opening quote is b[i], of valid JSON.
func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; {
		if b[i] == '\\' {
			i++
		}
		if i = nextSpecial(b, i+1); i >= len(b) {
			return len(b)
		}
	}
	return i + 1
}
