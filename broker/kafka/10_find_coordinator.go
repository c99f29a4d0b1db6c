package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

// FindCoordinator names a broker for consumers that keep offsets with the cluster. (librdkafka also takes its presence
// as the sign that the broker understands LZ4.) A subscribe() finds a coordinator too, and fails at its next step,
// because ApiVersions lists no JoinGroup.
var findCoordinatorAPI = api{
	key: 10, name: "FindCoordinator", min: 0, max: 4,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrFindCoordinatorRequest() },
	serve: func(s *Server, c *call) (*response, error) {
		resp := findCoordinator(c.req.(*kmsg.FindCoordinatorRequest), s.backend.View())
		if resp.ErrorCode != codeNone {
			s.metrics.failed(resp.ErrorCode)
		}
		return encode(c.header, resp), nil
	},
}

// errTransactions refuses whatever names a transactional id. On the wire it is CLUSTER_AUTHORIZATION_FAILED: of the codes
// that fit it is the one at which librdkafka and Java's client give up at once and say so; librdkafka asks again for ever
// at INVALID_REQUEST.
var errTransactions = errors.New(noTransactions)

const noTransactions = "transactions are not served: produce without a transactional id (idempotence works)"

// coordinatorGroup is the type of key that is a group's name; 1 is a transactional id, 2 a share group.
const coordinatorGroup = 0

// findCoordinator answers from a view: a pure function. What has no coordinator here gets an error that clients do not
// retry.
func findCoordinator(req *kmsg.FindCoordinatorRequest, view *cluster.View) *kmsg.FindCoordinatorResponse {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.Version = req.Version
	if req.Version < 4 {
		n, err := coordinator(req.CoordinatorType, req.CoordinatorKey, view)
		resp.NodeID, resp.Host, resp.Port = n.ID, n.Host, n.Port
		resp.ErrorCode, resp.ErrorMessage = groupCode(err), text(err)
		return resp
	}
	first := once[string]()
	for _, key := range req.CoordinatorKeys {
		if !first(key) {
			continue
		}
		n, err := coordinator(req.CoordinatorType, key, view)
		co := kmsg.NewFindCoordinatorResponseCoordinator()
		co.Key, co.NodeID, co.Host, co.Port = key, n.ID, n.Host, n.Port
		co.ErrorCode, co.ErrorMessage = groupCode(err), text(err)
		resp.Coordinators = append(resp.Coordinators, co)
	}
	return resp
}

func coordinator(kind int8, key string, view *cluster.View) (cluster.Node, error) {
	none := cluster.Node{ID: -1, Port: -1}
	switch kind {
	case coordinatorGroup:
	case 1:
		return none, errTransactions
	default:
		return none, fmt.Errorf("coordinators of type %d: only groups (0) have one here: %w", kind, errInvalidRequest)
	}
	if err := checkGroupID(key); err != nil {
		return none, err
	}
	n, ok := view.Coordinator(key)
	if !ok {
		return none, fmt.Errorf("no broker is known: %w", cluster.ErrUnavailable)
	}
	return n, nil
}
