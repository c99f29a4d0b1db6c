package publish

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// Message is one event to publish. Its bytes are copied before Publish or
// PublishBatch returns or sends anything, so they may be reused afterwards.
type Message struct {
	Key       []byte // nil: none. An empty key is a key.
	Value     []byte // nil: a tombstone
	Headers   []kgo.RecordHeader
	Partition *int32    // nil: by the key, or round robin without one
	Timestamp time.Time // zero: now
}

func (m Message) size() int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// tooLarge names both sizes.
func tooLarge(size, limit int) *api.Error {
	return api.NewError(api.CodeMessageTooLarge,
		fmt.Sprintf("the message has %d bytes with its key and headers: at most %d are allowed (publish.max_message_bytes)", size, limit))
}

// TooMany refuses a batch for its number of messages and names both numbers.
func TooMany(count, limit int) *api.Error {
	return api.NewError(api.CodeRequestTooLarge,
		fmt.Sprintf("the batch has %d messages: at most %d are allowed (publish.batch_records); nothing was sent", count, limit))
}

// records copies messages into records of a topic, their bytes into one block.
// Strings of the headers are copied too, since they may lie in a reused buffer.
func records(topic string, ms []Message, now time.Time) []kgo.Record {
	total := 0
	for _, m := range ms {
		total += m.size()
	}
	block := make([]byte, 0, total)
	keep := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		at := len(block)
		block = append(block, b...)
		return block[at:len(block):len(block)]
	}
	recs := make([]kgo.Record, len(ms))
	for i, m := range ms {
		r := &recs[i]
		r.Topic = topic
		r.Key, r.Value = keep(m.Key), keep(m.Value)
		for _, h := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(keep([]byte(h.Key))), Value: keep(h.Value)})
		}
		r.Timestamp = m.Timestamp
		if r.Timestamp.IsZero() {
			r.Timestamp = now
		}
	}
	return recs
}
