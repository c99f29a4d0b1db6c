package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/broker/cluster"
)

var deleteTopicsAPI = api{
	key: 20, name: "DeleteTopics", min: 1, max: 6,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrDeleteTopicsRequest() },
	serve:   serveDeleteTopics,
}

func serveDeleteTopics(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DeleteTopicsRequest)
	resp := kmsg.NewPtrDeleteTopicsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, req.TimeoutMillis)
	defer cancel()

	asked := req.Topics
	for i := range req.TopicNames {
		asked = append(asked, kmsg.DeleteTopicsRequestTopic{Topic: &req.TopicNames[i]})
	}
	for _, t := range asked {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		err := s.nameTopic(t, &out)
		if err == nil {
			err = s.backend.DeleteTopic(ctx, *out.Topic)
		}
		if err == nil {
			s.log.Info("topic deleted at a client's request", zap.String("topic", *out.Topic), s.field(c))
		} else {
			s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return encode(c.header, resp), nil
}

// nameTopic fills in the name of a topic that is asked for by UUID and the UUID of one that is asked for by name.
func (s *Server) nameTopic(t kmsg.DeleteTopicsRequestTopic, out *kmsg.DeleteTopicsResponseTopic) error {
	view := s.backend.View()
	if t.Topic == nil {
		tv := view.TopicByID(t.TopicID)
		if tv == nil {
			return fmt.Errorf("topic id %s: %w", cluster.UUID(t.TopicID), ErrUnknownTopicID)
		}
		out.Topic = &tv.Name
		return nil
	}
	tv := view.Topics[*t.Topic]
	if tv == nil {
		return fmt.Errorf("topic %q: %w", *t.Topic, cluster.ErrUnknownTopic)
	}
	out.TopicID = tv.ID
	return nil
}
