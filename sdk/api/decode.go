package api

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// DecodeJSON decodes an answer. It does what json.Unmarshal does to an empty
// Pulled, in a fraction of the time where the answer is as a sidecar writes it.
func (p *Pulled) DecodeJSON(b []byte) error {
	d := scanner{in: b}
	var q Pulled
	if d.pulled(&q) && d.end() {
		*p = q
		return nil
	}
	*p = Pulled{}
	return json.Unmarshal(b, p)
}

// DecodeJSON decodes an answer as json.Unmarshal does, faster.
func (r *ReceiptResponse) DecodeJSON(b []byte) error {
	d := scanner{in: b}
	var q ReceiptResponse
	if d.response(&q) && d.end() {
		*r = q
		return nil
	}
	*r = ReceiptResponse{}
	return json.Unmarshal(b, r)
}

// DecodeJSON decodes a body if it is a plain object of the fields that it has,
// each once; false when it is anything else, valid or not, and r is then
// unchanged.
func (r *Receipts) DecodeJSON(b []byte) bool {
	d := scanner{in: b, whole: string(b)}
	var q Receipts
	var met [4]bool
	first := func(i int) bool {
		was := met[i]
		met[i] = true
		return !was
	}
	ok := d.object(func(name []byte) bool {
		switch string(name) {
		case "receipts":
			return first(0) && d.texts(&q.Receipts)
		case "delay":
			return first(1) && d.text(&q.Delay)
		case "error":
			ok := first(2) && d.text(&q.Error)
			q.Error = strings.Clone(q.Error) // it may be kept for long
			return ok
		case "lease":
			return first(3) && d.text(&q.Lease)
		}
		return false
	}) && d.end()
	if ok {
		*r = q
	}
	return ok
}

// DecodeJSON decodes a body if it is a plain object of the fields that it has,
// each once; false when it is anything else, valid or not, and p is then
// unchanged.
func (p *PullBody) DecodeJSON(b []byte) bool {
	d := scanner{in: b, whole: string(b)}
	var q PullBody
	var ack, nack bool
	ok := d.object(func(name []byte) bool {
		switch string(name) {
		case "ack":
			was := ack
			ack = true
			return !was && d.texts(&q.Ack)
		case "nack":
			was := nack
			nack = true
			return !was && d.texts(&q.Nack)
		}
		return false
	}) && d.end()
	if ok {
		*p = q
	}
	return ok
}

// scanner reads the JSON that a sidecar or its client writes. Every method says
// whether it found what it looks for; when not, encoding/json decides.
type scanner struct {
	in    []byte
	at    int
	whole string // what is read, for strings that may be part of it; "": each is a copy

	expected int // messages, where that can be told
	scratch  []byte
	sizes    []int // of the values that follow, by message: -1 for none; nil: none follow

	topic string     // of the message before: mostly the same
	lease *time.Time // and the end of its lease
	until []byte     // as it is written
}

func (d *scanner) space() {
	for d.at < len(d.in) {
		switch d.in[d.at] {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return
		}
	}
}

// char passes over one character and the space before it.
func (d *scanner) char(c byte) bool {
	d.space()
	if d.at < len(d.in) && d.in[d.at] == c {
		d.at++
		return true
	}
	return false
}

func (d *scanner) end() bool {
	d.space()
	return d.at == len(d.in)
}

func (d *scanner) null() bool {
	d.space()
	if len(d.in)-d.at >= 4 && string(d.in[d.at:d.at+4]) == "null" {
		d.at += 4
		return true
	}
	return false
}

// object calls field at the value of each field.
func (d *scanner) object(field func(name []byte) bool) bool {
	if !d.char('{') {
		return false
	}
	if d.char('}') {
		return true
	}
	for {
		name, plain := d.quoted()
		if !plain || !d.char(':') || !field(name) {
			return false
		}
		if d.char('}') {
			return true
		}
		if !d.char(',') {
			return false
		}
	}
}

// list calls element at each element.
func (d *scanner) list(element func() bool) bool {
	if !d.char('[') {
		return false
	}
	if d.char(']') {
		return true
	}
	for element() {
		if d.char(']') {
			return true
		}
		if !d.char(',') {
			return false
		}
	}
	return false
}

// quoted passes over a string and returns what stands between its quotes. It is
// plain when that is the string itself: no escapes, and valid UTF-8. Without a
// string it is nil.
func (d *scanner) quoted() (inner []byte, plain bool) {
	if !d.char('"') {
		return nil, false
	}
	begin, ascii := d.at, true
	for d.at < len(d.in) {
		if len(d.in)-d.at >= 8 {
			special := specials(binary.LittleEndian.Uint64(d.in[d.at:]))
			d.at += bits.TrailingZeros64(special) / 8
			if special == 0 {
				continue
			}
		}
		switch c := d.in[d.at]; {
		case c == '"':
			inner = d.in[begin:d.at:d.at]
			d.at++
			return inner, ascii || utf8.Valid(inner)
		case c == '\\', c < ' ':
			return nil, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
		d.at++
	}
	return nil, false
}

// text reads a string.
func (d *scanner) text(to *string) bool {
	begin := d.at
	if inner, plain := d.quoted(); plain {
		if d.whole != "" {
			*to = d.whole[d.at-1-len(inner) : d.at-1]
		} else {
			*to = string(inner)
		}
		return true
	}
	d.at = begin
	return d.char('"') && d.unescape(to)
}

// unescape reads a string with escapes, after its opening quote. As in writing,
// simple escapes cost no branch of their own: a backslash is written like any
// byte, and what follows it over it.
func (d *scanner) unescape(to *string) bool {
	in, ascii := d.in[d.at:], true
	out, n := d.scratch, 0
	for i := 0; i < len(in); {
		if len(out)-n <= stretch {
			out = slices.Grow(out[:n], 2*n+8*stretch)
			out = out[:cap(out)]
		}
		if len(in)-i >= 8 {
			v := binary.LittleEndian.Uint64(in[i:])
			if specials(v) == 0 {
				binary.LittleEndian.PutUint64(out[n:], v)
				i += 8
				n += 8
				continue
			}
		}
		var after uint8 // 1 behind a backslash
		other := false
		for _, c := range in[i:min(i+stretch, len(in))] {
			if other = standsForOther[after][c]; other {
				break
			}
			out[n] = c
			after = backslash[c] &^ after
			n += 1 - int(after)
			i++
		}
		if !other {
			i -= int(after) // the backslash is read again with what follows it
			if i >= len(in)-1 {
				return false
			}
			continue
		}
		switch c := in[i]; {
		case after == 1:
			var used int
			if out, used = appendUnescaped(out[:n], in[i:]); used == 0 {
				return false
			}
			n, out = len(out), out[:cap(out)]
			i += used
		case c == '"':
			*to = string(out[:n])
			d.at += i + 1
			d.scratch = out
			return ascii || utf8.ValidString(*to)
		case c < ' ':
			return false
		default:
			ascii = false
			out[n] = c
			n++
			i++
		}
	}
	return false
}

// backslash is 1 for the backslash.
var backslash = [256]uint8{'\\': 1}

// standsForOther tells of bytes, not behind and behind a backslash, that they do
// not stand for themselves, or may not stand there.
var standsForOther = func() (other [2][256]bool) {
	for c := range 256 {
		other[0][c] = c == '"' || c < ' ' || c >= utf8.RuneSelf
		other[1][c] = c != '"' && c != '\\' && c != '/'
	}
	return other
}()

// appendUnescaped appends what the n bytes after a backslash stand for; n is 0
// for what is no escape or one half of a pair.
func appendUnescaped(out, in []byte) (_ []byte, n int) {
	if len(in) == 0 {
		return out, 0
	}
	switch c := in[0]; c {
	case '"', '\\', '/':
		return append(out, c), 1
	case 'n':
		return append(out, '\n'), 1
	case 't':
		return append(out, '\t'), 1
	case 'r':
		return append(out, '\r'), 1
	case 'b':
		return append(out, '\b'), 1
	case 'f':
		return append(out, '\f'), 1
	case 'u':
		if len(in) < 5 {
			return out, 0
		}
		r, err := strconv.ParseUint(string(in[1:5]), 16, 32)
		if err != nil || r >= 0xd800 && r < 0xe000 {
			return out, 0
		}
		return utf8.AppendRune(out, rune(r)), 5
	}
	return out, 0
}

// optional reads a string or null.
func (d *scanner) optional(to **string) bool {
	if d.null() {
		*to = nil
		return true
	}
	s := new(string)
	*to = s
	return d.text(s)
}

func (d *scanner) texts(to *[]string) bool {
	out := make([]string, 0, 1+(len(d.in)-d.at)/48)
	ok := d.list(func() bool {
		out = append(out, "")
		return d.text(&out[len(out)-1])
	})
	*to = out
	return ok
}

// number reads a whole number.
func (d *scanner) number(least, most int64) (n int64, ok bool) {
	negative := d.char('-')
	begin := d.at
	for ; d.at < len(d.in) && d.in[d.at] >= '0' && d.in[d.at] <= '9'; d.at++ {
		n = n*10 + int64(d.in[d.at]-'0')
	}
	digits := d.at - begin
	if digits == 0 || digits > 18 || digits > 1 && d.in[begin] == '0' {
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, n >= least && n <= most
}

const (
	maxInt32 = 1<<31 - 1
	maxInt64 = 1<<63 - 1
)

func (d *scanner) int(to *int) bool {
	n, ok := d.number(-maxInt32, maxInt32)
	*to = int(n)
	return ok
}

func (d *scanner) int64(to *int64) (ok bool) {
	*to, ok = d.number(-maxInt64, maxInt64)
	return ok
}

func (d *scanner) pulled(p *Pulled) bool {
	return d.object(func(name []byte) bool {
		switch string(name) {
		case "messages":
			p.Messages = make([]Message, 0, max(0, d.expected))
			return d.list(func() bool {
				p.Messages = append(p.Messages, Message{})
				if d.sizes != nil {
					d.sizes = append(d.sizes, -1)
				}
				return d.message(&p.Messages[len(p.Messages)-1])
			})
		case "reason":
			if d.null() {
				return true
			}
			var s string
			ok := d.text(&s)
			p.Reason = (*Reason)(&s)
			return ok
		case "ownership":
			return d.text(&p.Ownership)
		case "away":
			n, ok := d.number(-maxInt32, maxInt32)
			p.Away = int(n)
			return ok
		case "acks":
			p.Acks = &ReceiptResponse{}
			return d.response(p.Acks)
		}
		return false
	})
}

func (d *scanner) message(m *Message) bool {
	return d.object(func(name []byte) bool {
		switch string(name) {
		case "id":
			return d.text(&m.ID)
		case "receipt":
			return d.text(&m.Receipt)
		case "topic":
			inner, plain := d.quoted()
			if string(inner) != d.topic {
				d.topic = string(inner)
			}
			m.Topic = d.topic
			return plain
		case "partition":
			n, ok := d.number(-maxInt32, maxInt32)
			m.Partition = int32(n)
			return ok
		case "offset":
			return d.int64(&m.Offset)
		case "key":
			return d.optional(&m.Key)
		case "key64":
			return d.optional(&m.Key64)
		case "value":
			return d.optional(&m.Value)
		case "value64":
			return d.optional(&m.Value64)
		case "size":
			if len(d.sizes) == 0 {
				return false
			}
			return d.int(&d.sizes[len(d.sizes)-1])
		case "headers":
			m.Headers = []HeaderPair{}
			return d.list(func() bool {
				m.Headers = append(m.Headers, HeaderPair{})
				return d.header(&m.Headers[len(m.Headers)-1])
			})
		case "ts":
			return d.int64(&m.Timestamp)
		case "attempt":
			return d.int(&m.Attempt)
		case "lease_until":
			return d.time(&m.LeaseUntil)
		}
		return false
	})
}

func (d *scanner) header(h *HeaderPair) bool {
	return d.object(func(name []byte) bool {
		switch string(name) {
		case "name":
			return d.text(&h.Name)
		case "name64":
			return d.optional(&h.Name64)
		case "value":
			return d.optional(&h.Value)
		case "value64":
			return d.optional(&h.Value64)
		}
		return false
	})
}

// time reads a time. All messages of a lease share one.
func (d *scanner) time(to **time.Time) bool {
	inner, plain := d.quoted()
	if !plain {
		return false
	}
	if d.lease == nil || string(inner) != string(d.until) {
		t, err := time.Parse(time.RFC3339Nano, string(inner))
		if err != nil {
			return false
		}
		d.lease, d.until = &t, inner
	}
	*to = d.lease
	return true
}

func (d *scanner) response(r *ReceiptResponse) bool {
	return d.object(func(name []byte) bool {
		switch string(name) {
		case "ok":
			return d.int(&r.OK)
		case "failed":
			return d.int(&r.Failed)
		case "results":
			r.Results = []ReceiptResult{}
			return d.list(func() bool {
				r.Results = append(r.Results, ReceiptResult{})
				return d.result(&r.Results[len(r.Results)-1])
			})
		}
		return false
	})
}

func (d *scanner) result(r *ReceiptResult) bool {
	return d.object(func(name []byte) bool {
		switch string(name) {
		case "receipt":
			return d.text(&r.Receipt)
		case "id":
			return d.text(&r.ID)
		case "lease_until":
			return d.time(&r.LeaseUntil)
		}
		return false
	})
}
