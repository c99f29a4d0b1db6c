package publish

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// Message is one event to publish. Its bytes are not read any more when Publish
// or PublishBatch has returned, so they may be reused then.
type Message struct {
	Key       []byte // nil: none. An empty key is a key.
	Value     []byte // nil: a tombstone
	Headers   []kgo.RecordHeader
	Partition *int32    // nil: by the key, or any without one
	Timestamp time.Time // zero: now
}

func (m *Message) size() int {
	n := len(m.Key) + len(m.Value)
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value)
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
