package chaos

import (
	"context"
	"sync"
	"time"
)

// Stalls watches how late this machine lets a process go on that wanted to
// sleep: where it is a second late the processes under test are too, and their
// beats with them, so that a limit of seconds says nothing.
type Stalls struct {
	mu    sync.Mutex // guards worst
	worst time.Duration
}

const (
	stallEvery = 50 * time.Millisecond
	stallLimit = time.Second
)

// Watch runs until ctx ends.
func (s *Stalls) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		asleep := time.Now()
		time.Sleep(stallEvery)
		late := time.Since(asleep) - stallEvery
		s.mu.Lock()
		s.worst = max(s.worst, late)
		s.mu.Unlock()
	}
}

// Reset begins anew.
func (s *Stalls) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worst = 0
}

// Worst is the longest since Reset.
func (s *Stalls) Worst() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worst
}
