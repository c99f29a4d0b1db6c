package consume

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// MessageID is the stable id of a record: what an application stores with its
// result to be effectively once.
func MessageID(topic string, partition int32, offset int64) string {
	b := make([]byte, 0, len(topic)+32)
	b = append(b, topic...)
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
	m.Key, m.Key64 = textOrBase64(r.Key)
	m.Value, m.Value64 = textOrBase64(r.Value)
	if len(r.Headers) > 0 {
		m.Headers = make([]api.HeaderPair, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i].Name = h.Key
			m.Headers[i].Value, m.Headers[i].Value64 = textOrBase64(h.Value)
		}
	}
	return m
}

// textOrBase64 returns at most one of both; neither for nil.
func textOrBase64(b []byte) (text, base *string) {
	if b == nil {
		return nil, nil
	}
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
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
