package api

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
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
func (p Pulled) AppendJSON(b []byte) ([]byte, error) {
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
		b = messages[i].appendJSON(b, &until)
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
func (m *Message) AppendJSON(b []byte) []byte { return m.appendJSON(b, &leaseText{}) }

func (m *Message) appendJSON(b []byte, until *leaseText) []byte {
	b = appendString(append(b, `{"id":`...), m.ID)
	if m.Receipt != "" {
		b = appendString(append(b, `,"receipt":`...), m.Receipt)
	}
	b = appendString(append(b, `,"topic":`...), m.Topic)
	b = strconv.AppendInt(append(b, `,"partition":`...), int64(m.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), m.Offset, 10)
	b = appendIf(b, `,"key":`, m.Key)
	b = appendIf(b, `,"key64":`, m.Key64)
	if m.Value != nil {
		b = appendString(append(b, `,"value":`...), *m.Value)
	} else {
		b = append(b, `,"value":null`...)
	}
	b = appendIf(b, `,"value64":`, m.Value64)
	if len(m.Headers) > 0 {
		b = append(b, `,"headers":[`...)
		for i := range m.Headers {
			if i > 0 {
				b = append(b, ',')
			}
			h := &m.Headers[i]
			b = appendString(append(b, `{"name":`...), h.Name)
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

// appendString appends a JSON string, eight bytes at a time up to what must be
// escaped.
func appendString(b []byte, s string) []byte {
	// Most escapes make two bytes of one; for longer ones more is made room for.
	b = slices.Grow(b, 2*len(s)+16)
	b = append(b, '"')
	in := unsafe.Slice(unsafe.StringData(s), len(s))
	for i := 0; i < len(in); {
		if len(in)-i >= 8 {
			v := binary.LittleEndian.Uint64(in[i:])
			n := len(b)
			binary.LittleEndian.PutUint64(b[n:n+8], v) // there is room: what is too much is written over
			special := specials(v)
			clean := bits.TrailingZeros64(special) / 8 // 8 when there is none
			i += clean
			b = b[:n+clean]
			if special == 0 {
				continue
			}
		}
		c := in[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c < utf8.RuneSelf:
			b = append(b, c)
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(in[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = slices.Grow(append(b, `\ufffd`...), 2*(len(in)-i)+16)
			case r == '\u2028' || r == '\u2029': // line ends to JavaScript
				b = slices.Grow(append(b, `\u202`...), 2*(len(in)-i)+16)
				b = append(b, "89"[r-'\u2028'])
			default:
				b = append(b, in[i:i+size]...)
			}
			i += size
			continue
		default:
			b = slices.Grow(appendControl(b, c), 2*(len(in)-i)+16)
		}
		i++
	}
	return append(b, '"')
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
