package idempotency

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"strconv"
	"strings"

	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// digest stands for a key or a request. Keys themselves are not kept: they may
// be long, and say something of the business.
type digest [16]byte

func digestOf(h hash.Hash) (d digest) {
	var sum [sha256.Size]byte
	copy(d[:], h.Sum(sum[:0]))
	return d
}

func keyDigest(key string) digest {
	h := sha256.New()
	h.Write([]byte(key)) // a hash never fails
	return digestOf(h)
}

// requestDigest stands for all of a request that must be the same in a repeat:
// the topic, what its answer promises, and each message with everything that is
// stored of it. How long the caller waits may differ, and so may the headers of
// tracing, which are made anew for each request.
func requestDigest(topic string, ms []publish.Message, ack publish.Ack, batch bool) digest {
	w := writer{h: sha256.New()}
	w.text(topic)
	w.number(int64(ack))
	w.flag(batch)
	w.number(int64(len(ms)))
	for i := range ms {
		w.message(&ms[i])
	}
	w.flush()
	return digestOf(w.h)
}

// writer feeds a hash through a buffer: of small messages each part would cost
// more than its bytes.
type writer struct {
	h   hash.Hash
	buf []byte
}

func (w *writer) flush() {
	w.h.Write(w.buf) // a hash never fails
	w.buf = w.buf[:0]
}

func (w *writer) number(n int64) {
	if w.buf = binary.AppendVarint(w.buf, n); len(w.buf) > 4<<10 {
		w.flush()
	}
}

func (w *writer) flag(set bool) {
	if set {
		w.number(1)
	} else {
		w.number(0)
	}
}

func (w *writer) text(s string) { w.bytes([]byte(s)) }

// bytes tells nil from empty.
func (w *writer) bytes(b []byte) {
	if b == nil {
		w.number(-1)
		return
	}
	w.number(int64(len(b)))
	if len(b) > 1<<10 {
		w.flush()
		w.h.Write(b) // a hash never fails
		return
	}
	w.buf = append(w.buf, b...)
}

func (w *writer) message(m *publish.Message) {
	w.bytes(m.Key)
	w.bytes(m.Value)
	for i := range m.Headers {
		if h := &m.Headers[i]; !ofTracing(h.Key) {
			w.flag(true)
			w.text(h.Key)
			w.bytes(h.Value)
		}
	}
	w.flag(false)
	if w.flag(m.Partition != nil); m.Partition != nil {
		w.number(int64(*m.Partition))
	}
	if w.flag(!m.Timestamp.IsZero()); !m.Timestamp.IsZero() {
		w.number(m.Timestamp.UnixMilli())
	}
}

// ofTracing names the headers of the W3C's Trace Context.
func ofTracing(name string) bool {
	return strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate")
}

// recordID is the id in the header of the records of a request: of one alone it
// is the id itself, of those of a batch the id, a dash and their number from 0.
// It is the same in each repeat, so that whoever reads a record twice can tell;
// and it is of this sidecar alone, since others may be given the same key. Only
// sidecars with copies of one data folder share it, for the same request under
// the same key: that counts as one publish, and no other request has its id.
func recordID(nonce string, key, request digest) string {
	h := sha256.New()
	h.Write([]byte(nonce)) // a hash never fails
	h.Write(key[:])
	h.Write(request[:])
	d := digestOf(h)
	return base64.RawURLEncoding.EncodeToString(d[:15])
}

func idOf(id string, i int, batch bool) string {
	if !batch {
		return id
	}
	return id + "-" + strconv.Itoa(i)
}

// headerID is the header that holds it.
const headerID = upstream.HeaderID
