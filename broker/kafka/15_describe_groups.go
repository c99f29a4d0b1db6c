package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// DescribeGroups says of a group with stored offsets that it is empty, since it has no members here, and of any other
// that it is dead, as Kafka does.
var describeGroupsAPI = api{
	key: 15, name: "DescribeGroups", min: 0, max: 5,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrDescribeGroupsRequest() },
	serve:   serveDescribeGroups,
}

func serveDescribeGroups(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DescribeGroupsRequest)
	resp := kmsg.NewPtrDescribeGroupsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	first := once[string]() // each is a question to the store
	for _, group := range req.Groups {
		if !first(group) {
			continue
		}
		out := kmsg.NewDescribeGroupsResponseGroup()
		out.Group, out.State, out.AuthorizedOperations = group, stateEmpty, noAuthorizedOperations
		offsets, err := s.committedByName(ctx, group)
		switch {
		case err != nil:
			out.State, out.ErrorCode = stateDead, groupCode(err)
			s.metrics.failed(out.ErrorCode)
		case len(offsets) == 0:
			out.State = stateDead
		}
		resp.Groups = append(resp.Groups, out)
	}
	return encode(c.header, resp), nil
}
