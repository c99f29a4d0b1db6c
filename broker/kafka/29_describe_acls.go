package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeAcls says that there are none to describe, as Kafka's broker does without an authorizer: consoles and operators
// ask first, and take an unknown request for a broken broker. CreateAcls and DeleteAcls are not there.
var describeAclsAPI = api{
	key: 29, name: "DescribeAcls", min: 0, max: 3,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrDescribeACLsRequest() },
	serve: func(s *Server, c *call) (*response, error) {
		resp := kmsg.NewPtrDescribeACLsResponse()
		resp.Version = c.header.version
		s.refuse(&resp.ErrorCode, &resp.ErrorMessage, errNoSecurity)
		return encode(c.header, resp), nil
	},
}

var errNoSecurity = errors.New("there are no ACLs: this broker has no authorizer")
