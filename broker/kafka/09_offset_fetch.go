package kafka

import (
	"context"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

var offsetFetchAPI = api{
	key: 9, name: "OffsetFetch", min: 1, max: 9,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrOffsetFetchRequest() },
	serve:   serveOffsetFetch,
}

// fetchByGroups is the first version that names several groups (KIP-709).
const fetchByGroups = 8

func serveOffsetFetch(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.OffsetFetchRequest)
	resp := kmsg.NewPtrOffsetFetchResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	if req.Version >= fetchByGroups {
		times := count(req.Groups, func(g kmsg.OffsetFetchRequestGroup) string { return g.Group })
		first := once[string]()
		for _, g := range req.Groups {
			switch {
			case !first(g.Group):
			case times[g.Group] > 1: // of which topics each time, only the answers would tell
				out := kmsg.NewOffsetFetchResponseGroup()
				out.Group, out.ErrorCode = g.Group, codeInvalidRequest
				s.metrics.failed(out.ErrorCode)
				resp.Groups = append(resp.Groups, out)
			default:
				resp.Groups = append(resp.Groups, s.fetchOffsets(ctx, g))
			}
		}
		return encode(c.header, resp), nil
	}
	got := s.fetchOffsets(ctx, oneGroup(req))
	resp.ErrorCode = got.ErrorCode
	for _, t := range got.Topics {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return encode(c.header, resp), nil
}

// oneGroup is an older request in the form of the newer ones.
func oneGroup(req *kmsg.OffsetFetchRequest) kmsg.OffsetFetchRequestGroup {
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = req.Group
	if req.Topics == nil && req.Version >= 2 {
		return g // all that there is
	}
	g.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
	for _, t := range req.Topics {
		gt := kmsg.NewOffsetFetchRequestGroupTopic()
		gt.Topic, gt.Partitions = t.Topic, t.Partitions
		g.Topics = append(g.Topics, gt)
	}
	return g
}

// fetchOffsets answers for one group: without topics all that it has.
func (s *Server) fetchOffsets(ctx context.Context, g kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	out := kmsg.NewOffsetFetchResponseGroup()
	out.Group = g.Group
	offsets, err := s.committedByName(ctx, g.Group)
	if err != nil {
		out.ErrorCode = groupCode(err)
		s.metrics.failed(out.ErrorCode)
	}
	if g.Topics == nil {
		for _, name := range slices.Sorted(maps.Keys(offsets)) {
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic = name
			for _, p := range slices.Sorted(maps.Keys(offsets[name])) {
				rt.Partitions = append(rt.Partitions, fetchedOffset(p, offsets[name], 0))
			}
			out.Topics = append(out.Topics, rt)
		}
		return out
	}
	for _, t := range g.Topics {
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			// Versions before 2 have no error but this one.
			rt.Partitions = append(rt.Partitions, fetchedOffset(p, offsets[t.Topic], out.ErrorCode))
		}
		out.Topics = append(out.Topics, rt)
	}
	return out
}

// fetchedOffset is one partition's answer; offset -1 says that nothing is stored.
func fetchedOffset(partition int32, offsets map[int32]cluster.CommittedOffset, code int16) kmsg.OffsetFetchResponseGroupTopicPartition {
	rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.ErrorCode = partition, -1, -1, code
	metadata := ""
	if o, ok := offsets[partition]; ok {
		rp.Offset, rp.LeaderEpoch, metadata = o.Offset, o.LeaderEpoch, o.Metadata
	}
	rp.Metadata = &metadata
	return rp
}
