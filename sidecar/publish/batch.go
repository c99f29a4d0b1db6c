package publish

import (
	"bytes"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// span is a part of a piece in a batch.
type span struct {
	pc       *piece
	from, to int
}

// batch is a record batch that is being sent.
type batch struct {
	buf    *[]byte // from buffers; nil where there is none
	spans  []span
	fields batchFields
	doubt  bool // an attempt at it may have been written
}

func (b *batch) empty() bool { return len(b.spans) == 0 }

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// fill makes the next batch of what waits. The client calls it at the moment in
// which it writes: what has come until then goes along, and whose caller has
// left does not.
func (l *lane) fill(version int16) {
	limit := int(l.p.batchLimit(l.topic))
	buf := buffers.Get().(*[]byte)
	b := append((*buf)[:0], make([]byte, batchHead)...)
	f := &l.b.fields
	*f = batchFields{producer: l.id, sequence: l.next}
	if l.ack != AckAll {
		f.producer, f.sequence = noProducer, -1
	}
	for full := false; !full; {
		if l.head == len(l.taken) {
			l.mu.Lock()
			l.taken, l.queue, l.head = l.queue, l.taken[:0], 0
			l.mu.Unlock()
			if len(l.taken) == 0 {
				break
			}
		}
		if b, full = l.pack(b, l.taken[l.head], limit); !full {
			l.taken[l.head] = nil
			l.head++
		}
	}
	if l.b.empty() {
		*buf = b
		buffers.Put(buf)
		return
	}
	l.p.metrics.by[l.ack].batches.Inc()
	b = l.compress(b, version)
	sealBatch(b, *f)
	*buf = b
	l.b.buf = buf
}

// pack puts what fits of a piece into the batch, and tells when not all did.
func (l *lane) pack(b []byte, pc *piece, limit int) (_ []byte, full bool) {
	f := &l.b.fields
	j := pc.job
	j.mu.Lock()
	defer j.mu.Unlock()
	from, to := pc.taken, pc.taken
	now := j.now.UnixMilli()
	for ; to < len(pc.which); to++ {
		m := &j.ms[pc.which[to]]
		at := now
		if !m.Timestamp.IsZero() {
			at = m.Timestamp.UnixMilli()
		}
		if f.count == 0 {
			f.firstTime, f.maxTime = at, at
		}
		length := recordLength(m, at-f.firstTime, int(f.count))
		if f.count > 0 && (len(b)+varintSize(int64(length))+length > limit || int(f.count) == l.most) {
			full = true
			break
		}
		b = appendRecord(b, m, length, at-f.firstTime, int(f.count))
		f.maxTime = max(f.maxTime, at)
		f.count++
	}
	if to > from {
		pc.taken = to
		l.b.spans = append(l.b.spans, span{pc, from, to})
	}
	return b, full
}

// compress compresses the records of a batch where that makes them smaller.
func (l *lane) compress(b []byte, version int16) []byte {
	c := l.p.settings.Load().compressorOf(l.topic)
	if c == nil {
		return b
	}
	var flags []kgo.CompressFlag
	if version < 7 { // KIP-110: zstd came with produce version 7
		flags = append(flags, kgo.CompressDisableZstd)
	}
	packed, codec := c.Compress(bytes.NewBuffer(make([]byte, 0, len(b)/2)), b[batchHead:], flags...)
	if codec <= kgo.CodecNone || len(packed) >= len(b)-batchHead {
		return b
	}
	l.b.fields.attributes = int16(codec)
	return append(b[:batchHead], packed...)
}

// drop frees what the batch has.
func (l *lane) drop() {
	clear(l.b.spans)
	l.b.spans = l.b.spans[:0]
	l.b.doubt = false
	if l.b.buf != nil {
		buffers.Put(l.b.buf)
		l.b.buf = nil
	}
}
