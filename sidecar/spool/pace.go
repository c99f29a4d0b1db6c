package spool

import (
	"context"
	"sync"
	"time"
)

// pace bounds the bytes per second that are sent. Who is above it waits; what was
// not used for a moment may be used after it.
type pace struct {
	perSecond int64

	// mu guards free.
	mu   sync.Mutex
	free time.Time // when the next byte may go
}

// slack is how much of the rate may be caught up.
const slack = 100 * time.Millisecond

// take waits until n more bytes may go; false when ctx ends first.
func (p *pace) take(ctx context.Context, n int64) bool {
	now := time.Now()
	p.mu.Lock()
	if early := now.Add(-slack); p.free.Before(early) {
		p.free = early
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.perSecond) * float64(time.Second)))
	p.mu.Unlock()
	if wait <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
