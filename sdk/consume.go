package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sidestream/sdk/api"
)

// ConsumeOptions of [Client.Consume] and [Client.ConsumeBatch]. Zero fields mean
// the defaults.
type ConsumeOptions struct {
	Max   int           // messages a pull at most, default 100
	Wait  time.Duration // how long one pull waits for messages, default 20 s
	Lease time.Duration // of a pull, default the group's; it is extended while the handler works
	From  string        // where a new group starts: earliest (default), latest or RFC 3339

	// Concurrency is how many handlers work at once, default 1. Messages that
	// the group's order keeps in order (those of one partition, or of one key)
	// are never handled at once: with order=partition there are at most as many
	// handlers at work as partitions.
	Concurrency int
	// InFlight bounds the messages that are held at once: waiting for a handler,
	// in one, or not yet acknowledged. Default Max (twice that with a Concurrency
	// above 1), or twice what the handlers take at once where that is more.
	InFlight int

	// HandlerTimeout ends the context of a call of the handler after so long,
	// and no lease is extended for it any more; default none.
	HandlerTimeout time.Duration
	// StopTimeout is how long handlers that work when ctx ends may go on before
	// their context ends too, default 20 s.
	StopTimeout time.Duration

	// RetryDelay is how long a message stays away after its handler failed for
	// the first time, default 1 s. It doubles with each further attempt up to
	// MaxRetryDelay, default 30 s. [Later] asks for another delay.
	RetryDelay    time.Duration
	MaxRetryDelay time.Duration

	// BatchMax is how many messages a [BatchHandler] is given at most, default
	// Max; BatchWait is how long a batch that is not full waits for more, default
	// not at all.
	BatchMax  int
	BatchWait time.Duration

	// OnError hears of failures that are survived: a handler's error, a sidecar
	// that is away, a lease that was lost. OnReason hears why no messages come,
	// when that changes, and "" when they come again. Both may be nil; they are
	// called one at a time and should return soon.
	OnError  func(error)
	OnReason func(api.Reason)
}

// Handler is called for one message at a time, or from several goroutines at
// once with a Concurrency above 1. nil acknowledges the message; an error gives
// it back, to be delivered again. It runs in a goroutine of the client's, where a
// panic ends the process.
type Handler func(context.Context, api.Message) error

// BatchHandler is called for one or more messages, of one or more partitions,
// each partition's in order. nil acknowledges them, an error gives them back;
// a [BatchError] tells which.
type BatchHandler func(context.Context, []api.Message) error

const (
	defaultMax           = 100
	defaultWait          = 20 * time.Second
	defaultStopTimeout   = 20 * time.Second
	defaultRetryDelay    = time.Second
	defaultMaxRetryDelay = 30 * time.Second
)

// Consume pulls messages and hands them to handle until ctx ends; topic may be
// whatever a pull takes, such as a pattern. Messages that the group's order
// keeps in order are handled one after the other in that order, and others at
// the same time if o.Concurrency allows: with order=key, keys go on beside each
// other ([Client.ConfigureGroup]). Leases are extended while messages wait and
// are handled.
//
// When ctx ends, what waits is given back at once, handlers at work may finish
// (see StopTimeout), what they handled is acknowledged, and Consume returns nil
// when all of them have returned. It returns an error only when going on is
// pointless (no such topic, a bad option); while the sidecar or the brokers are
// away it waits and tries again.
//
// A message may be delivered more than once (after a crash, or when its lease
// was lost): to be effectively once, store its ID with the result. It is never
// in two handlers of one Consume at once: if it comes again while its handler
// still works, that handler's result counts for it.
func (c *Client) Consume(ctx context.Context, group, topic string, o ConsumeOptions, handle Handler) error {
	o.BatchMax, o.BatchWait = 1, 0
	return c.consume(ctx, group, topic, o, func(ctx context.Context, messages []api.Message) []error {
		err := handle(ctx, messages[0])
		if err == nil {
			return nil
		}
		return []error{err}
	})
}

// ConsumeBatch is [Client.Consume] with a handler of several messages at a
// time, for work that is cheaper together, such as one insert of many rows.
func (c *Client) ConsumeBatch(ctx context.Context, group, topic string, o ConsumeOptions, handle BatchHandler) error {
	return c.consume(ctx, group, topic, o, func(ctx context.Context, messages []api.Message) []error {
		err := handle(ctx, messages)
		if err == nil {
			return nil
		}
		if each, ok := errors.AsType[BatchError](err); ok && len(each) == len(messages) {
			return each
		}
		errs := make([]error, len(messages))
		for i := range errs {
			errs[i] = err
		}
		return errs
	})
}

// withDefaults fills in what is not given.
func (o ConsumeOptions) withDefaults() ConsumeOptions {
	fallback := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	fallback(&o.Wait, defaultWait)
	fallback(&o.StopTimeout, defaultStopTimeout)
	fallback(&o.RetryDelay, defaultRetryDelay)
	fallback(&o.MaxRetryDelay, max(defaultMaxRetryDelay, o.RetryDelay))
	if o.Max <= 0 {
		o.Max = defaultMax
	}
	o.Concurrency = max(o.Concurrency, 1)
	if o.BatchMax <= 0 {
		o.BatchMax = o.Max
	}
	if o.InFlight <= 0 {
		o.InFlight = max(o.Max*min(o.Concurrency, 2), 2*o.Concurrency*o.BatchMax)
	}
	o.Max = min(o.Max, o.InFlight)
	o.BatchMax = min(o.BatchMax, o.InFlight)
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	if o.OnReason == nil {
		o.OnReason = func(api.Reason) {}
	}
	return o
}

// BatchError is the error of a [BatchHandler] that did only some: one entry a
// message in the order of the batch, nil for those that are done. One of another
// length stands for all messages.
type BatchError []error

func (e BatchError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e {
		if err != nil {
			if failed++; first == nil {
				first = err
			}
		}
	}
	return fmt.Sprintf("%d of %d messages failed, the first because: %v", failed, len(e), first)
}

// Unwrap is for errors.Is and errors.As.
func (e BatchError) Unwrap() (errs []error) {
	for _, err := range e {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Later is err with another delay before the message is delivered again, for a
// handler to return. 0 is at once.
func Later(delay time.Duration, err error) error { return &later{max(0, delay), err} }

type later struct {
	delay time.Duration
	err   error
}

func (l *later) Error() string { return l.err.Error() }
func (l *later) Unwrap() error { return l.err }

// retryDelay is how long a message stays away after that error.
func (o *ConsumeOptions) retryDelay(attempt int, err error) time.Duration {
	if l, ok := errors.AsType[*later](err); ok {
		return l.delay
	}
	d := o.RetryDelay
	for range attempt - 1 {
		if d *= 2; d >= o.MaxRetryDelay {
			return o.MaxRetryDelay
		}
	}
	return min(d, o.MaxRetryDelay)
}

// pointless reports whether the same call will fail again whatever happens.
func pointless(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && !e.Retryable && e.Code != api.CodeInternal
}
