package main

import (
	"context"
	"errors"
	"fmt"
)

// parts runs servers side by side in one process. They stop in the reverse
// order of their start.
type parts struct {
	ctx     context.Context // ends when a stop is asked for
	failed  chan error      // the first part that ended by itself
	running []*part
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // of Run; read after done is closed
}

func newParts(ctx context.Context) *parts {
	return &parts{ctx: ctx, failed: make(chan error, 1)}
}

// start runs a server and waits until it is ready. It reports false when the
// server or one before it ended, or a stop was asked for; wait tells which.
func (p *parts) start(name string, s server) bool {
	// Not the context that a signal ends: stop decides about the order.
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.ctx))
	q := &part{name: name, cancel: cancel, done: make(chan struct{})}
	p.running = append(p.running, q)
	go func() {
		defer close(q.done)
		q.err = s.Run(ctx)
		if ctx.Err() == nil {
			err := q.err
			if err == nil {
				err = errors.New("it ended by itself")
			}
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default: // not the first
			}
			q.err = nil // told by wait
		}
	}()
	select {
	case <-s.Ready():
		return true
	case <-q.done:
	case <-p.ctx.Done():
	}
	return false
}

// wait returns nil when a stop was asked for, or the error of the first part
// that ended by itself.
func (p *parts) wait() error {
	select {
	case err := <-p.failed:
		return err
	case <-p.ctx.Done():
		return nil
	}
}

// stop stops all parts, the last first, and waits for each.
func (p *parts) stop() error {
	var errs []error
	for i := len(p.running) - 1; i >= 0; i-- {
		q := p.running[i]
		q.cancel()
		<-q.done
		if q.err != nil && !errors.Is(q.err, context.Canceled) {
			errs = append(errs, fmt.Errorf("stopping %s: %w", q.name, q.err))
		}
	}
	return errors.Join(errs...)
}
