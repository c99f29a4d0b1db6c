package commitlog

import (
	"context"
	"io"
	"time"
)

// pace slows background reading down to a number of bytes a second; the zero
// rate does not. It is used by one goroutine.
type pace struct {
	rate  int64
	since time.Time
	done  int64 // bytes since then
}

// take waits until n more bytes may be read, or the context ends.
func (p *pace) take(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil || p.rate <= 0 {
		return err
	}
	now := time.Now()
	if p.since.IsZero() || p.done > 1<<40 {
		p.since, p.done = now, 0
	}
	wait := p.due().Sub(now)
	if wait < -time.Second { // idle time is not saved up
		p.since, p.done, wait = now, 0, 0
	}
	p.done += int64(n)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// due is when what was read so far may have been read.
func (p *pace) due() time.Time {
	s := float64(p.done) / float64(p.rate)
	return p.since.Add(time.Duration(s * float64(time.Second)))
}

// pacedReader reads at a pace until the context ends, and keeps the first error
// that is not about what was read.
type pacedReader struct {
	ctx  context.Context
	pace *pace
	r    io.ReaderAt
	err  error
}

func (c *pacedReader) ReadAt(p []byte, off int64) (int, error) {
	if c.err == nil {
		c.err = c.pace.take(c.ctx, len(p))
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.ReadAt(p, off)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}
