package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// OffsetForLeaderEpoch tells clients whether the log was cut since they last read it (KIP-320).
var offsetForLeaderEpochAPI = api{
	key: 23, name: "OffsetForLeaderEpoch", min: 2, max: 4,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrOffsetForLeaderEpochRequest() },
	serve:   serveOffsetForLeaderEpoch,
}

func serveOffsetForLeaderEpoch(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.OffsetForLeaderEpochRequest)
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	resp.Version = req.Version
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, -1, -1
			part, err := s.backend.Partition(t.Topic, p.Partition)
			if err == nil {
				err = checkEpoch(p.CurrentLeaderEpoch, part.Epoch())
			}
			if err != nil {
				rp.ErrorCode = codeOf(err)
				s.metrics.failed(rp.ErrorCode)
			} else {
				rp.LeaderEpoch, rp.EndOffset = part.EpochEnd(p.LeaderEpoch)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return encode(c.header, resp), nil
}
