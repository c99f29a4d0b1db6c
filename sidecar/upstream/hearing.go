package upstream

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Heard is told what a broker said of a partition's batch, nil when it took it. The
// topic is named, or has its id where the protocol gives that alone (Produce 13).
// It must not block.
type Heard func(topic, uuid string, partition int32, err error)

// Hearing has a client from [Upstream.Client] tell what brokers answer to its
// produce requests. The client itself repeats what may be repeated in silence, and
// keeps a broker's words to itself: "no space left" would be a broker that does not
// answer.
func (u *Upstream) Hearing(heard Heard) (kgo.Opt, error) {
	dial, err := dialler(u.cfg, &u.dials)
	if err != nil {
		return nil, err
	}
	return kgo.Dialer(hearing(dial, heard)), nil
}

func hearing(dial dialFunc, heard Heard) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &hearingConn{Conn: c, ear: ear{heard: heard, asked: map[int32]int16{}}}, nil
	}
}

// hearingConn listens along. One goroutine writes and one reads.
type hearingConn struct {
	net.Conn
	ear ear
}

func (c *hearingConn) Write(b []byte) (int, error) {
	c.ear.wrote(b)
	return c.Conn.Write(b)
}

func (c *hearingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ear.read(b[:n])
	return n, err
}

// ear follows the frames of a connection: a length of four bytes, and so many.
type ear struct {
	heard Heard

	mu    sync.Mutex      // guards asked
	asked map[int32]int16 // versions of the produce requests under way, by correlation id

	// What follows is the reader's.
	head    []byte // the frame's length and correlation id, as far as they came
	left    int    // bytes of the frame after those
	frame   []byte // an answer to produce as far as it came; nil where it is none
	version int16
}

// longestHeard is the largest answer that is looked into: one has some dozen bytes
// a partition.
const longestHeard = 1 << 20

// wrote looks at what the client writes, which is one request at a time: its length,
// API key, version and correlation id come first (Kafka protocol guide).
func (e *ear) wrote(b []byte) {
	if len(b) < 12 || int(binary.BigEndian.Uint32(b)) != len(b)-4 || int16(binary.BigEndian.Uint16(b[4:])) != kmsg.Produce.Int16() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[int32(binary.BigEndian.Uint32(b[8:]))] = int16(binary.BigEndian.Uint16(b[6:]))
}

// read looks at what the client reads.
func (e *ear) read(b []byte) {
	for len(b) > 0 {
		if len(e.head) < 8 {
			n := min(8-len(e.head), len(b))
			e.head = append(e.head, b[:n]...)
			b = b[n:]
			if len(e.head) < 8 {
				return
			}
			e.begin()
		}
		n := min(e.left, len(b))
		if e.frame != nil {
			e.frame = append(e.frame, b[:n]...)
		}
		e.left -= n
		b = b[n:]
		if e.left == 0 {
			e.end()
		}
	}
}

// begin is a frame of which the length and the correlation id are known.
func (e *ear) begin() {
	e.left = max(0, int(int32(binary.BigEndian.Uint32(e.head)))-4)
	id := int32(binary.BigEndian.Uint32(e.head[4:]))
	e.mu.Lock()
	version, asked := e.asked[id]
	delete(e.asked, id)
	e.mu.Unlock()
	if asked && e.left > 0 && e.left <= longestHeard {
		e.version, e.frame = version, make([]byte, 0, e.left)
	}
	if e.left == 0 {
		e.end()
	}
}

func (e *ear) end() {
	if e.frame != nil {
		e.hear()
	}
	e.head, e.frame = e.head[:0], nil
}

// hear tells of each partition in an answer; one that cannot be read tells nothing.
func (e *ear) hear() {
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = e.version
	body := e.frame
	if resp.IsFlexible() { // the header has tagged fields, of which there are none
		if len(body) == 0 || body[0] != 0 {
			return
		}
		body = body[1:]
	}
	if resp.ReadFrom(body) != nil {
		return
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for k := range t.Partitions {
			p := &t.Partitions[k]
			e.heard(t.Topic, uuid(t.TopicID), p.Partition, Said(p.ErrorCode, Words(p)))
		}
	}
}

// Words are a broker's words about a partition, with those about the first record
// that it names (KIP-467); nil for none.
func Words(rp *kmsg.ProduceResponseTopicPartition) *string {
	for _, r := range rp.ErrorRecords {
		switch {
		case r.ErrorMessage == nil || *r.ErrorMessage == "":
		case rp.ErrorMessage == nil || *rp.ErrorMessage == "" || *rp.ErrorMessage == *r.ErrorMessage:
			return r.ErrorMessage
		default:
			return new(*rp.ErrorMessage + ": " + *r.ErrorMessage)
		}
	}
	return rp.ErrorMessage
}
