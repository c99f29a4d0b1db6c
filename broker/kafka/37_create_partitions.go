package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/broker/cluster"
)

var createPartitionsAPI = api{
	key: 37, name: "CreatePartitions", min: 0, max: 3,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrCreatePartitionsRequest() },
	serve:   serveCreatePartitions,
}

const keysRemap = "keys map to other partitions from now on, so order by key holds only within each period"

var errAssignment = errors.New("invalid replica assignment")

func serveCreatePartitions(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.CreatePartitionsRequest)
	resp := kmsg.NewPtrCreatePartitionsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, req.TimeoutMillis)
	defer cancel()
	for _, t := range req.Topics {
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = t.Topic
		if err := s.createPartitions(ctx, t, req.ValidateOnly); err != nil {
			s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		} else {
			warning := keysRemap
			out.ErrorMessage = &warning // beside code 0: a success to every client, and a warning in those that show it
		}
		resp.Topics = append(resp.Topics, out)
	}
	return encode(c.header, resp), nil
}

func (s *Server) createPartitions(ctx context.Context, t kmsg.CreatePartitionsRequestTopic, validateOnly bool) error {
	tv := s.backend.View().Topics[t.Topic]
	if tv == nil {
		return fmt.Errorf("topic %q: %w", t.Topic, cluster.ErrUnknownTopic)
	}
	if have := int32(len(tv.Partitions)); t.Count <= have {
		return fmt.Errorf("topic %q has %d partitions: a new count must be higher, got %d: %w", t.Topic, have, t.Count, cluster.ErrInvalidPartitions)
	}
	if len(t.Assignment) > 0 {
		return fmt.Errorf("topic %q: the cluster places new partitions itself: leave the assignment out: %w", t.Topic, errAssignment)
	}
	if validateOnly {
		return nil
	}
	if err := s.backend.CreatePartitions(ctx, t.Topic, t.Count); err != nil {
		return err
	}
	s.log.Warn("partitions added: "+keysRemap,
		zap.String("topic", t.Topic), zap.Int("from", len(tv.Partitions)), zap.Int32("to", t.Count))
	return nil
}
