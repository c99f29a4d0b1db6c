package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	times := count(req.Topics, func(t kmsg.CreatePartitionsRequestTopic) string { return t.Topic })
	first := once[string]()
	for _, t := range req.Topics {
		if !first(t.Topic) {
			continue
		}
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = t.Topic
		if n := times[t.Topic]; n > 1 {
			s.refuse(&out.ErrorCode, &out.ErrorMessage, namedTwice("topic", t.Topic, n))
		} else if err := s.createPartitions(ctx, t, req.ValidateOnly); err != nil {
			s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		} else {
			warning := keysRemap
			out.ErrorMessage = &warning // beside code 0: a success to every client, and a warning in those that show it
		}
		resp.Topics = append(resp.Topics, out)
	}
	return encode(c.header, resp), nil
}

// newReplicas reads where the partitions beyond the present ones are to be: nothing when the request leaves that open.
func newReplicas(t kmsg.CreatePartitionsRequestTopic, have int32, view *cluster.View) (assignment [][]int32, err error) {
	if len(t.Assignment) == 0 {
		return nil, nil
	}
	if n := t.Count - have; int(n) != len(t.Assignment) {
		return nil, fmt.Errorf("topic %q gets %d partitions, and %d are assigned: assign each new one, or none: %w", t.Topic, n, len(t.Assignment), errAssignment)
	}
	for i, a := range t.Assignment {
		if len(a.Replicas) == 0 {
			return nil, fmt.Errorf("partition %d is assigned to no broker: %w", have+int32(i), errAssignment)
		}
		for k, id := range a.Replicas {
			if slices.Contains(a.Replicas[:k], id) {
				return nil, fmt.Errorf("partition %d is assigned to broker %d twice: %w", have+int32(i), id, errAssignment)
			}
			if _, ok := view.Node(id); !ok {
				return nil, fmt.Errorf("partition %d is assigned to broker %d, which is not registered: %w", have+int32(i), id, errAssignment)
			}
		}
		assignment = append(assignment, a.Replicas)
	}
	return assignment, nil
}

func (s *Server) createPartitions(ctx context.Context, t kmsg.CreatePartitionsRequestTopic, validateOnly bool) error {
	tv := s.backend.View().Topics[t.Topic]
	if tv == nil {
		return fmt.Errorf("topic %q: %w", t.Topic, cluster.ErrUnknownTopic)
	}
	if have := int32(len(tv.Partitions)); t.Count <= have {
		return fmt.Errorf("topic %q has %d partitions: a new count must be higher, got %d: %w", t.Topic, have, t.Count, cluster.ErrInvalidPartitions)
	}
	assignment, err := newReplicas(t, int32(len(tv.Partitions)), s.backend.View())
	if err != nil || validateOnly {
		return err
	}
	if err := s.backend.CreatePartitions(ctx, t.Topic, t.Count, assignment...); err != nil {
		return err
	}
	s.log.Warn("partitions added: "+keysRemap,
		zap.String("topic", t.Topic), zap.Int("from", len(tv.Partitions)), zap.Int32("to", t.Count))
	return nil
}
