package consume

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// Headers of a dead letter. They stand behind the message's own, and the first
// of them begins the block: a letter that dies again in another group gets a
// block behind it, so that each block belongs to the record that ends before it.
const (
	headerDeadID        = "sidestream-dead-id" // the same in each copy of a letter
	headerDeadReason    = "sidestream-dead-reason"
	headerDeadGroup     = "sidestream-dead-group"
	headerDeadTopic     = "sidestream-dead-topic"
	headerDeadPartition = "sidestream-dead-partition"
	headerDeadOffset    = "sidestream-dead-offset"
	headerDeadUntil     = "sidestream-dead-until" // one past the last offset, of several that nobody can read
	headerDeadAttempts  = "sidestream-dead-attempts"
	headerDeadError     = "sidestream-dead-error"       // as said last
	headerDeadFirst     = "sidestream-dead-first-error" // as said at first, where that is another
	headerDeadAt        = "sidestream-dead-at"          // RFC 3339
	headerDeadTimestamp = "sidestream-dead-ts"          // of the message, Unix milliseconds
	headerDeadLeftOut   = "sidestream-dead-left-out"    // bytes of the message that did not fit
)

// checkReason refuses a reason that no letter has, which would find none; "" is
// any.
func checkReason(reason string) error {
	switch reason {
	case "", window.ReasonMaxAttempts, window.ReasonWindowFull, kindUndecodable, kindOversized:
		return nil
	}
	return badRequest("reason=%q: use %s, %s, %s or %s", reason, window.ReasonMaxAttempts, window.ReasonWindowFull, kindUndecodable, kindOversized)
}

// headerRedriven is in a message that came back from the dead letters: the
// letter's id, so that two copies of it can be told.
const headerRedriven = "sidestream-redriven"

// maxDeadError bounds what is kept of an error, in bytes.
const maxDeadError = 1 << 10

// letter is what is said of a message among the dead letters.
type letter struct {
	id        string
	reason    string
	group     string
	topic     string
	partition int32
	offset    int64
	until     int64 // one past the last offset
	attempts  int
	err       string // as said last
	first     string // as said at first
	at        time.Time
	millis    int64 // the message's timestamp
	leftOut   int   // bytes
	beyond    int   // bytes of a batch that was never unpacked, which count as left out
}

// letterID names a letter by the message that it is of: whoever writes it a
// second time, since nobody knows whether the first time counted, gives it the
// same. The topic's UUID tells a topic from a later one of its name.
func letterID(group, topic, uuid string, partition int32, offset int64) string {
	if uuid != "" {
		topic += "@" + uuid
	}
	return fmt.Sprintf("%s/%s/%d/%d", group, topic, partition, offset)
}

// How much of a message goes into its letter.
type portion int

const (
	whole        portion = iota
	withoutValue         // key and headers
	bare                 // nothing but what is said of it
)

// record writes the letter of a message. Its time is now's: by the message's own
// retention might remove it before anybody has seen it.
func (l letter) record(dead string, r *kgo.Record, p portion) *kgo.Record {
	out := &kgo.Record{Topic: dead, Timestamp: l.at}
	size := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	kept := 0
	if p != bare {
		out.Key, out.Headers = r.Key, slices.Clone(r.Headers)
		kept = size - len(r.Value)
	}
	if p == whole {
		out.Value = r.Value
		kept = size
	}
	l.leftOut = size - kept + l.beyond
	out.Headers = append(out.Headers, l.headers()...)
	return out
}

func (l letter) headers() []kgo.RecordHeader {
	var hs []kgo.RecordHeader
	add := func(name, value string) {
		hs = append(hs, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	add(headerDeadID, l.id)
	add(headerDeadReason, l.reason)
	add(headerDeadGroup, l.group)
	add(headerDeadTopic, l.topic)
	add(headerDeadPartition, strconv.FormatInt(int64(l.partition), 10))
	add(headerDeadOffset, strconv.FormatInt(l.offset, 10))
	if l.until > l.offset+1 {
		add(headerDeadUntil, strconv.FormatInt(l.until, 10))
	}
	add(headerDeadAttempts, strconv.Itoa(l.attempts))
	if l.err != "" {
		add(headerDeadError, clip(l.err, maxDeadError))
	}
	if l.first != "" && l.first != l.err {
		add(headerDeadFirst, clip(l.first, maxDeadError))
	}
	add(headerDeadAt, l.at.UTC().Format(time.RFC3339Nano))
	add(headerDeadTimestamp, strconv.FormatInt(l.millis, 10))
	if l.leftOut > 0 {
		add(headerDeadLeftOut, strconv.Itoa(l.leftOut))
	}
	return hs
}

// clip cuts a text to at most so many bytes, between characters.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for len(s) > 0 && !utf8.ValidString(s[len(s)-min(len(s), utf8.UTFMax):]) {
		s = s[:len(s)-1]
	}
	return s
}

// letterOf reads a record of a topic of dead letters: what is said of the
// message, and the message as it was, apart from its time and place. Not ok:
// it is no letter.
func letterOf(r *kgo.Record) (l letter, m *kgo.Record, ok bool) {
	begin := -1
	for i, h := range r.Headers {
		if h.Key == headerDeadID {
			begin = i
		}
	}
	if begin < 0 {
		return l, nil, false
	}
	l.at, l.until = r.Timestamp, -1
	for _, h := range r.Headers[begin:] {
		value := string(h.Value)
		number, err := strconv.ParseInt(value, 10, 64)
		switch h.Key {
		case headerDeadID:
			l.id = value
		case headerDeadReason:
			l.reason = value
		case headerDeadGroup:
			l.group = value
		case headerDeadTopic:
			l.topic = value
		case headerDeadError:
			l.err = value
		case headerDeadFirst:
			l.first = value
		case headerDeadAt:
			if at, err := time.Parse(time.RFC3339Nano, value); err == nil {
				l.at = at
			}
		case headerDeadPartition:
			if err != nil || number < 0 || number > 1<<31-1 {
				return l, nil, false
			}
			l.partition = int32(number)
		case headerDeadOffset:
			if err != nil || number < 0 {
				return l, nil, false
			}
			l.offset = number
		case headerDeadUntil:
			l.until = number
		case headerDeadAttempts:
			l.attempts = int(number)
		case headerDeadTimestamp:
			l.millis = number
		case headerDeadLeftOut:
			l.leftOut = int(number)
		}
	}
	l.until = max(l.until, l.offset+1)
	copied := *r
	copied.Headers = r.Headers[:begin:begin]
	return l, &copied, l.id != "" && l.group != "" && l.topic != ""
}

// decodable says whether the letter's value is the message's, and not the bytes
// of a batch that nobody can read.
func (l letter) decodable() bool { return l.reason != kindUndecodable }

// several says that the letter is of a batch of several messages that takes too
// much memory: none of them is in it.
func (l letter) several() bool { return l.reason == kindOversized && l.until > l.offset+1 }

// show is the letter as applications see it.
func (l letter) show(m *kgo.Record) api.DeadLetter {
	return api.DeadLetter{
		ID: l.id, Reason: l.reason, Group: l.group,
		Topic: l.topic, Partition: l.partition, Offset: l.offset, Until: l.until,
		Attempts: l.attempts, Error: l.err, FirstError: l.first, At: l.at.UTC(), Timestamp: l.millis, LeftOut: l.leftOut,
		Message: MessageOf(m),
	}
}

// sameMessage says whether a message of the log is the one that a letter without
// its value is of, as far as what was kept of it tells.
func sameMessage(l letter, kept, r *kgo.Record) bool {
	return r.Timestamp.UnixMilli() == l.millis && (kept.Key == nil || bytes.Equal(kept.Key, r.Key))
}
