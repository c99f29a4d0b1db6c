package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

var offsetDeleteAPI = api{
	key: 47, name: "OffsetDelete", min: 0, max: 0,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrOffsetDeleteRequest() },
	serve:   serveOffsetDelete,
}

func serveOffsetDelete(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.OffsetDeleteRequest)
	resp := kmsg.NewPtrOffsetDeleteResponse()
	resp.Version = req.Version
	view := s.backend.View()
	which := []cluster.PartitionID{}
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetDeleteResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetDeleteResponseTopicPartition()
			rp.Partition = p.Partition
			tv := view.Topics[t.Topic]
			if tv == nil || p.Partition < 0 || int(p.Partition) >= len(tv.Partitions) {
				rp.ErrorCode = codeUnknownTopicOrPartition
				s.metrics.failed(rp.ErrorCode)
			} else {
				which = append(which, cluster.PartitionID{Topic: tv.ID, Partition: p.Partition})
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	err := checkGroupID(req.Group)
	if err == nil {
		err = s.backend.DropOffsets(ctx, req.Group, which)
	}
	if err != nil {
		resp.ErrorCode, resp.Topics = groupCode(err), nil
		s.metrics.failed(resp.ErrorCode)
	}
	return encode(c.header, resp), nil
}
