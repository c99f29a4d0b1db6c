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
	// Each is found before any is deleted, since one may be named by its name and by its id.
	found := make([]kmsg.DeleteTopicsResponseTopic, len(asked))
	errs := make([]error, len(asked))
	for i, t := range asked {
		out := &found[i]
		*out = kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		errs[i] = s.nameTopic(t, out)
	}
	times := count(found, func(t kmsg.DeleteTopicsResponseTopic) string { return named(t.Topic) })
	first := once[string]()
	for i, out := range found {
		err := errs[i]
		if name := named(out.Topic); name != "" { // else it has an error
			if !first(name) {
				continue
			}
			if n := times[name]; n > 1 {
				err = namedTwice("topic", name, n)
			}
		}
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

// named is the name, "" where it is not known.
func named(topic *string) string {
	if topic == nil {
		return ""
	}
	return *topic
}

// nameTopic fills in the name of a topic that is asked for by UUID and the UUID of one that is asked for by name.
func (s *Server) nameTopic(t kmsg.DeleteTopicsRequestTopic, out *kmsg.DeleteTopicsResponseTopic) error {
	view := s.backend.View()
	if t.Topic != nil && t.TopicID != [16]byte{} {
		return fmt.Errorf("topic %q is named by its id %s as well: use one of them: %w", *t.Topic, cluster.UUID(t.TopicID), errInvalidRequest)
	}
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
