package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

const (
	idBlock  = 1000 // producer ids given out at a time
	idWait   = time.Second
	drawnLow = 1 << 62 // ids from here on were drawn, those below counted
	drawn    = 16      // ids of a drawn block
)

// NextProducerIDs takes the next block of producer ids from the store's counter.
// When the store does not answer soon it draws a block by lot instead: a producer
// needs an id to write at all, and an outage of the store must stop none. Of a
// million blocks drawn two are the same with a probability of 1 in 500,000, and
// that harms only if both write to one partition while it remembers the first.
// It never fails.
func (a *Agent) NextProducerIDs(ctx context.Context) (first, count int64, err error) {
	if s := a.liveSession(); s == nil || s.Ownership() == discovery.Proven { // else it is known to be away
		call, cancel := context.WithTimeout(ctx, idWait)
		first, count, err = a.countedProducerIDs(call)
		cancel()
		if err == nil {
			return first, count, nil
		}
		a.spare.Info("producer ids are drawn by lot: the coordination store gives none", zap.Error(err))
	}
	return drawProducerIDs(rand.Uint64()), drawn, nil
}

// drawProducerIDs makes the first id of a block of random bits.
func drawProducerIDs(bits uint64) int64 {
	return int64(drawnLow | bits%drawnLow/drawn*drawn)
}

// countedProducerIDs takes the next block of a thousand. Where the store has no
// counter it starts at the folder's time (a block a millisecond since 1970), so that a
// wiped store never gives an id twice: a log remembers the sequence of a
// producer, and would take another's records for repetitions.
func (a *Agent) countedProducerIDs(ctx context.Context) (first, count int64, err error) {
	if f, _ := a.mirror.Latest(); f.Cluster == facts.Foreign {
		return 0, 0, fmt.Errorf("%w: the store belongs to another cluster", broker.ErrUnavailable)
	}
	for {
		e, err := a.get(ctx, discovery.KeyProducerIDs)
		if err != nil {
			return 0, 0, err
		}
		var next discovery.ProducerIDs
		if e.Version == 0 {
			now := a.folderTime().Now()
			if now.IsZero() { // a clock that is behind would begin below ids that were given
				return 0, 0, fmt.Errorf("%w: there is no counter, and this machine's clock is not believed", broker.ErrUnavailable)
			}
			next.Next = now.UnixMilli() * idBlock
		} else {
			if next, err = discovery.Decode[discovery.ProducerIDs](e); err != nil {
				return 0, 0, fmt.Errorf("%w: key %s is not readable: %w", broker.ErrUnavailable, e.Key, err)
			}
		}
		first = next.Next
		next.Next, next.Writer = first+idBlock, discovery.NewNonce()
		call, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
		_, err = a.store.Commit(call, discovery.CAS(discovery.KeyProducerIDs, discovery.Encode(next), e.Version))
		cancel()
		if err == nil {
			return first, idBlock, nil
		}
		// After an unknown outcome the block is left unused.
		if err := a.again(ctx, err); err != nil {
			return 0, 0, err
		}
	}
}
