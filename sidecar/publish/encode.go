package publish

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"time"
)

// A record batch of version 2 as it goes to the brokers. Source: Kafka protocol
// guide, "Record Batch"; positions are bytes from its begin.
const (
	batchHead       = 61 // bytes before the first record
	atLength        = 8
	atLeaderEpoch   = 12
	atMagic         = 16
	atCRC           = 17
	atAttributes    = 21
	atLastDelta     = 23
	atFirstTime     = 27
	atMaxTime       = 35
	atProducer      = 43
	atProducerEpoch = 51
	atSequence      = 53
	atCount         = 57

	magic2 = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batchFields are what the head of a batch tells of its records.
type batchFields struct {
	attributes int16 // the codec
	firstTime  int64 // Unix milliseconds
	maxTime    int64
	producer   producerID
	sequence   int32 // of the first record
	count      int32
}

// sealBatch fills in the head of a batch whose records, as they are or
// compressed, stand behind it.
func sealBatch(b []byte, f batchFields) {
	e := binary.BigEndian
	e.PutUint64(b, 0) // the broker gives offsets
	e.PutUint32(b[atLength:], uint32(len(b)-atLeaderEpoch))
	e.PutUint32(b[atLeaderEpoch:], 1<<32-1) // -1
	b[atMagic] = magic2
	e.PutUint16(b[atAttributes:], uint16(f.attributes))
	e.PutUint32(b[atLastDelta:], uint32(f.count-1))
	e.PutUint64(b[atFirstTime:], uint64(f.firstTime))
	e.PutUint64(b[atMaxTime:], uint64(f.maxTime))
	e.PutUint64(b[atProducer:], uint64(f.producer.id))
	e.PutUint16(b[atProducerEpoch:], uint16(f.producer.epoch))
	e.PutUint32(b[atSequence:], uint32(f.sequence))
	e.PutUint32(b[atCount:], uint32(f.count))
	e.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
}

// recordLength is the length that stands before a record: of all that follows it.
func recordLength(m *Message, timeDelta int64, offsetDelta int) int {
	n := 1 + varintSize(timeDelta) + varintSize(int64(offsetDelta)) + bytesSize(m.Key) + bytesSize(m.Value) + varintSize(int64(len(m.Headers)))
	for i := range m.Headers {
		h := &m.Headers[i]
		n += varintSize(int64(len(h.Key))) + len(h.Key) + bytesSize(h.Value)
	}
	return n
}

// appendRecord appends a record whose recordLength is length.
func appendRecord(b []byte, m *Message, length int, timeDelta int64, offsetDelta int) []byte {
	b = binary.AppendVarint(b, int64(length))
	b = append(b, 0) // attributes
	b = binary.AppendVarint(b, timeDelta)
	b = binary.AppendVarint(b, int64(offsetDelta))
	b = appendBytes(b, m.Key)
	b = appendBytes(b, m.Value)
	b = binary.AppendVarint(b, int64(len(m.Headers)))
	for i := range m.Headers {
		h := &m.Headers[i]
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendBytes(b, h.Value)
	}
	return b
}

// appendBytes appends bytes after their length, which is -1 for nil.
func appendBytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // -1 in zigzag
	}
	return append(binary.AppendVarint(b, int64(len(v))), v...)
}

func bytesSize(v []byte) int {
	if v == nil {
		return 1
	}
	return varintSize(int64(len(v))) + len(v)
}

// varintSize is how many bytes binary.AppendVarint appends.
func varintSize(v int64) int {
	return (bits.Len64(uint64(v<<1)^uint64(v>>63)|1) + 6) / 7
}

// timeOf is a message's timestamp in Unix milliseconds, now where it has none.
func timeOf(m *Message, now time.Time) int64 {
	if m.Timestamp.IsZero() {
		return now.UnixMilli()
	}
	return m.Timestamp.UnixMilli()
}
