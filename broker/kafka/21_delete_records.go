package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/commitlog"
)

var deleteRecordsAPI = api{
	key: 21, name: "DeleteRecords", min: 0, max: 2,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrDeleteRecordsRequest() },
	serve:   serveDeleteRecords,
}

func serveDeleteRecords(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DeleteRecordsRequest)
	resp := kmsg.NewPtrDeleteRecordsResponse()
	resp.Version = req.Version
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition = p.Partition
			start, err := s.deleteRecords(t.Topic, p.Partition, p.Offset)
			if rp.LowWatermark = start; err != nil {
				rp.LowWatermark, rp.ErrorCode = -1, codeOf(err)
				s.metrics.failed(rp.ErrorCode)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return encode(c.header, resp), nil
}

// deleteRecords moves a log's start up to the offset, -1 for the high watermark, and returns where it is then.
func (s *Server) deleteRecords(topic string, index int32, offset int64) (start int64, err error) {
	p, err := s.backend.Partition(topic, index)
	if err != nil {
		return -1, err
	}
	at := p.Offsets()
	if offset == -1 {
		offset = at.HighWatermark
	}
	if offset < 0 || offset > at.HighWatermark {
		return -1, fmt.Errorf("offset %d: use 0 to the high watermark, %d: %w", offset, at.HighWatermark, commitlog.ErrOutOfRange)
	}
	if err := p.DeleteBefore(offset); err != nil {
		return -1, err
	}
	return p.Offsets().Start, nil
}
