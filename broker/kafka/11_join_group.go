package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// JoinGroup is refused, and not listed by ApiVersions, which is what new clients go by. Old ones (kafka-python 2.0,
// whatever speaks the versions of a configured release) send it all the same: they try again for ever when the
// connection is closed, and stop at an error that is not retriable.
var joinGroupAPI = api{
	key: 11, name: "JoinGroup", min: 0, max: 9,
	hidden:  true,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrJoinGroupRequest() },
	serve: func(s *Server, c *call) (*response, error) {
		resp := kmsg.NewPtrJoinGroupResponse()
		resp.Version = c.header.version
		resp.ErrorCode = codeInvalidRequest
		s.metrics.failed(resp.ErrorCode)
		return encode(c.header, resp), nil
	},
}
