package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker/record"
	"sidestream/sidecar/publish"
)

// An entry of the journal is one record batch of Kafka's format: events that were
// accepted together for one partition. Its first record says for which one, the
// others are the events as they will be written. The journal's offset of an event
// is its number, of which its id is made. FORMAT.md has the bytes.

// laneKey says where events go. A topic that was deleted and made anew under
// its name is another one.
type laneKey struct {
	topic     string
	uuid      string // "" when the brokers have none
	partition int32
}

func (k laneKey) String() string { return fmt.Sprintf("%s/%d", k.topic, k.partition) }

const (
	entryVersion = 1
	entryBytes   = 512 << 10 // of an entry, unless one event is larger
	entryEvents  = 1000
)

// address is the value of an entry's first record; its key is the topic.
func (k laneKey) address() []byte {
	b := []byte{entryVersion}
	b = binary.AppendUvarint(b, uint64(k.partition))
	return append(b, k.uuid...)
}

func parseAddress(topic, address []byte) (laneKey, error) {
	if len(topic) == 0 || len(address) < 2 || address[0] != entryVersion {
		return laneKey{}, fmt.Errorf("an entry without an address of version %d", entryVersion)
	}
	p, n := binary.Uvarint(address[1:])
	if n <= 0 || p > 1<<31-1 {
		return laneKey{}, errors.New("an entry for a partition that cannot be")
	}
	return laneKey{topic: string(topic), partition: int32(p), uuid: string(address[1+n:])}, nil
}

// appendEntry appends the entry of some messages to b, accepted by the folder's
// time; those without a timestamp get now, which is the wall clock's. The scratch
// is used and given back.
func appendEntry(b, scratch []byte, key laneKey, ms []publish.Message, accepted, now time.Time) (entry, scratchBack []byte) {
	first := stampOf(accepted)
	body := appendRecord(scratch[:0], 0, 0, []byte(key.topic), key.address(), nil)
	latest := first
	for i := range ms {
		ts := now.UnixMilli()
		if !ms[i].Timestamp.IsZero() {
			ts = ms[i].Timestamp.UnixMilli()
		}
		latest = max(latest, ts)
		body = appendRecord(body, ts-first, int64(i+1), ms[i].Key, ms[i].Value, ms[i].Headers)
	}
	return record.AppendBatch(b, record.Header{
		LeaderEpoch: -1, Magic: record.Magic, LastOffsetDelta: int32(len(ms)), FirstTimestamp: first, MaxTimestamp: latest,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, Count: int32(len(ms) + 1),
	}, body), body
}

// appendRecord encodes a record, from the Kafka protocol guide, Record.
func appendRecord(b []byte, ts, offset int64, key, value []byte, headers []kgo.RecordHeader) []byte {
	n := 1 + varintSize(ts) + varintSize(offset) + fieldSize(key) + fieldSize(value) + varintSize(int64(len(headers)))
	for i := range headers {
		n += varintSize(int64(len(headers[i].Key))) + len(headers[i].Key) + fieldSize(headers[i].Value)
	}
	b = binary.AppendVarint(b, int64(n))
	b = append(b, 0)
	b = binary.AppendVarint(b, ts)
	b = binary.AppendVarint(b, offset)
	b = appendField(b, key)
	b = appendField(b, value)
	b = binary.AppendVarint(b, int64(len(headers)))
	for i := range headers {
		b = binary.AppendVarint(b, int64(len(headers[i].Key)))
		b = append(b, headers[i].Key...)
		b = appendField(b, headers[i].Value)
	}
	return b
}

func appendField(b, f []byte) []byte {
	if f == nil {
		return binary.AppendVarint(b, -1)
	}
	b = binary.AppendVarint(b, int64(len(f)))
	return append(b, f...)
}

func fieldSize(f []byte) int {
	if f == nil {
		return 1
	}
	return varintSize(int64(len(f))) + len(f)
}

func varintSize(v int64) int {
	n, u := 1, uint64(v)<<1^uint64(v>>63)
	for ; u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// entry is one entry of the journal, read back.
type entry struct {
	key      laneKey
	base     int64 // number of the record that says where it goes; the first event has the next
	next     int64 // number after its last event
	accepted time.Time
	size     int64  // bytes in the journal
	raw      []byte // its batch
}

func (e entry) events() int { return int(e.next - e.base - 1) }

// parseEntry reads what the batch says of itself; its events are not decoded,
// and its checksum is checked only if check is true.
func parseEntry(b []byte, check bool) (entry, error) {
	h, err := record.ParseHeader(b)
	if err != nil {
		return entry{}, err
	}
	e := entry{base: h.BaseOffset, next: h.NextOffset(), accepted: acceptedAt(h.FirstTimestamp), size: int64(len(b)), raw: b}
	if check {
		if err := record.CheckCRC(b, h); err != nil {
			return e, err
		}
	}
	h1 := h
	h1.Count = 1
	for r, err := range record.Records(b[record.HeaderSize:firstRecordEnd(b)], h1) {
		if err != nil {
			return e, err
		}
		e.key, err = parseAddress(r.Key, r.Value)
		return e, err
	}
	return e, errors.New("an entry without records")
}

// firstRecordEnd is where the first record of a batch ends, or the batch.
func firstRecordEnd(b []byte) int {
	n, size := binary.Varint(b[record.HeaderSize:])
	if size <= 0 || n < 0 || n > int64(len(b)-record.HeaderSize-size) {
		return len(b)
	}
	return record.HeaderSize + size + int(n)
}

// event is one spooled message.
type event struct {
	seq       int64
	timestamp int64 // milliseconds
	key       []byte
	value     []byte
	headers   []record.RecordHeader
}

// each decodes the events above a number.
func (e entry) each(above int64, yield func(event)) error {
	h, err := record.ParseHeader(e.raw)
	if err != nil {
		return err
	}
	for r, err := range record.Records(e.raw[record.HeaderSize:], h) {
		if err != nil {
			return err
		}
		if r.Offset > e.base && r.Offset > above {
			yield(event{seq: r.Offset, timestamp: r.Timestamp, key: r.Key, value: r.Value, headers: r.Headers})
		}
	}
	return nil
}
