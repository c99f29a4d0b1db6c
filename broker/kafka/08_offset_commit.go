package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

// OffsetCommit is served for consumers that are no members of a group (generation -1). Any broker takes it; the answer
// waits until the offsets are stored.
var offsetCommitAPI = api{
	key: 8, name: "OffsetCommit", min: 2, max: 9,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrOffsetCommitRequest() },
	serve:   serveOffsetCommit,
}

func serveOffsetCommit(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.OffsetCommitRequest)
	resp := kmsg.NewPtrOffsetCommitResponse()
	resp.Version = req.Version
	refused := checkCommit(req)
	view := s.backend.View()
	offsets := map[cluster.PartitionID]cluster.CommittedOffset{}
	var stored []*int16 // the error codes of what is to be stored
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		rt.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(t.Partitions))
		for i, p := range t.Partitions {
			rp := &rt.Partitions[i]
			rp.Partition = p.Partition
			id, err := committable(view.Topics[t.Topic], p)
			if refused != nil {
				err = refused
			}
			if err != nil {
				rp.ErrorCode = codeOf(err)
				s.metrics.failed(rp.ErrorCode)
				continue
			}
			o := cluster.CommittedOffset{Offset: p.Offset, LeaderEpoch: p.LeaderEpoch}
			if req.Version < 6 {
				o.LeaderEpoch = -1
			}
			if p.Metadata != nil {
				o.Metadata = *p.Metadata
			}
			offsets[id] = o
			stored = append(stored, &rp.ErrorCode)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(offsets) > 0 {
		ctx, cancel := s.clusterContext(c.ctx, 0)
		defer cancel()
		if err := s.backend.CommitOffsets(ctx, req.Group, offsets); err != nil {
			s.metrics.failed(groupCode(err))
			for _, code := range stored {
				*code = groupCode(err)
			}
		}
	}
	return encode(c.header, resp), nil
}

// checkCommit refuses a commit as a whole.
func checkCommit(req *kmsg.OffsetCommitRequest) error {
	if err := checkGroupID(req.Group); err != nil {
		return err
	}
	if req.Generation >= 0 {
		return fmt.Errorf("generation %d: groups have no members here: commit with generation -1: %w", req.Generation, errGeneration)
	}
	return nil
}

// committable is what a partition's offset is stored under, or why it cannot be.
func committable(t *cluster.TopicView, p kmsg.OffsetCommitRequestTopicPartition) (cluster.PartitionID, error) {
	switch {
	case t == nil || p.Partition < 0 || int(p.Partition) >= len(t.Partitions):
		return cluster.PartitionID{}, ErrUnknownPartition
	case p.Metadata != nil && len(*p.Metadata) > maxOffsetMetadata:
		return cluster.PartitionID{}, errMetadataSize
	}
	return cluster.PartitionID{Topic: t.ID, Partition: p.Partition}, nil
}
