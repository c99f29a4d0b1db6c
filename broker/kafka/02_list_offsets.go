package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var listOffsetsAPI = api{
	key: 2, name: "ListOffsets", min: 1, max: 7,
	kind:    waiting, // by time it reads index and log
	request: func() kmsg.Request { return kmsg.NewPtrListOffsetsRequest() },
	serve:   serveListOffsets,
}

// Timestamps that ask for a place, not a time (Kafka protocol guide, ListOffsets; -3 is KIP-734).
const (
	offsetLatest       = -1
	offsetEarliest     = -2
	offsetMaxTimestamp = -3
)

func serveListOffsets(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.ListOffsetsRequest)
	resp := kmsg.NewPtrListOffsetsResponse()
	resp.Version = req.Version
	times := map[string]map[int32]int{}
	for _, t := range req.Topics {
		if times[t.Topic] == nil {
			times[t.Topic] = map[int32]int{}
		}
		for _, p := range t.Partitions {
			times[t.Topic][p.Partition]++
		}
	}
	for _, t := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition = p.Partition
			var err error
			if times[t.Topic][p.Partition] > 1 { // as Kafka's broker, for whose clients the answers would be one
				err = errInvalidRequest
			} else {
				rp.Offset, rp.Timestamp, rp.LeaderEpoch, err = s.listOffset(t.Topic, p)
			}
			if err != nil {
				rp.Offset, rp.Timestamp, rp.LeaderEpoch = -1, -1, -1
				rp.ErrorCode = codeOf(err)
				s.metrics.failed(rp.ErrorCode)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return encode(c.header, resp), nil
}

// listOffset answers for one partition. What lies at or above the high watermark is not there yet for a consumer, of
// whatever isolation level: without transactions the last stable offset is the high watermark.
func (s *Server) listOffset(topic string, req kmsg.ListOffsetsRequestTopicPartition) (offset, timestamp int64, epoch int32, err error) {
	p, err := s.backend.Partition(topic, req.Partition)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := checkEpoch(req.CurrentLeaderEpoch, p.Epoch()); err != nil {
		return 0, 0, 0, err
	}
	at := p.Offsets()
	switch {
	case req.Timestamp == offsetLatest:
		return at.HighWatermark, -1, p.Epoch(), nil
	case req.Timestamp == offsetEarliest:
		return at.Start, -1, p.EpochAt(at.Start), nil
	case req.Timestamp == offsetMaxTimestamp:
		offset, timestamp, epoch, err = p.MaxTimestamp()
	case req.Timestamp >= 0:
		offset, timestamp, epoch, err = p.OffsetByTime(req.Timestamp)
	default:
		return 0, 0, 0, fmt.Errorf("timestamp %d: %w", req.Timestamp, errUnsupported)
	}
	if err == nil && (offset < 0 || offset >= at.HighWatermark) {
		offset, timestamp, epoch = -1, -1, -1
	}
	return offset, timestamp, epoch, err
}

// checkEpoch compares the leader epoch that a client knows (-1: none) with the one the partition is led under.
func checkEpoch(client, leader int32) error {
	switch {
	case client < 0 || client == leader:
		return nil
	case client < leader:
		return ErrFencedEpoch
	default:
		return ErrUnknownEpoch
	}
}
