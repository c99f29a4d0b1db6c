package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"sidestream/broker/record"
	"sidestream/ops/bench/measure"
)

// fetchBytes is what one answer may hold.
const fetchBytes = 1 << 20

// answers are the requests whose answers make up a partition, in order, ready
// to be sent, so that the client has nothing to decode while the clock runs.
type answers [][]byte

// fetchLoad asks on each connection for one answer after the other and throws
// the bytes away: what is measured is the server's sending, not a client.
type fetchLoad struct{ consumers int }

// plan reads the stock once and notes the requests for each partition.
func planFetches(s *measure.Process, st *stock) (plan []answers, err error) {
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for p := range st.partitions {
		var all answers
		for offset := int64(0); ; {
			req := fetchRequest(st.topic, int32(p), offset)
			resp, err := fetchOnce(c, req)
			if err != nil {
				return nil, fmt.Errorf("fetching partition %d of %s at %d: %w", p, s.Name, offset, err)
			}
			next := afterBatches(resp.Topics[0].Partitions[0].RecordBatches, offset)
			if next == offset {
				break
			}
			all = append(all, req)
			offset = next
		}
		plan = append(plan, all)
	}
	return plan, nil
}

func fetchRequest(topic string, partition int32, offset int64) []byte {
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(12)
	req.ReplicaID, req.SessionEpoch, req.MaxBytes, req.MinBytes, req.MaxWaitMillis = -1, -1, fetchBytes, 0, 0
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic = topic
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, fetchBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 1)
}

func fetchOnce(c net.Conn, req []byte) (*kmsg.FetchResponse, error) {
	if _, err := c.Write(req); err != nil {
		return nil, err
	}
	var prefix [4]byte
	if _, err := io.ReadFull(c, prefix[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(prefix[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(12)
	if err := resp.ReadFrom(b[5:]); err != nil { // after correlation id and tags
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		return nil, fmt.Errorf("answer %+v", resp)
	}
	return resp, nil
}

// afterBatches is the offset after the last whole batch; the last of an answer
// may be cut short.
func afterBatches(b []byte, offset int64) int64 {
	for len(b) >= record.HeaderSize {
		h, err := record.ParseHeader(b)
		if err != nil || h.Size() > len(b) {
			break
		}
		offset = h.NextOffset()
		b = b[h.Size():]
	}
	return offset
}

// planSends asks the bare sendfile loop for the same bytes of the same files.
func planSends(files []string, plan []answers, st *stock) (sends []answers) {
	total := st.records * int64(st.size)
	for f := range files {
		var all answers
		n := int64(len(plan[f]))
		share := total / int64(len(files)) / n
		for i := range n {
			all = append(all, sendRequest{uint32(f), uint64(i * share), uint32(share)}.append(nil))
		}
		sends = append(sends, all)
	}
	return sends
}

func (l fetchLoad) run(ctx context.Context, m *meter, plan []answers, window time.Duration) error {
	var count, bytes atomic.Int64
	var times measure.Samples
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range l.consumers {
		c, err := net.Dial("tcp", m.s.Addr)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if err := ask(c, plan[0][0], make([]byte, 256<<10), &bytes); err != nil { // warm the connection
			return err
		}
	}
	bytes.Store(0)
	err := m.measure(ctx, func() error {
		var g errgroup.Group
		until := time.Now().Add(window)
		for i, c := range conns {
			g.Go(func() error {
				buf := make([]byte, 256<<10)
				reqs := plan[i%len(plan)]
				var own []time.Duration
				for n, now := 0, time.Now(); now.Before(until); n++ {
					if err := ask(c, reqs[n%len(reqs)], buf, &bytes); err != nil {
						return err
					}
					count.Add(1)
					then := time.Now()
					own = append(own, then.Sub(now))
					now = then
				}
				times.Add(own...)
				return nil
			})
		}
		return g.Wait()
	})
	m.r.Records, m.r.Bytes, m.r.Latencies = count.Load(), bytes.Load(), times.Sorted()
	return err
}

// ask sends one request and reads its answer into buf, over and over.
func ask(c net.Conn, req, buf []byte, bytes *atomic.Int64) error {
	if _, err := c.Write(req); err != nil {
		return err
	}
	n, err := io.ReadAtLeast(c, buf, 4)
	if err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(buf))
	bytes.Add(int64(size))
	for left := size + 4 - n; left > 0; {
		n, err := c.Read(buf[:min(left, len(buf))])
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}
