package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

var deleteGroupsAPI = api{
	key: 42, name: "DeleteGroups", min: 0, max: 2,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrDeleteGroupsRequest() },
	serve:   serveDeleteGroups,
}

func serveDeleteGroups(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DeleteGroupsRequest)
	resp := kmsg.NewPtrDeleteGroupsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	first := once[string]()
	for _, group := range req.Groups {
		if !first(group) {
			continue
		}
		out := kmsg.NewDeleteGroupsResponseGroup()
		out.Group = group
		err := checkGroupID(group)
		if err == nil {
			err = s.backend.DropOffsets(ctx, group, nil)
		}
		if out.ErrorCode = groupCode(err); err != nil {
			s.metrics.failed(out.ErrorCode)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return encode(c.header, resp), nil
}
