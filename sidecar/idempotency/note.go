package idempotency

import (
	"encoding/binary"
	"errors"
	"time"

	"sidestream/sidecar/publish"
)

// noteKind says what a note of the journal is.
type noteKind byte

const (
	noteIntent  noteKind = 1 // before anything is sent; replaces all that was noted of the key
	noteFates   noteKind = 2 // what became of the records
	noteDropped noteKind = 3 // nothing is written, the key is free
)

// noteFormat is the version of what follows.
const noteFormat = 1

// note is one line of the journal.
type note struct {
	kind noteKind
	at   moment
	key  digest

	// Of an intent.
	request digest
	topic   string
	ack     publish.Ack
	batch   bool
	count   int   // records of the request
	millis  int64 // timestamp of a record alone
	places  places

	fates []byte // encoded; of an intent those known before, none: all open
}

// places are where the records of a request may come to lie.
type places struct {
	uuid  string  // of the topic; "" when it was not known
	all   bool    // in any partition, those that are not listed too
	since int64   // Unix milliseconds: no record has a timestamp before it
	from  []place // where the partitions ended before
}

// place is a partition and an offset below which no record of the request can
// be; -1: it is not known, and since counts.
type place struct {
	partition int32
	offset    int64
}

// append encodes a note.
func (n *note) append(b []byte) []byte {
	b = append(b, noteFormat, byte(n.kind))
	b = binary.AppendUvarint(b, uint64(n.at.age/time.Millisecond))
	b = binary.AppendVarint(b, n.at.wall)
	b = binary.AppendVarint(b, n.at.up)
	b = binary.BigEndian.AppendUint64(b, n.at.boot)
	b = append(b, n.key[:]...)
	if n.kind == noteIntent {
		b = append(b, n.request[:]...)
		b = appendText(b, n.topic)
		b = append(b, byte(n.ack), bit(n.batch))
		b = binary.AppendUvarint(b, uint64(n.count))
		b = binary.AppendVarint(b, n.millis)
		b = n.places.append(b)
	}
	return append(b, n.fates...)
}

func (p *places) append(b []byte) []byte {
	b = appendText(b, p.uuid)
	b = append(b, bit(p.all))
	b = binary.AppendVarint(b, p.since)
	b = binary.AppendUvarint(b, uint64(len(p.from)))
	for _, f := range p.from {
		b = binary.AppendUvarint(b, uint64(uint32(f.partition)))
		b = binary.AppendVarint(b, f.offset)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

var errNote = errors.New("a note that cannot be read")

// readNote decodes a note; its fates are part of b.
func readNote(b []byte) (n note, err error) {
	r := reader{b: b}
	if format := r.byte(); format != noteFormat && !r.bad {
		return n, errors.New("a note of a later version")
	}
	n.kind = noteKind(r.byte())
	n.at.age = time.Duration(r.unsigned()) * time.Millisecond
	n.at.wall, n.at.up = r.signed(), r.signed()
	if word := r.take(8); len(word) == 8 {
		n.at.boot = binary.BigEndian.Uint64(word)
	}
	copy(n.key[:], r.take(len(n.key)))
	if n.kind == noteIntent {
		copy(n.request[:], r.take(len(n.request)))
		n.topic = r.text()
		n.ack, n.batch = publish.Ack(r.byte()), r.byte() == 1
		n.count, n.millis = int(r.unsigned()), r.signed()
		n.places = r.places()
	}
	if r.bad || n.kind < noteIntent || n.kind > noteDropped || n.count < 0 {
		return note{}, errNote
	}
	n.fates = r.b
	return n, nil
}

// reader takes values off the front; bad once there was one that was not whole.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		n = -1
	}
	r.take(n)
	return v
}

func (r *reader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		n = -1
	}
	r.take(n)
	return v
}

func (r *reader) text() string {
	return string(r.take(int(min(r.unsigned(), 1<<31))))
}

func (r *reader) places() (p places) {
	p.uuid = r.text()
	p.all = r.byte() == 1
	p.since = r.signed()
	n := r.unsigned()
	if n > uint64(len(r.b)) { // each takes two bytes at least
		r.bad = true
		return p
	}
	p.from = make([]place, 0, n)
	for range n {
		p.from = append(p.from, place{int32(uint32(r.unsigned())), r.signed()})
	}
	return p
}
