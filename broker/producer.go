package broker

import (
	"context"
	"fmt"
	"sync"
)

// producerIDs hands out ids for idempotent producers from a block that the cluster gave us.
type producerIDs struct {
	fetch func(ctx context.Context) (first, count int64, err error)
	turn  chan struct{} // holds one token: who has it may ask the cluster

	mu        sync.Mutex // guards next and end
	next, end int64
}

func newProducerIDs(fetch func(ctx context.Context) (first, count int64, err error)) *producerIDs {
	p := &producerIDs{fetch: fetch, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p
}

// take returns an id if the block has one left.
func (p *producerIDs) take() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next >= p.end {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

// get returns an id and asks the cluster for another block when it must.
func (p *producerIDs) get(ctx context.Context) (int64, error) {
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		select {
		case <-p.turn:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		err := p.refill(ctx)
		p.turn <- struct{}{}
		if err != nil {
			return 0, err
		}
	}
}

func (p *producerIDs) refill(ctx context.Context) error {
	p.mu.Lock()
	left := p.end - p.next
	p.mu.Unlock()
	if left > 0 { // who had the turn before us did it
		return nil
	}
	first, count, err := p.fetch(ctx)
	if err != nil {
		return fmt.Errorf("asking for producer ids: %w", err)
	}
	if first < 0 || count < 1 {
		return fmt.Errorf("asking for producer ids: got a block of %d from %d: %w", count, first, ErrUnavailable)
	}
	p.mu.Lock()
	p.next, p.end = first, first+count
	p.mu.Unlock()
	return nil
}
