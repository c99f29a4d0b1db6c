package publish

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/singleflight"
)

// producerID is under which the brokers know a producer of sequence numbers.
type producerID struct {
	id    int64
	epoch int16
}

// noProducer is that of batches without sequence numbers, and of a lane that has
// none yet. Zero is a producer: the first that a new cluster of Kafka's names.
var noProducer = producerID{-1, -1}

// producerIDs has the producer id of all lanes that share it. A lane whose
// sequence numbers were refused begins with a new one, at 0.
type producerIDs struct {
	cl     *kgo.Client
	flight singleflight.Group

	mu  sync.Mutex // guards now
	now producerID // noProducer: none
}

func newProducerIDs(cl *kgo.Client) *producerIDs { return &producerIDs{cl: cl, now: noProducer} }

// idTime bounds one request for a producer id.
const idTime = 5 * time.Second

// get is the current id, asked of the brokers when there is none.
func (p *producerIDs) get(ctx context.Context) (producerID, error) {
	p.mu.Lock()
	now := p.now
	p.mu.Unlock()
	if now != noProducer {
		return now, nil
	}
	got, err, _ := p.flight.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, idTime)
		defer cancel()
		req := kmsg.NewPtrInitProducerIDRequest()
		req.ProducerID, req.ProducerEpoch = -1, -1
		resp, err := req.RequestWith(ctx, p.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return nil, err
		}
		id := producerID{resp.ProducerID, resp.ProducerEpoch}
		p.mu.Lock()
		p.now = id
		p.mu.Unlock()
		return id, nil
	})
	if err != nil {
		return noProducer, err
	}
	return got.(producerID), nil
}

// forget has the next get ask for a new id.
func (p *producerIDs) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = noProducer
}
