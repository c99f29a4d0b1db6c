package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Timestamps with a meaning, from the Kafka protocol guide, ListOffsets.
const (
	tsLatest   = -1
	tsEarliest = -2
)

// StartOffsets are the log start offsets by partition. Partitions whose leader
// is away are left out and reported by a *PartialError beside the answer;
// errors otherwise are as of Topic. The same holds for EndOffsets and OffsetsAt.
func (u *Upstream) StartOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return u.listOffsets(ctx, topic, tsEarliest)
}

// EndOffsets are the ends for a read_committed reader: the last stable offsets.
func (u *Upstream) EndOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return u.listOffsets(ctx, topic, tsLatest)
}

// OffsetsAt are the first offsets whose timestamp is at or after t; the end
// offset where there is none.
func (u *Upstream) OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error) {
	at, err := u.listOffsets(ctx, topic, max(0, t.UnixMilli()))
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	past := false
	for _, o := range at {
		past = past || o < 0
	}
	if !past {
		return at, err
	}
	ends, endErr := u.EndOffsets(ctx, topic)
	var endPartial *PartialError
	if endErr != nil && !errors.As(endErr, &endPartial) {
		return nil, endErr
	}
	for p, o := range at {
		if o >= 0 {
			continue
		}
		if end, ok := ends[p]; ok {
			at[p] = end
			continue
		}
		delete(at, p)
		if partial == nil {
			partial = &PartialError{Topic: topic, Partitions: map[int32]error{}}
		}
		partial.Partitions[p] = errNoAnswer
		if endPartial != nil && endPartial.Partitions[p] != nil {
			partial.Partitions[p] = endPartial.Partitions[p]
		}
	}
	if partial != nil {
		return at, partial
	}
	return at, nil
}

var (
	errNoLeader = errors.New("it has no leader")
	errNoAnswer = errors.New("its leader did not answer")
)

func (u *Upstream) listOffsets(ctx context.Context, topic string, ts int64) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	t, err := u.Topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	failed := map[int32]error{}
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			failed[p.ID] = errNoLeader
			continue
		}
		failed[p.ID] = errNoAnswer // until it does
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.ID, ts
		rt.Partitions = append(rt.Partitions, rp)
	}
	offsets := make(map[int32]int64, len(t.Partitions))
	if len(rt.Partitions) > 0 {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		req.IsolationLevel = 1 // read_committed
		req.Topics = append(req.Topics, rt)
		for _, shard := range u.cl.RequestSharded(ctx, req) {
			if shard.Err != nil {
				for _, st := range shard.Req.(*kmsg.ListOffsetsRequest).Topics {
					for _, sp := range st.Partitions {
						failed[sp.Partition] = shard.Err
					}
				}
				continue
			}
			for _, st := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
				for _, sp := range st.Partitions {
					if err := kerr.ErrorForCode(sp.ErrorCode); err != nil {
						failed[sp.Partition] = err
						continue
					}
					delete(failed, sp.Partition)
					offsets[sp.Partition] = sp.Offset
				}
			}
		}
	}
	if len(failed) > 0 {
		return offsets, &PartialError{Topic: topic, Partitions: failed}
	}
	return offsets, nil
}
