package consume

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// receipt is what proves a lease. Applications see it as opaque text.
type receipt struct {
	generation uint64
	seekEpoch  uint64
	lease      uint64
	partition  int32
	offset     int64
}

// receiptVersion is the first byte of every receipt, so that a later form can
// be told from this one.
const receiptVersion = 1

// errReceipt says that a text is no receipt of this group and topic.
var errReceipt = errors.New(`not a receipt of this group and topic: send back the "receipt" of a pulled message unchanged`)

var receiptTable = crc32.MakeTable(crc32.Castagnoli)

// encode writes the receipt for a group and a topic. They are not in the text
// but in its checksum, so a receipt that is sent to another group or topic is
// refused and not misread.
func (r receipt) encode(group, topic string) string {
	var a [1 + 4*binary.MaxVarintLen64 + binary.MaxVarintLen32 + 4]byte
	b := append(a[:0], receiptVersion)
	b = binary.AppendUvarint(b, r.generation)
	b = binary.AppendUvarint(b, r.seekEpoch)
	b = binary.AppendUvarint(b, r.lease)
	b = binary.AppendUvarint(b, uint64(uint32(r.partition)))
	b = binary.AppendUvarint(b, uint64(r.offset))
	b = binary.BigEndian.AppendUint32(b, receiptSum(b, group, topic))
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodeReceipt(text, group, topic string) (receipt, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 1+5+4 || b[0] != receiptVersion {
		return receipt{}, errReceipt
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if receiptSum(body, group, topic) != sum {
		return receipt{}, errReceipt
	}
	var fields [5]uint64
	rest := body[1:]
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

func receiptSum(body []byte, group, topic string) uint32 {
	sum := crc32.Update(0, receiptTable, body)
	sum = crc32.Update(sum, receiptTable, []byte(group))
	sum = crc32.Update(sum, receiptTable, []byte{'/'})
	return crc32.Update(sum, receiptTable, []byte(topic))
}
