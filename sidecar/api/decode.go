package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// record is an api.Record as it comes: it tells more of its headers.
type record struct {
	Value     json.RawMessage `json:"value"`
	Value64   *string         `json:"value64"`
	Key       *string         `json:"key"`
	Key64     *string         `json:"key64"`
	Headers   recordHeaders   `json:"headers"`
	Partition *int32          `json:"partition"`
	Timestamp *int64          `json:"ts"`
}

var recordFields = fieldsOf(reflect.TypeFor[api.Record]())

const recordHas = `: an element has value or value64, key or key64, headers, partition, ts (to send lines as they are use ?lines=1)`

// readRecord reads one api.Record by encoding/json: what recordReader does not
// know, and what is wrong.
func readRecord(b []byte) (publish.Message, error) {
	if b[0] != '{' {
		return publish.Message{}, errors.New(`it is not a JSON object such as {"value":"hi","key":"k"} (to send lines as they are use ?lines=1)`)
	}
	if !utf8.Valid(b) {
		return publish.Message{}, errors.New("it is not UTF-8: put other bytes as base64 into value64 or key64, or use ?lines=1")
	}
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		why := jsonWords(err)
		switch {
		case strings.Contains(why, "unknown field") && hasField(b, "specversion"):
			why += fmt.Sprintf(": CloudEvents are posted one by one to /topics/T with Content-Type: %s, or as a JSON array with %s", typeEvent, typeEvents)
		case strings.Contains(why, "unknown field"):
			why += recordHas
		}
		return publish.Message{}, errors.New(why)
	}
	if name, ok := strangeField(b, recordFields); ok {
		return publish.Message{}, fmt.Errorf("unknown field %q%s", name, recordHas)
	}
	if name, ok := fieldTwice(b[:d.InputOffset()]); ok {
		return publish.Message{}, fmt.Errorf("the field %q is given twice: use one", name)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return publish.Message{}, errors.New("there is more after the JSON object: one object a line (curl -d strips the newlines of a file: use --data-binary)")
	}
	return messageOf(r, b)
}

// messageOf turns a record into a message. b is its text.
func messageOf(r record, b []byte) (publish.Message, error) {
	m := publish.Message{Partition: r.Partition}
	var err error
	if m.Value, err = valueOf(r); err != nil {
		return m, err
	}
	switch {
	case r.Key != nil && r.Key64 != nil:
		return m, errors.New("key and key64 are both given: use one")
	case r.Key != nil:
		m.Key = []byte(*r.Key)
	case r.Key64 != nil:
		if m.Key, err = decode64(*r.Key64); err != nil {
			return m, fmt.Errorf("key64: %w", err)
		}
	}
	if m.Partition != nil && *m.Partition < 0 {
		return m, fmt.Errorf("partition: got %d: use a number from 0", *m.Partition)
	}
	if r.Timestamp != nil {
		if *r.Timestamp < 0 || *r.Timestamp > maxTimestamp {
			return m, fmt.Errorf("ts: got %d: use milliseconds since 1970, from 0 to %d", *r.Timestamp, maxTimestamp)
		}
		m.Timestamp = time.UnixMilli(*r.Timestamp)
	}
	m.Headers = r.Headers.list
	n := 0
	if r.Value64 == nil { // base64 is not text
		n += replacedIn(m.Value)
	}
	if r.Key64 == nil {
		n += replacedIn(m.Key)
	}
	n += r.Headers.replaced
	if hasLoneSurrogate(b, n) {
		return m, errLoneSurrogate
	}
	return m, nil
}

// valueOf is the bytes of a record's value; nil makes a tombstone.
func valueOf(r record) ([]byte, error) {
	raw := bytes.TrimSpace(r.Value)
	given := len(raw) > 0 && !bytes.Equal(raw, []byte("null"))
	switch {
	case given && r.Value64 != nil:
		return nil, errors.New("value and value64 are both given: use one")
	case r.Value64 != nil:
		b, err := decode64(*r.Value64)
		if err != nil {
			return nil, fmt.Errorf("value64: %w", err)
		}
		return b, nil
	case !given:
		return nil, nil
	}
	return textOf(raw)
}

// textOf is the bytes that a JSON value stands for: of a string its own, of
// anything else its text to the letter, so that no number loses a digit.
func textOf(raw []byte) ([]byte, error) {
	if raw[0] != '"' {
		return raw, nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	b := []byte(s)
	if hasLoneSurrogate(raw, replacedIn(b)) {
		return nil, errLoneSurrogate
	}
	return b, nil
}

var errLoneSurrogate = errors.New(`a \u escape is half of a surrogate pair, which no UTF-8 text can hold: use value64 or key64`)

const replaced = "\ufffd"

func replacedIn(b []byte) int { return bytes.Count(b, []byte(replaced)) }

// hasLoneSurrogate tells that decoding text, in which it left n times U+FFFD,
// has put some of them there: encoding/json puts it for half a surrogate pair
// and says nothing.
func hasLoneSurrogate(text []byte, n int) bool {
	if n == 0 {
		return false
	}
	lower := bytes.ToLower(text)
	return n > bytes.Count(text, []byte(replaced))+bytes.Count(lower, []byte(`\ufffd`)) && bytes.Contains(lower, []byte(`\ud`))
}
