package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record/unpack"
)

// cut feeds data in pieces and returns the frames.
func cut(t *testing.T, pieces [][]byte, maxBytes int64) ([][]byte, error) {
	t.Helper()
	held := newBudget(1 << 30)
	fr := framing{maxBytes: maxBytes, held: held}
	var out [][]byte
	for _, p := range pieces {
		for {
			f, rest, stalled, err := fr.feed(p)
			if err != nil {
				return out, err
			}
			if stalled {
				t.Fatal("stalled with memory to spare")
			}
			p = rest
			if f == nil {
				break
			}
			out = append(out, bytes.Clone(f.buf))
			f.release()
		}
	}
	fr.drop()
	if used := held.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are still held", used)
	}
	return out, nil
}

func TestFramesComeOutWholeHoweverTheyAreSplit(t *testing.T) {
	split(t, []int{8, 9, 100, 4096, 70_000}, []int{1, 3, 4, 5, 1000})
	split(t, []int{8, 70_000, 3 << 20, 9}, []int{1000, 65536, 5 << 20}) // one that grows past its first chunk
}

func split(t *testing.T, sizes, steps []int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var stream []byte
	var want [][]byte
	for _, size := range sizes {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0], b[1] = 0, keyProduce // others may not be that large
		want = append(want, b)
		stream = binary.BigEndian.AppendUint32(stream, uint32(size))
		stream = append(stream, b...)
	}
	for _, step := range steps {
		var pieces [][]byte
		for rest := stream; len(rest) > 0; {
			n := min(step, len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		got, err := cut(t, pieces, 4<<20)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if len(got) != len(want) {
			t.Fatalf("step %d: %d frames, want %d", step, len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("step %d: frame %d differs", step, i)
			}
		}
	}
}

func TestFrameLimits(t *testing.T) {
	for name, c := range map[string]struct {
		length uint32
		want   string
	}{
		"over the limit": {2000, "max_request_bytes is 1000"},
		"negative":       {0xffffffff, "no Kafka request"},
		"too short":      {7, "no Kafka request"},
		"HTTP":           {binary.BigEndian.Uint32([]byte("GET ")), "max_request_bytes"},
	} {
		_, err := cut(t, [][]byte{binary.BigEndian.AppendUint32(nil, c.length)}, 1000)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a text with %q", name, err, c.want)
		}
	}
}

func TestALengthAloneAllocatesLittle(t *testing.T) {
	held := newBudget(1 << 30)
	f := newFrame(1<<30, held)
	if !f.grow(2) || cap(f.buf) > firstRoom || held.used.Load() > firstRoom {
		t.Errorf("a frame of 1 GiB of which nothing came has %d bytes of memory, charged as %d", cap(f.buf), held.used.Load())
	}
}

// A request that is no Produce and over a megabyte took its memory until it was whole, and only then was it looked at.
// Its key is in the first bytes that come.
func TestAnOversizedRequestIsRefusedByItsHead(t *testing.T) {
	for key, want := range map[int16]bool{keyProduce: false, keyFetch: true, keyApiVersions: true, 77: true} {
		for size, tooLarge := range map[uint32]bool{maxSmallRequest: false, maxSmallRequest + 1: true, 50 << 20: true} {
			held := newBudget(1 << 30)
			fr := framing{maxBytes: 1 << 30, held: held}
			head := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, size), uint16(key))
			var err error
			for i := range head { // one byte after another
				if _, _, _, err = fr.feed(head[i : i+1]); err != nil {
					break
				}
			}
			if errors.Is(err, errOversized) != (want && tooLarge) {
				t.Errorf("key %d, %d bytes: %v", key, size, err)
			}
			if held.used.Load() != 0 {
				t.Errorf("key %d: %d bytes were given to a head", key, held.used.Load())
			}
		}
	}
}

// A frame in memory that was used before takes exactly its own bytes.
func TestMemoryOfAFrameIsUsedAgain(t *testing.T) {
	held := newBudget(64 << 20)
	for _, size := range []int{8, 4096, 4097, 70_000, 1 << 20, 1<<20 + 1, 3 << 20} {
		for round := range byte(4) {
			f := newFrame(size, held)
			for !f.whole() {
				if f.full() && !f.grow(int(round)*500) {
					t.Fatal("the budget is not given back")
				}
				to := f.space()
				if len(to) == 0 || len(f.buf)+len(to) > size {
					t.Fatalf("size %d: room for %d bytes after %d", size, len(to), len(f.buf))
				}
				for i := range to {
					to[i] = round
				}
				f.advance(len(to))
			}
			if len(f.buf) != size || bytes.Count(f.buf, []byte{round}) != size {
				t.Fatalf("size %d: %d bytes, not all of them this round's", size, len(f.buf))
			}
			f.reuse()
		}
	}
	if used := held.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are still held", used)
	}
}

func TestShelf(t *testing.T) {
	for size, want := range map[int]int{1: 1, 2048: 2048, 2049: 2560, 4096: 4096, 4097: 5120, 1_000_100: 1 << 20, 1 << 20: 1 << 20, 16 << 20: 16 << 20, 16<<20 + 1: 16<<20 + 1} {
		i, capacity := class(size)
		if capacity != want {
			t.Errorf("%d bytes get %d, want %d", size, capacity, want)
		}
		if again, _ := class(capacity); again != i || i >= classes {
			t.Errorf("%d bytes: class %d, their capacity %d is of class %d", size, i, capacity, again)
		}
	}
	s := shelf{limit: 100_000, full: make(chan struct{}, 1)}
	s.keep(make([]byte, 0, 40_960), 0)
	s.keep(make([]byte, 0, 40_960), 20_000) // too much beside what requests have
	s.keep(make([]byte, 0, 40_960), 0)
	s.keep(make([]byte, 0, 40_960), 0) // too much
	s.keep(make([]byte, 0, 5000), 0)   // no capacity that is kept
	s.keep(nil, 0)
	if s.bytes != 81_920 {
		t.Errorf("%d bytes are kept", s.bytes)
	}
	for range maxLost/40_960 + 1 {
		s.keep(make([]byte, 0, 40_960), 0)
	}
	if len(s.full) != 1 {
		t.Error("the collector is not called for what was not kept")
	}
	if b := s.take(40_961); b != nil {
		t.Errorf("got %d bytes for more", cap(b))
	}
	if b := s.take(20_000); b != nil {
		t.Errorf("got %d bytes for few", cap(b))
	}
	for _, size := range []int{40_000, 32_768} { // the second has none of its own
		if b := s.take(size); cap(b) != 40_960 || len(b) != 0 {
			t.Errorf("got %d bytes for %d", cap(b), size)
		}
	}
	if s.bytes != 0 || s.take(40_000) != nil {
		t.Errorf("%d bytes are kept", s.bytes)
	}
	s.keep(make([]byte, 0, 40_960), 0)
	if b := s.allocate(5000, 90_000); cap(b) != 5120 || s.bytes != 0 {
		t.Errorf("got %d bytes, %d are kept beside requests that need the room", cap(b), s.bytes)
	}
	s.keep(make([]byte, 0, 40_960), 0)
	s.keep(make([]byte, 0, 40_960), 0)
	s.trim() // they came since the last one
	s.keep(s.take(40_960), 0)
	if s.trim(); s.bytes != 40_960 {
		t.Errorf("%d bytes are kept, one was needed", s.bytes)
	}
	if s.trim(); s.bytes != 0 {
		t.Errorf("%d bytes are kept, none was needed", s.bytes)
	}
}

func TestHeader(t *testing.T) {
	req := kmsg.NewPtrMetadataRequest()
	for _, version := range []int16{0, 8, 9, 12} {
		req.Version = version
		b := kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, req, 77)[4:]
		h, body, err := parseHeader(b, flexible)
		if err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		if h.key != 3 || h.version != version || h.correlation != 77 || h.clientID != "me" {
			t.Errorf("version %d: got %+v", version, h)
		}
		if want := req.AppendTo(nil); !bytes.Equal(body, want) {
			t.Errorf("version %d: body %x, want %x", version, body, want)
		}
	}
	if _, _, err := parseHeader([]byte{0, 3, 0, 0, 0, 0, 0, 1, 0, 9, 'x'}, flexible); err == nil {
		t.Error("a client id longer than the request was taken")
	}
}

// populate fills every list with two elements and every text, so that a seed reaches every field.
func populate(v reflect.Value, depth int) {
	switch {
	case depth > 6 || !v.CanSet():
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			populate(v.Index(i), depth+1)
		}
	case v.Kind() == reflect.Slice:
		v.SetBytes([]byte("bytes"))
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		populate(v.Elem(), depth+1)
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[kmsg.Tags]():
		for i := range v.NumField() {
			populate(v.Field(i), depth+1)
		}
	}
}

// What every decoder in use reads back is what was written.
func TestEveryRequestInUseDecodes(t *testing.T) {
	for _, a := range apiTable {
		for v := a.min; v <= a.max; v++ {
			req := a.request()
			populate(reflect.ValueOf(req).Elem(), 0)
			req.SetVersion(v)
			b := kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, req, 5)[4:]
			got, c, err := parse(&frame{buf: b, size: len(b)})
			if err != nil || got != a || c.header.clientID != "me" {
				t.Errorf("%s version %d: %v", a.name, v, err)
				continue
			}
			if again := kmsg.NewRequestFormatter(kmsg.FormatterClientID("me")).AppendRequest(nil, c.req, 5)[4:]; !bytes.Equal(again, b) {
				t.Errorf("%s version %d is read as something else", a.name, v)
			}
		}
	}
}

func FuzzRequest(f *testing.F) {
	for key, a := range apiTable {
		for v := a.min; v <= a.max; v++ {
			req := a.request()
			req.SetVersion(v)
			if p, ok := req.(*kmsg.ProduceRequest); ok {
				t := kmsg.NewProduceRequestTopic()
				t.Topic = "t"
				tp := kmsg.NewProduceRequestTopicPartition()
				tp.Records = make([]byte, 61)
				t.Partitions = append(t.Partitions, tp)
				p.Topics = append(p.Topics, t)
			}
			f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("fuzz")).AppendRequest(nil, req, int32(key))[4:])
			populate(reflect.ValueOf(req).Elem(), 0)
			req.SetVersion(v)
			f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("fuzz")).AppendRequest(nil, req, int32(key))[4:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < minRequest || len(b) > 1<<16 {
			return
		}
		a, c, err := parse(&frame{buf: b, size: len(b)})
		if err != nil {
			// What kmsg reads, the shape check must let through.
			if h, body, headerErr := parseHeader(b, flexible); headerErr == nil && h.key == keyProduce && body != nil && errors.Is(err, errShape) {
				req := kmsg.NewPtrProduceRequest()
				if req.Version = h.version; req.ReadFrom(body) == nil {
					t.Fatal("a good produce request was refused")
				}
			}
			return
		}
		if p, ok := c.req.(*kmsg.ProduceRequest); ok {
			for _, topic := range p.Topics {
				for _, part := range topic.Partitions {
					_, _ = checkBatch(part.Records, 1<<20, p.Version, unpack.Unpacker{Limit: unpack.DefaultLimit})
				}
			}
		}
		if a == nil || c == nil {
			t.Fatal("no error and no request")
		}
	})
}

func TestProduceShapeCountsBeforeAnythingIsAllocated(t *testing.T) {
	for version := int16(0); version <= produceAPI.max; version++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version = version
		for _, name := range []string{"a", "topic"} {
			topic := kmsg.NewProduceRequestTopic()
			topic.Topic = name
			for _, records := range [][]byte{nil, {}, make([]byte, 300)} {
				p := kmsg.NewProduceRequestTopicPartition()
				p.Records = records
				topic.Partitions = append(topic.Partitions, p)
			}
			req.Topics = append(req.Topics, topic)
		}
		b := req.AppendTo(nil)
		if err := checkProduceShape(b, version); err != nil {
			t.Errorf("version %d: %v", version, err)
		}
		if err := checkProduceShape(b[:len(b)-310], version); err == nil {
			t.Errorf("version %d: a request that is cut short was taken", version)
		}
		many := kmsg.NewProduceRequestTopic()
		many.Partitions = make([]kmsg.ProduceRequestTopicPartition, maxProducePartitions)
		req.Topics = append(req.Topics, many)
		if err := checkProduceShape(req.AppendTo(nil), version); err == nil || !strings.Contains(err.Error(), "limit") {
			t.Errorf("version %d: too many partitions: %v", version, err)
		}
	}
}
