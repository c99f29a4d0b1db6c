package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// FindCoordinator is served so that clients fail fast and know why. (librdkafka also takes its presence as the sign
// that the broker understands LZ4.)
var findCoordinatorAPI = api{
	key: 10, name: "FindCoordinator", min: 0, max: 4,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrFindCoordinatorRequest() },
	serve: func(s *Server, c *call) (*response, error) {
		s.metrics.failed(codeInvalidRequest)
		return encode(c.header, findCoordinator(c.req.(*kmsg.FindCoordinatorRequest))), nil
	},
}

const (
	noGroups       = "subscribe() groups belong to the Sidestream sidecar: consume through it, or read partitions with assign()"
	noTransactions = "transactions are not served: produce without a transactional id (idempotence works)"
)

// findCoordinator answers INVALID_REQUEST, which clients do not retry.
func findCoordinator(req *kmsg.FindCoordinatorRequest) *kmsg.FindCoordinatorResponse {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.Version = req.Version
	msg := noGroups
	if req.CoordinatorType == 1 {
		msg = noTransactions
	}
	resp.ErrorCode, resp.ErrorMessage, resp.NodeID = codeInvalidRequest, &msg, -1
	for _, key := range req.CoordinatorKeys {
		co := kmsg.NewFindCoordinatorResponseCoordinator()
		co.Key, co.NodeID, co.ErrorCode, co.ErrorMessage = key, -1, codeInvalidRequest, &msg
		co.Port = -1
		resp.Coordinators = append(resp.Coordinators, co)
	}
	resp.Port = -1
	return resp
}
