package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// HeaderID is the header of records that must be found again when it is not
// known whether they were written: its value is theirs alone. A record may have
// several, of those who each must find it: a repeated request, and the spool.
const HeaderID = "sidestream-id"

const (
	findBytes = 4 << 20 // of one fetch
	findPause = 50 * time.Millisecond
)

// Find looks for records by their HeaderID in a partition, from an offset on to
// where the partition ended when it was asked, whether they are committed or
// not. found has the offset of each that is there, of the first where there are
// several; it stops early once all are found. end is where it stopped looking.
// An offset below the log's start is moved to it, one above the end finds nothing.
//
// Errors are *api.Error: topic_not_found and partition_not_found;
// brokers_unavailable when the leader is away or ctx is over;
// corrupt_record when ids are missing and some records could not be read, so
// that they may be among those: found is right in that case too.
func (u *Upstream) Find(ctx context.Context, topic string, partition int32, from int64, ids map[string]struct{}) (found map[string]int64, end int64, err error) {
	found = map[string]int64{}
	p, err := u.leaderOf(ctx, topic, partition)
	if err != nil {
		return found, from, err
	}
	end, err = u.writtenEnd(ctx, topic, p)
	if err != nil {
		return found, from, err
	}
	// What the leader has and its replicas lack is not shown before they have it.
	if appended, err := u.offsetAs(ctx, topic, p, tsLatest, debugReplica); err == nil {
		end = max(end, appended)
	}
	var unread error
	for next := max(from, 0); next < end && len(found) < len(ids); {
		after, corrupt, err := u.findOnce(ctx, topic, p, next, func(id string, offset int64) {
			if _, wanted := ids[id]; wanted {
				if _, again := found[id]; !again {
					found[id] = offset
				}
			}
		})
		if err != nil {
			return found, next, err
		}
		if corrupt != nil {
			unread = corruptRecord(corrupt.Error())
			after = max(after, corrupt.After)
		}
		if after <= next { // the leader does not show it yet
			select {
			case <-time.After(findPause):
			case <-ctx.Done():
				return found, next, unavailable(fmt.Sprintf("partition %d of topic %s was not read to its end in time", partition, topic))
			}
		}
		next = max(after, next)
	}
	if unread != nil && len(found) < len(ids) {
		return found, end, unread
	}
	return found, end, nil
}

// leaderOf is a partition with a leader, asked for anew when none is known.
func (u *Upstream) leaderOf(ctx context.Context, topic string, partition int32) (Partition, error) {
	t, err := u.Topic(ctx, topic)
	if p, ok := t.Partition(partition); err == nil && ok && p.Leader >= 0 {
		return p, nil
	}
	if t, err = u.Refresh(ctx, topic); err != nil {
		return Partition{}, err
	}
	p, ok := t.Partition(partition)
	switch {
	case !ok:
		return p, api.NewError(api.CodePartitionNotFound, fmt.Sprintf("topic %s has no partition %d: it has %d, from 0", topic, partition, len(t.Partitions)))
	case p.Leader < 0:
		return p, unavailable(fmt.Sprintf("partition %d of topic %s has no leader", partition, topic))
	}
	return p, nil
}

// WrittenEnd asks the leader where a partition ends, with what is not committed:
// a record that is sent later has that offset or a higher one. Errors are as of
// Find.
func (u *Upstream) WrittenEnd(ctx context.Context, topic string, partition int32) (int64, error) {
	p, err := u.leaderOf(ctx, topic, partition)
	if err != nil {
		return 0, err
	}
	return u.writtenEnd(ctx, topic, p)
}

// writtenEnd asks the leader for it. One that has just been elected may know less
// than the one before it had acknowledged: it says so in place of an offset
// (KIP-207), and that is an error.
func (u *Upstream) writtenEnd(ctx context.Context, topic string, p Partition) (int64, error) {
	return u.offsetAt(ctx, topic, p, tsLatest)
}

func (u *Upstream) offsetAt(ctx context.Context, topic string, p Partition, ts int64) (int64, error) {
	return u.offsetAs(ctx, topic, p, ts, consumer)
}

// Replica ids with a meaning, from Kafka's ListOffsetsRequest: a consumer is told
// of what all in-sync replicas have, the debugging one of what the broker has.
// Brokers that do not know the latter tell it what they tell consumers, or fail.
const (
	consumer     = -1
	debugReplica = -2
)

func (u *Upstream) offsetAs(ctx context.Context, topic string, p Partition, ts int64, replica int32) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = p.ID, ts
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rt.Partitions = append(rt.Partitions, rp)
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = replica
	req.IsolationLevel = readUncommitted
	req.Topics = append(req.Topics, rt)
	kresp, err := u.cl.Broker(int(p.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, u.unreachable(err)
	}
	topics := kresp.(*kmsg.ListOffsetsResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return 0, unavailable(fmt.Sprintf("the answer of broker %d lacks partition %d of topic %s", p.Leader, p.ID, topic))
	}
	at := topics[0].Partitions[0]
	if err := kerr.ErrorForCode(at.ErrorCode); err != nil {
		return 0, u.partitionError(ctx, topic, p.ID, err)
	}
	return at.Offset, nil
}

// partitionError is what a leader's error for a partition means. The next call
// asks for the leader anew.
func (u *Upstream) partitionError(ctx context.Context, topic string, partition int32, err error) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return topicError(topic, kerr.TopicAuthorizationFailed.Code)
	}
	if _, gone := u.Refresh(ctx, topic); errors.Is(gone, api.NewError(api.CodeTopicNotFound, "")) {
		return gone
	}
	return unavailable(fmt.Sprintf("partition %d of topic %s: %v", partition, topic, err))
}

// findOnce visits the ids in what one fetch brings, and tells where to go on.
func (u *Upstream) findOnce(ctx context.Context, topic string, p Partition, offset int64, visit func(id string, offset int64)) (int64, *CorruptError, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	rp, err := u.fetchRaw(ctx, p, topic, offset, findBytes, readUncommitted)
	if err != nil {
		return 0, nil, u.unreachable(err)
	}
	claim := u.unpacking.Claim()
	defer claim.Release()
	// Without a list of aborted transactions in the answer none is left out.
	d, err := u.unpacking.Decode(ctx, claim, Answer{Topic: topic, Partition: p.ID, Offset: offset, End: -1, Room: findBytes}, rp)
	if err != nil {
		return 0, nil, notUnpacked(topic, p.ID, err)
	}
	switch fp := d.Part; {
	case errors.Is(fp.Err, kerr.OffsetOutOfRange): // retention has removed it
		start, err := u.offsetAt(ctx, topic, p, tsEarliest)
		if err == nil && start <= offset {
			err = unavailable(fmt.Sprintf("partition %d of topic %s: its leader has not got offset %d", p.ID, topic, offset))
		}
		return start, nil, err
	case errors.Is(fp.Err, kerr.CorruptMessage):
		return offset + 1, &CorruptError{Topic: topic, Partition: p.ID, Offset: offset, After: offset + 1, Why: fp.Err.Error()}, nil
	case fp.Err != nil:
		return 0, nil, u.partitionError(ctx, topic, p.ID, fp.Err)
	}
	for _, r := range d.Part.Records {
		for _, h := range r.Headers {
			if h.Key == HeaderID {
				visit(string(h.Value), r.Offset)
			}
		}
	}
	return d.Next, d.Corrupt, nil
}
