package consume

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// MessageID is the stable id of a record: what an application stores with its
// result to be effectively once.
func MessageID(topic string, partition int32, offset int64) string {
	var a [64]byte
	b := append(a[:0], topic...)
	b = append(b, '/')
	b = strconv.AppendInt(b, int64(partition), 10)
	b = append(b, '/')
	b = strconv.AppendInt(b, offset, 10)
	return string(b)
}

// MessageOf shows a record to an application: key, value and headers as text
// when they are UTF-8 and as base64 when they are not, a record without a value
// as null. Receipt, attempt and lease are the caller's to set.
func MessageOf(r *kgo.Record) api.Message {
	m := api.Message{
		ID:        MessageID(r.Topic, r.Partition, r.Offset),
		Topic:     r.Topic,
		Partition: r.Partition,
		Offset:    r.Offset,
		Timestamp: r.Timestamp.UnixMilli(),
	}
	t := &texts{}
	m.Key, m.Key64 = textOrBase64(r.Key, &t.key)
	m.Value, m.Value64 = textOrBase64(r.Value, &t.value)
	if len(r.Headers) > 0 {
		m.Headers = make([]api.HeaderPair, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i].Name = h.Key
			m.Headers[i].Value, m.Headers[i].Value64 = textOrBase64(h.Value, new(string))
		}
	}
	return m
}

// texts has room for what a message points to.
type texts struct{ key, value string }

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

// recordOverhead is about what a record costs in memory besides its bytes, so
// that a log of empty records is bounded too.
const recordOverhead = 128
