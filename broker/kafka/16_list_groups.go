package kafka

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ListGroups lists the groups that this broker is the coordinator of: tools ask every broker.
var listGroupsAPI = api{
	key: 16, name: "ListGroups", min: 0, max: 5,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrListGroupsRequest() },
	serve:   serveListGroups,
}

// typeClassic is what Kafka calls groups of its first protocol (KIP-848).
const typeClassic = "classic"

func serveListGroups(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.ListGroupsRequest)
	resp := kmsg.NewPtrListGroupsResponse()
	resp.Version = req.Version
	wanted := func(filter []string, value string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
	}
	if !wanted(req.StatesFilter, stateEmpty) || !wanted(req.TypesFilter, typeClassic) {
		return encode(c.header, resp), nil
	}
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	groups, err := s.backend.CommittedGroups(ctx)
	if err != nil {
		resp.ErrorCode = groupCode(err)
		s.metrics.failed(resp.ErrorCode)
	}
	for _, name := range groups {
		if !s.coordinates(name) {
			continue
		}
		g := kmsg.NewListGroupsResponseGroup()
		g.Group, g.GroupState, g.GroupType = name, stateEmpty, typeClassic
		resp.Groups = append(resp.Groups, g)
	}
	return encode(c.header, resp), nil
}
