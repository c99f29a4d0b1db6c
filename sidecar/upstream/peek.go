package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// Isolation levels, from the Kafka protocol guide, Fetch and ListOffsets.
const (
	readUncommitted = 0
	readCommitted   = 1
)

// namedFetch is a fetch that names its topic: from version 13 on it would have
// to give the topic's id, which not all brokers have.
type namedFetch struct{ *kmsg.FetchRequest }

func (namedFetch) MaxVersion() int16 { return 12 }

// Peek reads up to count records of a partition from offset on, committed ones
// only, without any group. next is the offset to go on from; it moves past
// offsets that hold no record. An offset below the log's start is moved to it.
// At records that cannot be decoded it stops: it returns those before them with
// the error, which is corrupt_record.
func (u *Upstream) Peek(ctx context.Context, topic string, partition int32, offset int64, count, maxBytes int) (recs []*kgo.Record, next, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	t, err := u.Topic(ctx, topic)
	if err != nil {
		return nil, 0, 0, err
	}
	p, ok := t.Partition(partition)
	if !ok {
		return nil, 0, 0, api.NewError(api.CodePartitionNotFound, fmt.Sprintf("topic %s has no partition %d: it has %d, from 0", topic, partition, len(t.Partitions)))
	}
	next = offset
	// What is unpacked is the caller's from the end on, who gets little more than
	// what was asked for, or one message.
	claim := u.unpacking.Claim()
	defer claim.Release()
	for size := 0; len(recs) < count && size < maxBytes; {
		if p.Leader < 0 {
			return nil, 0, 0, unavailable(fmt.Sprintf("partition %d of topic %s has no leader", partition, topic))
		}
		rp, fetchErr := u.fetchRaw(ctx, p, topic, next, maxBytes, readCommitted)
		if fetchErr != nil {
			return nil, 0, 0, u.unreachable(fetchErr)
		}
		if len(recs) == 0 {
			claim.Release()
		}
		had := claim.Held()
		d, fetchErr := u.unpacking.Decode(ctx, claim, Answer{Topic: topic, Partition: partition, Offset: next, End: -1, Room: int64(maxBytes - size)}, rp)
		if fetchErr != nil {
			return nil, 0, 0, notUnpacked(topic, partition, fetchErr)
		}
		fp, after, corrupt := d.Part, d.Next, d.Corrupt
		switch {
		case errors.Is(fp.Err, kerr.OffsetOutOfRange):
			starts, startErr := u.StartOffsets(ctx, topic)
			ends, endErr := u.EndOffsets(ctx, topic)
			start, haveStart := starts[partition]
			last, haveEnd := ends[partition]
			if !haveStart || !haveEnd {
				return nil, 0, 0, unavailable(fmt.Sprintf("the bounds of partition %d are not known now: %v", partition, errors.Join(startErr, endErr)))
			}
			if next >= start { // beyond the end
				return recs, next, last, nil
			}
			next = start
			continue
		case errors.Is(fp.Err, kerr.CorruptMessage):
			return recs, next, end, corruptRecord(fmt.Sprintf("the broker cannot read offset %d of partition %d of topic %s: %v", next, partition, topic, fp.Err))
		case errors.Is(fp.Err, kerr.TopicAuthorizationFailed):
			return nil, 0, 0, topicError(topic, kerr.TopicAuthorizationFailed.Code)
		case fp.Err != nil:
			if fresh, err := u.Refresh(ctx, topic); err == nil && kerr.IsRetriable(fp.Err) {
				if q, ok := fresh.Partition(partition); ok && (q.Leader != p.Leader || q.Epoch != p.Epoch) {
					p = q
					continue
				}
			}
			return nil, 0, 0, unavailable(fmt.Sprintf("partition %d of topic %s: %v", partition, topic, fp.Err))
		}
		end = fp.LastStableOffset
		if end < 0 {
			end = fp.HighWatermark
		}
		if after <= next && corrupt == nil {
			return recs, next, end, nil // nothing more
		}
		next = after
		from := len(recs)
		for _, r := range fp.Records {
			if len(recs) == count || size >= maxBytes {
				own(recs[from:], claim.Held()-had)
				return recs, r.Offset, end, nil
			}
			recs = append(recs, r)
			size += len(r.Key) + len(r.Value)
		}
		if corrupt != nil {
			if len(recs) == count {
				break
			}
			return recs, next, end, corruptRecord(corrupt.Error())
		}
	}
	return recs, next, end, nil
}

// own gives records memory of their own when they are the smaller part of the
// answer that they would keep.
func own(recs []*kgo.Record, answer int64) {
	size := int64(0)
	for _, r := range recs {
		size += recordWeight + int64(len(r.Key)+len(r.Value))
		for _, h := range r.Headers {
			size += headerWeight + int64(len(h.Key)+len(h.Value))
		}
	}
	if 2*size >= answer {
		return
	}
	for i, r := range recs {
		c := *r
		c.Key, c.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		c.Headers = slices.Clone(r.Headers)
		for j := range c.Headers {
			c.Headers[j].Value = bytes.Clone(c.Headers[j].Value)
		}
		recs[i] = &c
	}
}

// fetchRaw reads what the leader has from an offset on, without decoding it.
func (u *Upstream) fetchRaw(ctx context.Context, p Partition, topic string, offset int64, maxBytes int, isolation int8) (*kmsg.FetchResponseTopicPartition, error) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MinBytes, req.MaxWaitMillis, req.MaxBytes = 0, 0, int32(maxBytes)
	req.IsolationLevel = isolation
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = p.ID, offset, int32(maxBytes), -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := u.cl.Broker(int(p.Leader)).RetriableRequest(ctx, namedFetch{req})
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			return &resp.Topics[i].Partitions[j], nil
		}
	}
	return nil, fmt.Errorf("the answer of broker %d lacks partition %d", p.Leader, p.ID)
}
