package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// ListPartitionReassignments says that none is under way, of whatever is asked: partitions stay where they are. Tools that
// describe topics ask for it. AlterPartitionReassignments is not there.
var listPartitionReassignmentsAPI = api{
	key: 46, name: "ListPartitionReassignments", min: 0, max: 0,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrListPartitionReassignmentsRequest() },
	serve: func(_ *Server, c *call) (*response, error) {
		resp := kmsg.NewPtrListPartitionReassignmentsResponse()
		resp.Version = c.header.version
		return encode(c.header, resp), nil
	},
}
