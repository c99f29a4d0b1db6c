package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

var describeClusterAPI = api{
	key: 60, name: "DescribeCluster", min: 0, max: 1,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrDescribeClusterRequest() },
	serve: func(s *Server, c *call) (*response, error) {
		resp := describeCluster(c.req.(*kmsg.DescribeClusterRequest), s.backend.View())
		if resp.ErrorCode != codeNone {
			s.metrics.failed(resp.ErrorCode)
		}
		return encode(c.header, resp), nil
	},
}

// endpointBrokers is the type of endpoint that clients connect to; 2 is the controllers of KRaft (KIP-919).
const endpointBrokers = 1

// describeCluster answers from a view: a pure function.
func describeCluster(req *kmsg.DescribeClusterRequest, view *cluster.View) *kmsg.DescribeClusterResponse {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.Version = req.Version
	resp.EndpointType, resp.ControllerID = endpointBrokers, -1
	resp.ClusterAuthorizedOperations = noAuthorizedOperations
	if req.Version >= 1 && req.EndpointType != endpointBrokers {
		err := fmt.Errorf("endpoint type %d: there are brokers (1) only", req.EndpointType)
		resp.ErrorCode, resp.ErrorMessage = codeUnsupportedEndpointType, text(err)
		return resp
	}
	resp.ClusterID, resp.ControllerID = view.ClusterID, view.Controller
	for _, n := range view.Brokers {
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = n.ID, n.Host, n.Port
		if n.Rack != "" {
			b.Rack = &n.Rack
		}
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}
