package committed

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	standFirst = 2 * time.Millisecond // about the time of one commit
	standMost  = 128 * time.Millisecond
)

// standBack waits before a commit is tried again that others have won so many
// times in a row before: a random time, whose most doubles with each loss, so
// that hosts which write the same key fall out of step and each of them gets its
// turn. It is false when ctx ended first.
func standBack(ctx context.Context, lost int) bool {
	timer := time.NewTimer(rand.N(longest(lost)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func longest(lost int) time.Duration {
	return min(standFirst<<min(lost, 10), standMost)
}
