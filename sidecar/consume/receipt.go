package consume

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"unsafe"
)

// receipt is what proves a lease. Applications see it as opaque text.
type receipt struct {
	generation uint64
	seekEpoch  uint64
	lease      uint64
	partition  int32
	offset     int64
}

// The first byte of every receipt says which form it has.
const (
	receiptPlain   = 1 // of a pull of one topic by its name
	receiptTelling = 2 // of a pull of several: its topic is in it
)

// errReceipt says that a text is no receipt of this group and topic.
var errReceipt = errors.New(`not a receipt of this group and topic: send back the "receipt" of a pulled message unchanged`)

var receiptTable = crc32.MakeTable(crc32.Castagnoli)

// appendTo writes the receipt for a group and a topic. They are not in the text
// but in its checksum, so a receipt that is sent to another group or topic is
// refused and not misread. Telling, the topic is in the text too, for pulls of
// several.
func (r receipt) appendTo(to []byte, group, topic string, telling bool) []byte {
	var a [128]byte
	b := a[:0]
	if telling {
		b = binary.AppendUvarint(append(b, receiptTelling), uint64(len(topic)))
		b = append(b, topic...)
	} else {
		b = append(b, receiptPlain)
	}
	b = binary.AppendUvarint(b, r.generation)
	b = binary.AppendUvarint(b, r.seekEpoch)
	b = binary.AppendUvarint(b, r.lease)
	b = binary.AppendUvarint(b, uint64(uint32(r.partition)))
	b = binary.AppendUvarint(b, uint64(r.offset))
	b = binary.BigEndian.AppendUint32(b, receiptSum(b, group, topic))
	return base64.RawURLEncoding.AppendEncode(to, b)
}

// decodeBytes undoes the base64, into room where it fits.
func decodeBytes(room []byte, text string) ([]byte, error) {
	return base64.RawURLEncoding.AppendDecode(room, bytesOf(text))
}

// bytesOf are a text's bytes, to be read only.
func bytesOf(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }

// decodeReceipt reads a receipt of a group and a topic, in either form.
func decodeReceipt(text, group, topic string) (receipt, error) {
	var a [128]byte
	b, err := decodeBytes(a[:0], text)
	if err != nil || len(b) < 1+5+4 {
		return receipt{}, errReceipt
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if receiptSum(body, group, topic) != sum {
		return receipt{}, errReceipt
	}
	rest := body[1:]
	switch body[0] {
	case receiptPlain:
	case receiptTelling:
		told, fields, ok := cutTopic(rest)
		if !ok || string(told) != topic {
			return receipt{}, errReceipt
		}
		rest = fields
	default:
		return receipt{}, errReceipt
	}
	var fields [5]uint64
	for i := range fields {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return receipt{}, errReceipt
		}
		fields[i], rest = v, rest[n:]
	}
	if len(rest) != 0 || fields[3] > 1<<31-1 || fields[4] > 1<<63-1 {
		return receipt{}, errReceipt
	}
	return receipt{
		generation: fields[0],
		seekEpoch:  fields[1],
		lease:      fields[2],
		partition:  int32(fields[3]),
		offset:     int64(fields[4]),
	}, nil
}

// receiptTopic is the topic that a receipt tells, unproven; false when it tells
// none.
func receiptTopic(text string) (topic string, tells bool) {
	var a [128]byte
	b, err := decodeBytes(a[:0], text)
	if err != nil || len(b) == 0 || b[0] != receiptTelling {
		return "", false
	}
	told, _, ok := cutTopic(b[1:])
	return string(told), ok
}

func cutTopic(b []byte) (topic, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

func receiptSum(body []byte, group, topic string) uint32 {
	sum := crc32.Update(0, receiptTable, body)
	sum = crc32.Update(sum, receiptTable, bytesOf(group))
	sum = crc32.Update(sum, receiptTable, receiptSlash)
	return crc32.Update(sum, receiptTable, bytesOf(topic))
}

var receiptSlash = []byte{'/'}
