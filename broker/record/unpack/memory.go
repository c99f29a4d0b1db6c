package unpack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"

	"sidestream/broker/record"
)

// ErrNoRoom says that the memory is taken by others now.
var ErrNoRoom = errors.New("the memory for batches that are being unpacked is taken")

// Memory is what may be taken together by all batches that are being unpacked.
// It is counted before it is allocated. It is safe for concurrent use.
type Memory struct {
	size int64
	room *semaphore.Weighted
}

// NewMemory makes a budget of so many bytes.
func NewMemory(size int64) *Memory {
	return &Memory{size: size, room: semaphore.NewWeighted(size)}
}

// Size is how many bytes there are in all.
func (m *Memory) Size() int64 { return m.size }

// Claim is one reader's part of the memory; it is not safe for concurrent use.
// The nil Claim takes what it wants of no budget.
type Claim struct {
	m     *Memory
	held  int64
	spare int64 // taken before it is needed, by Ensure
}

// Claim begins with nothing. Whoever has it calls Release at the end, when what
// was unpacked is gone or counted elsewhere.
func (m *Memory) Claim() *Claim { return &Claim{m: m} }

// Held is how many bytes the claim has.
func (c *Claim) Held() int64 {
	if c == nil {
		return 0
	}
	return c.held
}

// Take takes n bytes. A claim that has nothing yet waits for them until ctx is
// over. One that has some does not wait, since two of these might wait for each
// other: it is told ErrNoRoom.
func (c *Claim) Take(ctx context.Context, n int64) error {
	switch {
	case c == nil || n == 0:
		return nil
	case n > c.m.size:
		return fmt.Errorf("%w: %d bytes, and there are %d for all batches that are being unpacked", record.ErrTooLarge, n, c.m.size)
	}
	some := min(n, c.spare)
	switch rest := n - some; {
	case rest == 0:
	case c.held+c.spare > 0:
		if !c.m.room.TryAcquire(rest) {
			return ErrNoRoom
		}
	default:
		if err := c.m.room.Acquire(ctx, rest); err != nil {
			return err
		}
	}
	c.spare -= some
	c.held += n
	return nil
}

// Ensure makes a claim that has nothing wait until n bytes are there for it, so
// that those who take parts of them are not told ErrNoRoom.
func (c *Claim) Ensure(ctx context.Context, n int64) error {
	if c == nil {
		return nil
	}
	n = min(n, c.m.size)
	if err := c.m.room.Acquire(ctx, n); err != nil {
		return err
	}
	c.spare += n
	return nil
}

// Trim gives back what Ensure got and nobody took.
func (c *Claim) Trim() {
	if c != nil && c.spare > 0 {
		c.m.room.Release(c.spare)
		c.spare = 0
	}
}

// Give gives n bytes back.
func (c *Claim) Give(n int64) {
	if c == nil || n == 0 {
		return
	}
	c.held -= n
	c.m.room.Release(n)
}

// Release gives all back.
func (c *Claim) Release() {
	c.Trim()
	c.Give(c.Held())
}
