package kafka

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes of all requests in memory. Who finds it empty waits in turn.
type budget struct {
	bytes int64
	sem   *semaphore.Weighted
	used  atomic.Int64
	shelf shelf
}

func newBudget(bytes int64) *budget {
	return &budget{bytes: bytes, sem: semaphore.NewWeighted(bytes), shelf: shelf{limit: bytes, full: make(chan struct{}, 1)}}
}

// charge is what a request of that size takes of the budget: the memory that it will have, and never more than there is.
func (b *budget) charge(size int) int64 {
	_, capacity := class(size)
	return min(int64(capacity), b.bytes)
}

func (b *budget) try(n int64) bool {
	if !b.sem.TryAcquire(n) {
		return false
	}
	b.used.Add(n)
	return true
}

func (b *budget) acquire(ctx context.Context, n int64) error {
	if err := b.sem.Acquire(ctx, n); err != nil {
		return err
	}
	b.used.Add(n)
	return nil
}

func (b *budget) release(n int64) {
	b.used.Add(-n)
	b.sem.Release(n)
}

// admission counts connections, in all and by address.
type admission struct {
	max, perIP int

	mu   sync.Mutex // guards all and byIP
	all  int
	byIP map[string]int
}

// enter admits a connection or tells which limit is against it.
func (a *admission) enter(ip string) (reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.all >= a.max:
		return "max_connections"
	case a.byIP[ip] >= a.perIP:
		return "max_connections_per_ip"
	}
	a.all++
	a.byIP[ip]++
	return ""
}

func (a *admission) leave(ip string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.byIP[ip]--; a.byIP[ip] <= 0 {
		delete(a.byIP, ip)
	}
}
