package api

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"
)

// The answers to pulls and acknowledgements hold hundreds of messages or
// receipts, and encoding/json spends several times on each what all the rest of
// a pull does. So their lists are written by hand here, in the form that
// encoding/json gives them (tests compare), and what surrounds the lists by
// encoding/json, so that a field added to it cannot be forgotten.

// AppendJSON appends the answer as JSON.
func (p Pulled) AppendJSON(b []byte) ([]byte, error) { return p.append(b, false) }

// append appends the answer, without the values of its messages when these
// follow behind it.
func (p Pulled) append(b []byte, behind bool) ([]byte, error) {
	messages, acks := p.Messages, p.Acks
	p.Messages, p.Acks = []Message{}, nil
	const list = `{"messages":[`
	rest, err := around(p, list)
	if err != nil {
		return b, err
	}
	b = append(b, list...)
	var until leaseText
	for i := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = messages[i].append(b, &until, behind)
	}
	b = append(b, rest...)
	if acks == nil {
		return b, nil
	}
	b = append(b[:len(b)-1], `,"acks":`...)
	if b, err = acks.AppendJSON(b); err != nil {
		return b, err
	}
	return append(b, '}'), nil
}

// AppendJSON appends the answer as JSON.
func (r ReceiptResponse) AppendJSON(b []byte) (_ []byte, err error) {
	b = append(b, `{"ok":`...)
	b = strconv.AppendInt(b, int64(r.OK), 10)
	b = append(b, `,"failed":`...)
	b = strconv.AppendInt(b, int64(r.Failed), 10)
	b = append(b, `,"results":[`...)
	var until leaseText
	for i := range r.Results {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = r.Results[i].appendJSON(b, &until); err != nil {
			return b, err
		}
	}
	return append(b, ']', '}'), nil
}

// AppendJSON appends the body as JSON.
func (p PullBody) AppendJSON(b []byte) ([]byte, error) {
	b = append(b, '{')
	if len(p.Ack) > 0 {
		b = appendTexts(append(b, `"ack":`...), p.Ack)
	}
	if len(p.Nack) > 0 {
		if len(p.Ack) > 0 {
			b = append(b, ',')
		}
		b = appendTexts(append(b, `"nack":`...), p.Nack)
	}
	return append(b, '}'), nil
}

func appendTexts(b []byte, texts []string) []byte {
	b = append(b, '[')
	for i, s := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// around encodes a value with an empty list, and returns what follows the
// beginning of the list.
func around(v any, list string) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(b, []byte(list))
	if !ok {
		return nil, fmt.Errorf("api: %s does not begin with %s", b, list)
	}
	return rest, nil
}

// AppendJSON appends the message as JSON.
func (m *Message) AppendJSON(b []byte) []byte { return m.append(b, &leaseText{}, false) }

func (m *Message) append(b []byte, until *leaseText, behind bool) []byte {
	b = appendString(append(b, `{"id":`...), m.ID)
	if m.Receipt != "" {
		b = appendString(append(b, `,"receipt":`...), m.Receipt)
	}
	b = appendString(append(b, `,"topic":`...), m.Topic)
	b = strconv.AppendInt(append(b, `,"partition":`...), int64(m.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), m.Offset, 10)
	b = appendIf(b, `,"key":`, m.Key)
	b = appendIf(b, `,"key64":`, m.Key64)
	switch {
	case behind && (m.Value != nil || m.Value64 != nil):
		b = strconv.AppendInt(append(b, `,"size":`...), int64(m.size()), 10)
	case m.Value != nil:
		b = appendString(append(b, `,"value":`...), *m.Value)
	default:
		b = append(b, `,"value":null`...)
	}
	if !behind {
		b = appendIf(b, `,"value64":`, m.Value64)
	}
	if len(m.Headers) > 0 {
		b = append(b, `,"headers":[`...)
		for i := range m.Headers {
			if i > 0 {
				b = append(b, ',')
			}
			h := &m.Headers[i]
			b = appendString(append(b, `{"name":`...), h.Name)
			b = appendIf(b, `,"name64":`, h.Name64)
			b = appendIf(b, `,"value":`, h.Value)
			b = appendIf(b, `,"value64":`, h.Value64)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	b = strconv.AppendInt(append(b, `,"ts":`...), m.Timestamp, 10)
	if m.Attempt != 0 {
		b = strconv.AppendInt(append(b, `,"attempt":`...), int64(m.Attempt), 10)
	}
	if m.LeaseUntil != nil {
		b = until.append(append(b, `,"lease_until":`...), *m.LeaseUntil)
	}
	return append(b, '}')
}

func (r *ReceiptResult) appendJSON(b []byte, until *leaseText) ([]byte, error) {
	b = appendString(append(b, `{"receipt":`...), r.Receipt)
	if r.ID != "" {
		b = appendString(append(b, `,"id":`...), r.ID)
	}
	if r.Provisional {
		b = append(b, `,"provisional":true`...)
	}
	if r.LeaseUntil != nil {
		b = until.append(append(b, `,"lease_until":`...), *r.LeaseUntil)
	}
	if r.Error != nil {
		e, err := json.Marshal(r.Error)
		if err != nil {
			return b, err
		}
		b = append(append(b, `,"error":`...), e...)
	}
	return append(b, '}'), nil
}

// leaseText remembers how a time is written: all messages of a lease end with it.
type leaseText struct {
	t    time.Time
	text []byte
}

func (l *leaseText) append(b []byte, t time.Time) []byte {
	if l.text == nil || t != l.t {
		l.t = t
		l.text = append(t.AppendFormat(append(l.text[:0], '"'), time.RFC3339Nano), '"')
	}
	return append(b, l.text...)
}

func appendIf(b []byte, name string, s *string) []byte {
	if s == nil {
		return b
	}
	return appendString(append(b, name...), *s)
}

// appendString appends a JSON string: eight bytes at a time while nothing needs
// escaping, and from the first that does a stretch byte by byte, without a branch
// that depends on where the quotes are.
func appendString(b []byte, s string) []byte {
	// Most escapes make two bytes of one; for longer ones more is made room for.
	b = slices.Grow(b, 2*len(s)+16)
	n, out := len(b), b[:cap(b)]
	out[n] = '"'
	n++
	in := unsafe.Slice(unsafe.StringData(s), len(s))
	for i := 0; i < len(in); {
		if len(in)-i >= 8 {
			v := binary.LittleEndian.Uint64(in[i:])
			if specials(v) == 0 {
				binary.LittleEndian.PutUint64(out[n:], v)
				i += 8
				n += 8
				continue
			}
		}
		rare := false
		for _, c := range in[i:min(i+stretch, len(in))] {
			kind := escapes[c]
			if rare = kind > escapeSlash; rare {
				break
			}
			out[n] = '\\'
			n += int(kind)
			out[n] = c
			n++
			i++
		}
		if rare {
			out, n, i = appendRare(out, n, in, i)
		}
	}
	out[n] = '"'
	return out[:n+1]
}

// stretch is how many bytes are escaped one by one before eight at once are
// tried again.
const stretch = 64

// Kinds of bytes in a JSON string.
const (
	escapeNone  = iota
	escapeSlash // a backslash before it is all
	escapeRare  // control characters, and all bytes of runes of several
)

var escapes = func() (kinds [256]uint8) {
	for c := range kinds {
		switch {
		case c == '"', c == '\\':
			kinds[c] = escapeSlash
		case c < ' ', c >= utf8.RuneSelf:
			kinds[c] = escapeRare
		}
	}
	return kinds
}()

// appendRare writes the character at in[i] to out[n:], keeps room for the rest,
// and returns where both go on.
func appendRare(out []byte, n int, in []byte, i int) ([]byte, int, int) {
	b, size := out[:n], 1
	if c := in[i]; c < utf8.RuneSelf {
		b = appendControl(b, c)
	} else {
		var r rune
		switch r, size = utf8.DecodeRune(in[i:]); {
		case r == utf8.RuneError && size == 1:
			b = append(b, `\ufffd`...)
		case r == '\u2028' || r == '\u2029': // line ends to JavaScript
			b = append(append(b, `\u202`...), "89"[r-'\u2028'])
		default: // it takes no more room than it was given
			return append(b, in[i:i+size]...)[:cap(out)], n + size, i + size
		}
	}
	i += size
	n = len(b)
	b = slices.Grow(b, 2*(len(in)-i)+16)
	return b[:cap(b)], n, i
}

func appendControl(b []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '\n':
		return append(b, '\\', 'n')
	case '\t':
		return append(b, '\\', 't')
	case '\r':
		return append(b, '\\', 'r')
	case '\b':
		return append(b, '\\', 'b')
	case '\f':
		return append(b, '\\', 'f')
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// specials has the high bit set in the lowest byte that must not stand in a JSON
// string as it is, or begins a rune of several bytes; bits above it may be set
// wrongly. 0: there is none.
func specials(v uint64) uint64 {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	quote, slash := v^'"'*ones, v^'\\'*ones
	return ((v-' '*ones) & ^v | (quote-ones)&^quote | (slash-ones)&^slash | v) & highs
}
