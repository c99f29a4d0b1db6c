package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record"
	"sidestream/ops/bench/measure"
)

// produceRole is the bare produce loop: a goroutine a connection that reads a
// request, decodes it with kmsg, checks each batch's CRC, patches its offset and
// writes it with one write(2). It keeps nothing else: no indexes, no producers,
// no limits, no flush. A topic is made when its metadata is asked for, with as
// many partitions as its name ends in ("t-8p"), and is gone when it is deleted.
func produceRole(args []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	context.AfterFunc(ctx, func() { _ = l.Close() })
	b := &bareBroker{dir: args[0], addr: l.Addr().(*net.TCPAddr), topics: map[string]*bareTopic{}}
	fmt.Println("ready", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			if err := b.serve(c); !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "bare produce loop:", err)
			}
		}()
	}
}

type bareBroker struct {
	dir  string
	addr *net.TCPAddr
	ids  atomic.Int64 // of producers

	mu     sync.RWMutex // guards topics
	topics map[string]*bareTopic
}

type bareTopic struct {
	id         [16]byte
	partitions []*barePartition
}

type barePartition struct {
	mu   sync.Mutex // guards next; held across the write, which is what orders the log
	file *os.File
	next int64
}

// bareKeys are the requests that are served, with their newest version.
var bareKeys = map[int16]int16{0: 11, 3: 12, 18: 3, 20: 5, 22: 4}

func (b *bareBroker) serve(c net.Conn) error {
	var buf, out []byte
	for {
		var prefix [4]byte
		if _, err := io.ReadFull(c, prefix[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(prefix[:]))
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n] // written before the next request is read, so it can be used again
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		var err error
		if out, err = b.answer(buf, out[:0]); err != nil {
			return err
		}
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

func (b *bareBroker) answer(in, out []byte) ([]byte, error) {
	if len(in) < 10 {
		return nil, errors.New("short request")
	}
	key, version := int16(binary.BigEndian.Uint16(in)), int16(binary.BigEndian.Uint16(in[2:]))
	req := kmsg.RequestForKey(key)
	newest, ok := bareKeys[key]
	if !ok || req == nil {
		return nil, fmt.Errorf("request key %d is not served", key)
	}
	out = append(out, 0, 0, 0, 0)
	out = append(out, in[4:8]...) // correlation id
	if key == 18 && version > newest {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = 35 // UNSUPPORTED_VERSION, answered in version 0 (KIP-511)
		return seal(resp.AppendTo(out)), nil
	}
	req.SetVersion(version)
	body := in[10:]
	if n := int16(binary.BigEndian.Uint16(in[8:])); n > 0 {
		body = body[n:]
	}
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, err
	}
	if req.IsFlexible() && key != 18 {
		out = append(out, 0)
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		b.produce(req, resp.(*kmsg.ProduceResponse))
	case *kmsg.MetadataRequest:
		if err := b.metadata(req, resp.(*kmsg.MetadataResponse)); err != nil {
			return nil, err
		}
	case *kmsg.ApiVersionsRequest:
		r := resp.(*kmsg.ApiVersionsResponse)
		for k, v := range bareKeys {
			r.ApiKeys = append(r.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k, MaxVersion: v})
		}
	case *kmsg.InitProducerIDRequest:
		resp.(*kmsg.InitProducerIDResponse).ProducerID = b.ids.Add(1)
	case *kmsg.DeleteTopicsRequest:
		for _, name := range req.TopicNames {
			b.remove(name)
			t := kmsg.NewDeleteTopicsResponseTopic()
			t.Topic = &name
			r := resp.(*kmsg.DeleteTopicsResponse)
			r.Topics = append(r.Topics, t)
		}
	}
	return seal(resp.AppendTo(out)), nil
}

// seal fills in the length.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (b *bareBroker) produce(req *kmsg.ProduceRequest, resp *kmsg.ProduceResponse) {
	for _, t := range req.Topics {
		b.mu.RLock()
		topic := b.topics[t.Topic]
		b.mu.RUnlock()
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition = p.Partition
			if topic == nil || int(p.Partition) >= len(topic.partitions) {
				rp.ErrorCode = 3
			} else {
				rp.BaseOffset, rp.ErrorCode = topic.partitions[p.Partition].append(p.Records)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
}

func (p *barePartition) append(batch []byte) (base int64, code int16) {
	h, err := record.ParseHeader(batch)
	if err != nil || record.CRC(batch) != h.CRC {
		return -1, 2 // CORRUPT_MESSAGE
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	base = p.next
	record.Stamp(batch, base, 0)
	if _, err := p.file.Write(batch); err != nil {
		return -1, 56 // KAFKA_STORAGE_ERROR
	}
	p.next += int64(h.LastOffsetDelta) + 1
	return base, 0
}

func (b *bareBroker) metadata(req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) error {
	node := kmsg.NewMetadataResponseBroker()
	node.NodeID, node.Host, node.Port = 1, b.addr.IP.String(), int32(b.addr.Port)
	resp.Brokers = append(resp.Brokers, node)
	resp.ControllerID = 1
	for _, t := range req.Topics {
		if t.Topic == nil {
			continue
		}
		topic, err := b.topic(*t.Topic)
		if err != nil {
			return err
		}
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, topic.id
		for i := range topic.partitions {
			rp := kmsg.NewMetadataResponseTopicPartition()
			rp.Partition, rp.Leader, rp.Replicas, rp.ISR = int32(i), 1, []int32{1}, []int32{1}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return nil
}

// topic finds a topic or makes it.
func (b *bareBroker) topic(name string) (*bareTopic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[name]; t != nil {
		return t, nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(name[strings.LastIndexByte(name, '-')+1:], "p"))
	if err != nil || n < 1 {
		return nil, fmt.Errorf("topic %q does not end in its number of partitions, such as -8p", name)
	}
	sum := sha256.Sum256([]byte(name))
	t := &bareTopic{id: [16]byte(sum[:16])}
	for i := range n {
		f, err := os.OpenFile(filepath.Join(b.dir, fmt.Sprintf("%s-%d.log", name, i)), os.O_CREATE|os.O_APPEND|os.O_WRONLY|os.O_TRUNC, 0o644)
		if err != nil {
			return nil, err
		}
		t.partitions = append(t.partitions, &barePartition{file: f})
	}
	b.topics[name] = t
	return t, nil
}

func (b *bareBroker) remove(name string) {
	b.mu.Lock()
	t := b.topics[name]
	delete(b.topics, name)
	b.mu.Unlock()
	if t == nil {
		return
	}
	for _, p := range t.partitions {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name())
	}
}
