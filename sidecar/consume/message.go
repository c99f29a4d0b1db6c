package consume

import (
	"encoding/base64"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// MessageID is the stable id of a record: what an application stores with its
// result to be effectively once.
func MessageID(topic string, partition int32, offset int64) string {
	var a [64]byte
	return string(appendMessageID(a[:0], topic, partition, offset))
}

func appendMessageID(b []byte, topic string, partition int32, offset int64) []byte {
	b = append(append(b, topic...), '/')
	b = append(strconv.AppendInt(b, int64(partition), 10), '/')
	return strconv.AppendInt(b, offset, 10)
}

// MessageOf shows a record to an application: key, value and headers as text
// when they are UTF-8 and as base64 when they are not, a record without a value
// as null. Receipt, attempt and lease are the caller's to set.
func MessageOf(r *kgo.Record) api.Message {
	var one showing
	return one.message(r)
}

// showing shows many records: what their messages point to lies side by side, so
// that it is few pieces of memory. It is all kept as long as any of them.
type showing struct {
	texts []texts
	bytes arena
}

// slices of messages that were answered, for later answers: they are the largest
// piece of memory of a pull.
var answered sync.Pool

// spare is an empty slice for so many messages.
func spare(messages int) []api.Message {
	if s, ok := answered.Get().(*[]api.Message); ok && cap(*s) >= messages {
		return *s
	}
	return make([]api.Message, 0, messages)
}

// Recycle lets the memory of the messages serve later answers. They must not be
// used any more.
func (d *Delivery) Recycle() {
	clear(d.Messages)
	if s := d.Messages[:0]; cap(s) > 0 {
		answered.Put(&s)
	}
	d.Messages = nil
}

// texts has room for what a message points to.
type texts struct{ key, value string }

// expect makes room for so many messages.
func (s *showing) expect(messages, topic int) {
	s.texts = make([]texts, 0, messages)
	s.bytes = make(arena, 0, messages*(topic+56)) // about an id and a receipt
}

func (s *showing) message(r *kgo.Record) api.Message {
	m := api.Message{
		ID:        s.bytes.id(r.Topic, r.Partition, r.Offset),
		Topic:     r.Topic,
		Partition: r.Partition,
		Offset:    r.Offset,
		Timestamp: r.Timestamp.UnixMilli(),
	}
	if len(s.texts) == cap(s.texts) {
		s.texts = make([]texts, 0, 1)
	}
	s.texts = s.texts[:len(s.texts)+1]
	t := &s.texts[len(s.texts)-1]
	m.Key, m.Key64 = textOrBase64(r.Key, &t.key)
	m.Value, m.Value64 = textOrBase64(r.Value, &t.value)
	if len(r.Headers) > 0 {
		m.Headers = make([]api.HeaderPair, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i].Name = h.Key
			if !utf8.ValidString(h.Key) {
				m.Headers[i].Name, m.Headers[i].Name64 = "", new(base64.StdEncoding.EncodeToString([]byte(h.Key)))
			}
			m.Headers[i].Value, m.Headers[i].Value64 = textOrBase64(h.Value, new(string))
		}
	}
	return m
}

// arena holds many short texts that are made together.
type arena []byte

// cut returns what was appended to before, as text.
func (a *arena) cut(after []byte) string {
	text := after[len(*a):]
	*a = after
	return unsafe.String(unsafe.SliceData(text), len(text)) // it is never written again
}

func (a *arena) id(topic string, partition int32, offset int64) string {
	return a.cut(appendMessageID(*a, topic, partition, offset))
}

// textOrBase64 writes bytes into a text and returns it as the one or the other;
// as neither for nil. The text is the bytes themselves and no copy where it can
// be: nobody changes a record.
func textOrBase64(b []byte, to *string) (text, base *string) {
	if b == nil {
		return nil, nil
	}
	if utf8.Valid(b) {
		*to = unsafe.String(unsafe.SliceData(b), len(b))
		return to, nil
	}
	*to = base64.StdEncoding.EncodeToString(b)
	return nil, to
}

// sizeOf is what a record counts for against the byte budgets.
func sizeOf(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// recordOverhead is about what a record costs in memory besides its bytes, with
// its place in the window, so that a log of empty records is bounded too.
const recordOverhead = 320
