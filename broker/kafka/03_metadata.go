package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/broker/cluster"
)

var metadataAPI = api{
	key: 3, name: "Metadata", min: 0, max: 12,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrMetadataRequest() },
	serve:   serveMetadata,
}

// noAuthorizedOperations says that they were not asked for or are not known (KIP-430).
const noAuthorizedOperations = -2147483648

func serveMetadata(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.MetadataRequest)
	view := s.backend.View()
	refused := map[string]error{}
	if missing := s.toCreate(req, view); len(missing) > 0 {
		if !c.mayBlock {
			return nil, errWouldBlock
		}
		ctx, cancel := s.clusterContext(c.ctx, 0)
		defer cancel()
		refused = s.autoCreate(ctx, missing)
		view = s.backend.View()
	}
	return encode(c.header, metadata(req, view, refused)), nil
}

// toCreate lists the named topics that are unknown and that both this broker and the client want created.
func (s *Server) toCreate(req *kmsg.MetadataRequest, view *cluster.View) []string {
	if !s.cfg.AutoCreateTopics || (req.Version >= 4 && !req.AllowAutoTopicCreation) {
		return nil
	}
	var names []string
	first := once[string]()
	for _, t := range req.Topics {
		if t.Topic != nil && view.Topics[*t.Topic] == nil && !internal(*t.Topic) && first(*t.Topic) {
			names = append(names, *t.Topic)
		}
	}
	return names
}

// internal tells whether a name is of those that Kafka's brokers give to their own topics (__consumer_offsets,
// __transaction_state). Clients look at them whether they are there or not, and an empty one with our defaults is not
// what they are looking for. Who creates one on purpose may.
func internal(topic string) bool { return strings.HasPrefix(topic, "__") }

// autoCreate creates topics and returns those that could not be, each with the reason.
func (s *Server) autoCreate(ctx context.Context, names []string) map[string]error {
	refused := map[string]error{}
	for _, name := range names {
		err := s.backend.CheckTopic(name, nil)
		if err == nil {
			_, err = s.backend.CreateTopic(ctx, cluster.TopicSpec{Name: name, Partitions: s.cfg.AutoCreatePartitions, Replication: -1})
		}
		switch {
		case err == nil || errors.Is(err, cluster.ErrTopicExists):
			s.log.Info("topic created because a client asked for its metadata", zap.String("topic", name))
			if s.backend.View().Topics[name] == nil {
				refused[name] = errNoLeaderYet // the view lags: the client asks again
			}
		case errors.Is(err, cluster.ErrInvalidName):
			refused[name] = err
		default:
			s.complain("auto_create", "topic could not be created for a client that asked for its metadata", zap.String("topic", name), zap.Error(err))
			refused[name] = errNoLeaderYet
		}
	}
	return refused
}

var errNoLeaderYet = errors.New("leader not available")

// metadata answers from a view: a pure function.
func metadata(req *kmsg.MetadataRequest, view *cluster.View, refused map[string]error) *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version = req.Version
	resp.ClusterID = &view.ClusterID
	resp.ControllerID = view.Controller
	resp.AuthorizedOperations = noAuthorizedOperations
	for _, n := range view.Brokers {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = n.ID, n.Host, n.Port
		if n.Rack != "" {
			b.Rack = &n.Rack
		}
		resp.Brokers = append(resp.Brokers, b)
	}
	// All topics: an empty list in version 0, a null one since.
	if all := req.Topics == nil || (req.Version == 0 && len(req.Topics) == 0); all {
		for _, name := range slices.Sorted(maps.Keys(view.Topics)) {
			resp.Topics = append(resp.Topics, metadataTopic(view, view.Topics[name]))
		}
		return resp
	}
	first := once[[2]string]()
	for _, t := range req.Topics {
		key := [2]string{named(t.Topic)}
		if t.Topic == nil {
			key[1] = string(t.TopicID[:])
		}
		if first(key) {
			resp.Topics = append(resp.Topics, metadataNamed(view, t, refused))
		}
	}
	return resp
}

// metadataNamed answers for a topic that was asked for by name or, without a name, by UUID.
func metadataNamed(view *cluster.View, t kmsg.MetadataRequestTopic, refused map[string]error) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.AuthorizedOperations = noAuthorizedOperations
	if t.Topic == nil {
		if tv := view.TopicByID(t.TopicID); tv != nil {
			return metadataTopic(view, tv)
		}
		out.TopicID, out.ErrorCode = t.TopicID, codeUnknownTopicID
		if view.Partial {
			out.ErrorCode = codeLeaderNotAvailable
		}
		return out
	}
	if tv := view.Topics[*t.Topic]; tv != nil {
		return metadataTopic(view, tv)
	}
	out.Topic, out.ErrorCode = t.Topic, codeUnknownTopicOrPartition
	if view.Partial {
		out.ErrorCode = codeLeaderNotAvailable // that it is not there would be believed
	}
	if err := refused[*t.Topic]; err != nil {
		out.ErrorCode = codeOf(err)
	}
	return out
}

func metadataTopic(view *cluster.View, tv *cluster.TopicView) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID = &tv.Name, tv.ID
	out.AuthorizedOperations = noAuthorizedOperations
	if len(tv.Partitions) == 0 {
		out.ErrorCode = codeLeaderNotAvailable // never an empty list without an error: clients take it for a topic of none
	}
	for i, p := range tv.Partitions {
		o := kmsg.NewMetadataResponseTopicPartition()
		o.Partition, o.Leader, o.LeaderEpoch = int32(i), p.Leader, p.Epoch
		o.Replicas, o.ISR = p.Replicas, p.ISR
		if _, there := view.Node(p.Leader); !there {
			o.Leader, o.ErrorCode = -1, codeLeaderNotAvailable
		}
		for _, r := range p.Replicas {
			if _, there := view.Node(r); !there {
				o.OfflineReplicas = append(o.OfflineReplicas, r)
			}
		}
		out.Partitions = append(out.Partitions, o)
	}
	return out
}
