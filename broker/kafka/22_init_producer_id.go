package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

var initProducerIDAPI = api{
	key: 22, name: "InitProducerId", min: 0, max: 4,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrInitProducerIDRequest() },
	serve:   serveInitProducerID,
}

func serveInitProducerID(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.InitProducerIDRequest)
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.Version = req.Version
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil {
		s.complain("transactions", "a client asked for a transactional producer: "+noTransactions, s.field(c))
		resp.ErrorCode = codeOf(errTransactions) // there is no field for its text
		s.metrics.failed(resp.ErrorCode)
		return encode(c.header, resp), nil
	}
	// Without a transactional id, an epoch to go on from means nothing: as in Kafka every request gets a fresh id.
	id, ok := s.backend.ProducerID()
	if !ok {
		if !c.mayBlock {
			return nil, errWouldBlock
		}
		ctx, cancel := s.clusterContext(c.ctx, 0)
		defer cancel()
		var err error
		if id, err = s.backend.FetchProducerID(ctx); err != nil {
			resp.ErrorCode = s.clusterCode(err)
			s.metrics.failed(resp.ErrorCode)
			return encode(c.header, resp), nil
		}
	}
	resp.ProducerID, resp.ProducerEpoch = id, 0
	return encode(c.header, resp), nil
}
