package discovery

import (
	"context"
	"sync"
)

// keepers owns the goroutines that a store runs for its callers: renewals of
// sessions and beats of registrations. The zero value is not ready.
type keepers struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards closed, so that no goroutine starts after the wait
	closed bool
}

func newKeepers() *keepers {
	k := &keepers{}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// start runs f until it returns; its context ends with close. It reports
// false, and runs nothing, after close.
func (k *keepers) start(f func(context.Context)) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.wg.Go(func() { f(k.ctx) })
	return true
}

func (k *keepers) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.cancel()
	k.wg.Wait()
}
