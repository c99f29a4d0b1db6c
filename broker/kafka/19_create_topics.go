package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"sidestream/broker/cluster"
)

var createTopicsAPI = api{
	key: 19, name: "CreateTopics", min: 2, max: 7,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrCreateTopicsRequest() },
	serve:   serveCreateTopics,
}

// adminParallelism is how many topics of one request are worked on at once.
const adminParallelism = 8

func serveCreateTopics(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.CreateTopicsRequest)
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, req.TimeoutMillis)
	defer cancel()

	times := count(req.Topics, func(t kmsg.CreateTopicsRequestTopic) string { return t.Topic })
	for _, t := range req.Topics {
		if times[t.Topic] == 0 {
			continue // a name that came twice is answered once
		}
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic, out.NumPartitions, out.ReplicationFactor = t.Topic, -1, -1
		if times[t.Topic] > 1 {
			s.refuse(&out.ErrorCode, &out.ErrorMessage, namedTwice("topic", t.Topic, times[t.Topic]))
			times[t.Topic] = 0
		}
		resp.Topics = append(resp.Topics, out)
	}
	byName := map[string]kmsg.CreateTopicsRequestTopic{}
	for _, t := range req.Topics {
		byName[t.Topic] = t
	}
	var g errgroup.Group
	g.SetLimit(adminParallelism)
	for i := range resp.Topics {
		out := &resp.Topics[i]
		if out.ErrorCode != codeNone {
			continue
		}
		g.Go(func() error {
			s.createTopic(ctx, byName[out.Topic], req.ValidateOnly, out)
			return nil
		})
	}
	_ = g.Wait() // every topic carries its own error
	return encode(c.header, resp), nil
}

func (s *Server) createTopic(ctx context.Context, t kmsg.CreateTopicsRequestTopic, validateOnly bool, out *kmsg.CreateTopicsResponseTopic) {
	spec, err := topicSpec(t, validateOnly)
	if err == nil {
		err = s.backend.CheckTopic(spec.Name, spec.Configs)
	}
	if err == nil && s.backend.View().Topics[spec.Name] != nil {
		err = fmt.Errorf("topic %q: %w", spec.Name, cluster.ErrTopicExists)
	}
	var tv cluster.TopicView
	if err == nil {
		tv, err = s.backend.CreateTopic(ctx, spec)
	}
	if err != nil {
		s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		return
	}
	out.TopicID = tv.ID
	out.NumPartitions = int32(len(tv.Partitions))
	if len(tv.Partitions) > 0 {
		out.ReplicationFactor = int16(len(tv.Partitions[0].Replicas))
	} else { // only validated
		out.NumPartitions, out.ReplicationFactor = spec.Partitions, spec.Replication
	}
	out.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
	for _, e := range s.backend.TopicConfigs(&cluster.TopicView{Name: spec.Name, Configs: spec.Configs}) {
		rc := kmsg.NewCreateTopicsResponseTopicConfig()
		rc.Name, rc.Value, rc.Source = e.Name, &e.Value, int8(sourceOf(e, kmsg.ConfigSourceDynamicTopicConfig))
		out.Configs = append(out.Configs, rc)
	}
}

// topicSpec turns the request into what the cluster is asked for: a pure function.
func topicSpec(t kmsg.CreateTopicsRequestTopic, validateOnly bool) (cluster.TopicSpec, error) {
	spec := cluster.TopicSpec{Name: t.Topic, Partitions: t.NumPartitions, Replication: t.ReplicationFactor, ValidateOnly: validateOnly}
	if len(t.Configs) > 0 {
		spec.Configs = map[string]string{}
	}
	for _, c := range t.Configs {
		if c.Value == nil {
			return spec, fmt.Errorf("config %q has no value: leave it out to have the default: %w", c.Name, cluster.ErrInvalidConfig)
		}
		if _, twice := spec.Configs[c.Name]; twice {
			return spec, fmt.Errorf("config %q is named twice: %w", c.Name, errInvalidRequest)
		}
		spec.Configs[c.Name] = *c.Value
	}
	if len(t.ReplicaAssignment) > 0 {
		if t.NumPartitions != -1 || t.ReplicationFactor != -1 {
			return spec, fmt.Errorf("both a replica assignment and numbers were given: set partitions and replication factor to -1: %w", errInvalidRequest)
		}
		spec.Assignment = map[int32][]int32{}
		for _, a := range t.ReplicaAssignment {
			if _, twice := spec.Assignment[a.Partition]; twice || len(a.Replicas) == 0 {
				return spec, fmt.Errorf("partition %d of the replica assignment: name it once, with at least one broker: %w", a.Partition, errAssignment)
			}
			if r := slices.Sorted(slices.Values(a.Replicas)); len(slices.Compact(r)) < len(a.Replicas) {
				return spec, fmt.Errorf("partition %d is assigned to a broker twice: %w", a.Partition, errAssignment)
			}
			spec.Assignment[a.Partition] = a.Replicas
		}
		for i := range int32(len(spec.Assignment)) {
			if spec.Assignment[i] == nil {
				return spec, fmt.Errorf("the replica assignment lacks partition %d: number partitions from 0 without a gap: %w", i, errAssignment)
			}
		}
		return spec, nil
	}
	if spec.Partitions != -1 && spec.Partitions < 1 {
		return spec, fmt.Errorf("%d partitions: use 1 or more, or -1 for the default: %w", spec.Partitions, cluster.ErrInvalidPartitions)
	}
	if spec.Replication != -1 && spec.Replication < 1 {
		return spec, fmt.Errorf("replication factor %d: use 1 or more, or -1 for the default: %w", spec.Replication, cluster.ErrInvalidReplication)
	}
	return spec, nil
}
