package discovery

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// backoff doubles from backoffFirst to backoffMost, with jitter so that a
// fleet does not return in step. The zero value is ready.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait sleeps for the next step; it returns early, with an error, when ctx ends.
func (b *backoff) wait(ctx context.Context) error {
	if b.next == 0 {
		b.next = backoffFirst
	}
	d := jitter(b.next)
	b.next = min(2*b.next, backoffMost)
	return sleep(ctx, d)
}

// jitter picks from half of d to d.
func jitter(d time.Duration) time.Duration {
	if d < 2 {
		return d
	}
	return d/2 + rand.N(d/2)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
