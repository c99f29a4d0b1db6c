package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// batch is the messages of a batch, each with its line or its place in the
// array. The messages point into the body that was read and into the batch.
type batch struct {
	messages []publish.Message
	lines    []int
	reader   recordReader
}

// batches whose request was answered, for later ones: their memory is most of
// what a request takes beside its body.
var batches sync.Pool

// keepMessages is how many messages a batch has room for at most that is kept.
const keepMessages = 128 << 10

// newBatch has room for so many messages of a body.
func newBatch(messages, body int) *batch {
	b, ok := batches.Get().(*batch)
	if !ok {
		b = &batch{}
	}
	if cap(b.messages) < messages {
		b.messages, b.lines = make([]publish.Message, 0, messages), make([]int, 0, messages)
	}
	b.reader.bytes.size = body
	return b
}

// free gives the batch back. Its messages must not be used any more.
func (b *batch) free() {
	b.clear()
	if cap(b.messages) <= keepMessages {
		batches.Put(b)
	}
}

func (b *batch) clear() {
	clear(b.messages)
	clear(b.reader.headers)
	b.messages, b.lines = b.messages[:0], b.lines[:0]
	b.reader.bytes.block = b.reader.bytes.block[:0]
	b.reader.headers, b.reader.partitions = b.reader.headers[:0], b.reader.partitions[:0]
}

func (b *batch) add(line int, m publish.Message) {
	b.messages, b.lines = append(b.messages, m), append(b.lines, line)
}

// readBatch reads a whole batch of at most so many messages: with lines each
// line that is not empty is a message to the letter; else a JSON array, or one
// JSON object a line, of api.Record. It is pure. Errors are bad_record with the
// line, request_too_large with the number of messages, which are counted before
// they take memory, or bad_request when there is nothing.
func readBatch(body []byte, lines bool, most int) (*batch, error) {
	var out *batch
	var err error
	switch at := skipSpace(body, 0); {
	case !lines && at < len(body) && body[at] == '[':
		out, err = readArray(body[at:], most)
	default:
		// Mostly no line is empty.
		size := bytes.Count(body, []byte{'\n'}) + 1
		if size > most {
			if size = countLines(body, !lines); size > most {
				return nil, publish.TooMany(size, most)
			}
		}
		out = newBatch(size, len(body))
		if lines {
			rawLines(body, out)
		} else {
			err = readLines(body, out)
		}
	}
	if err == nil && len(out.messages) == 0 {
		err = apiError(api.CodeBadRequest, "the batch is empty: send one JSON object a line, a JSON array, or raw lines with ?lines=1")
	}
	if err != nil {
		if out != nil {
			out.free()
		}
		return nil, err
	}
	return out, nil
}

// countLines counts the lines that are not empty, or with blank those that are
// not blank.
func countLines(body []byte, blank bool) (n int) {
	_ = eachLine(body, func(_ int, b []byte) error { // f never fails
		if !blank || len(bytes.TrimSpace(b)) > 0 {
			n++
		}
		return nil
	})
	return n
}

// countElements counts the elements of a JSON array; of what is none it makes
// something up.
func countElements(b []byte) int {
	depth, commas, quoted, some := 0, 0, false, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted, some = !quoted, true
		case quoted || c == ' ' || c == '\t' || c == '\r' || c == '\n':
		case c == '[' || c == '{':
			some = some || depth > 0
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 1:
			commas++
		default:
			some = true
		}
	}
	if commas == 0 && !some {
		return 0
	}
	return commas + 1
}

// eachLine calls f with every line that holds more than its end. A carriage
// return before the newline stays: it is the caller's to judge.
func eachLine(body []byte, f func(line int, b []byte) error) error {
	for n := 1; len(body) > 0; n++ {
		b := body
		if i := bytes.IndexByte(body, '\n'); i >= 0 {
			b, body = body[:i], body[i+1:]
		} else {
			body = nil
		}
		if len(b) == 0 {
			continue
		}
		if err := f(n, b); err != nil {
			return err
		}
	}
	return nil
}

// cutLine takes the first line that is not blank off some lines, and tells how
// many blank ones were before it. To the letter only a line without a byte is
// blank; else spaces before the line are left out, too. A few packed bytes stand
// for a great many blank lines, so it makes no more of them than a look at each
// byte.
func cutLine(b []byte, lines bool) (blank int, line, rest []byte) {
	for i, c := range b {
		switch {
		case c == '\n':
			blank++
		case !lines && (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'):
		default:
			line, rest, _ = bytes.Cut(b[i:], []byte{'\n'})
			return blank, line, rest
		}
	}
	return blank, nil, nil
}

// cutLines is how many bytes the first most lines take that are not blank, and
// how many lines those are.
func cutLines(b []byte, lines bool, most int) (size, n int) {
	rest := b
	for n < most && len(rest) > 0 {
		var line []byte
		if _, line, rest = cutLine(rest, lines); len(line) > 0 {
			n++
		}
	}
	return len(b) - len(rest), n
}

func rawLines(body []byte, out *batch) {
	_ = eachLine(body, func(n int, b []byte) error { // f never fails
		out.add(n, publish.Message{Value: b})
		return nil
	})
}

func readLines(body []byte, out *batch) error {
	return eachLine(body, func(n int, b []byte) error {
		if err := out.readLine(n, b); err != nil {
			return badRecord(n, err.Error())
		}
		return nil
	})
}

// readLine adds the record of a line; a blank one has none.
func (b *batch) readLine(n int, line []byte) error {
	var m publish.Message
	if utf8.Valid(line) {
		if end := b.reader.read(line, 0, &m); end != unknown && skipSpace(line, end) == len(line) {
			b.add(n, m)
			return nil
		}
	}
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	m, err := readRecord(line)
	if err != nil {
		return err
	}
	b.add(n, m)
	return nil
}

// readArray reads a JSON array.
func readArray(body []byte, most int) (*batch, error) {
	out := newBatch(0, len(body))
	if out.readArray(body, most) {
		return out, nil
	}
	out.free()
	size := countElements(body)
	if size > most {
		return nil, publish.TooMany(size, most)
	}
	out = newBatch(size, len(body))
	return out, decodeArray(body, out)
}

// readArray reads what it knows; false when there is something else, or there
// are more elements.
func (b *batch) readArray(body []byte, most int) bool {
	if !utf8.Valid(body) {
		return false
	}
	i := skipSpace(body, 1)
	if i < len(body) && body[i] == ']' {
		return skipSpace(body, i+1) == len(body)
	}
	for len(b.messages) < most {
		var m publish.Message
		begin := skipSpace(body, i)
		if i = b.reader.read(body, begin, &m); i == unknown {
			if i = skipValue(body, begin, 0); i == unknown {
				return false
			}
			var err error
			if m, err = readRecord(body[begin:i]); err != nil {
				return false
			}
		}
		b.add(len(b.lines)+1, m)
		if i = skipSpace(body, i); i >= len(body) {
			return false
		}
		switch body[i] {
		case ']':
			return skipSpace(body, i+1) == len(body)
		case ',':
			i++
		default:
			return false
		}
	}
	return false
}

// decodeArray is readArray by encoding/json.
func decodeArray(body []byte, out *batch) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		return badRecord(1, jsonWords(err))
	}
	for d.More() {
		n := len(out.lines) + 1
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return badRecord(n, "element of the array: "+jsonWords(err))
		}
		m, err := readRecord(raw)
		if err != nil {
			return badRecord(n, "element of the array: "+err.Error())
		}
		out.add(n, m)
	}
	if _, err := d.Token(); err != nil {
		return badRecord(len(out.lines)+1, "the array does not end: "+jsonWords(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRecord(len(out.lines)+1, "there is more after the end of the array")
	}
	return nil
}

// keyByField gives each message that takes its key from a field the key found in its value, a
// JSON object: the top-level field of that name, or what the JSON pointer
// (RFC 6901) names. A string's bytes or other JSON to the letter.
func keyByField(b *batch, field keyField) error {
	if field.name == "" {
		return nil
	}
	path := pathOf(field.name)
	for i := range b.messages {
		if !field.isFor(&b.messages[i]) {
			continue
		}
		if err := b.keyOf(i, path); err != nil {
			return badRecord(b.lines[i], fmt.Sprintf("key_field %s: %v", field.name, err))
		}
	}
	return nil
}

// keyOf gives a message the key found in its value.
func (b *batch) keyOf(i int, path []string) (err error) {
	m := &b.messages[i]
	if m.Key, err = b.reader.findKey(m.Value, path); err != nil {
		m.Key, err = decodeKey(m.Value, path)
	}
	return err
}
