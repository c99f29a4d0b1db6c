package sdk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// ConsumeOptions of [Client.Consume]. Zero fields mean the defaults.
type ConsumeOptions struct {
	Max   int           // messages a pull at most, default 100
	Wait  time.Duration // how long one pull waits for messages, default 20 s
	Lease time.Duration // of a pull, default the group's; it is extended while the handler works
	From  string        // where a new group starts: earliest (default), latest or RFC 3339

	// RetryDelay is how long a message stays away after its handler failed,
	// default 1 s.
	RetryDelay time.Duration
	// OnError hears of failures that Consume survives: a handler's error, a
	// sidecar that is away, a lease that was lost. May be nil.
	OnError func(error)
}

// Handler is called for one message at a time. nil acknowledges it; an error
// gives it back, to be delivered again.
type Handler func(context.Context, api.Message) error

const (
	defaultWait       = 20 * time.Second
	defaultRetryDelay = time.Second
	ackEvery          = time.Second     // while a batch is being handled
	ackTimeout        = 5 * time.Second // of the last acks when ctx has ended
)

// Consume pulls messages and hands them to handle, one after the other in the
// order of each partition, until ctx ends; then it acknowledges what was
// handled, gives back the rest and returns nil. It returns an error only when
// going on is pointless (no such topic, a bad option); while the sidecar or the
// brokers are away it waits and tries again.
//
// A message may be delivered more than once (after a crash, or when its lease
// was lost): to be effectively once, store its ID with the result. Run several
// Consumes to handle messages in parallel.
func (c *Client) Consume(ctx context.Context, group, topic string, o ConsumeOptions, handle Handler) error {
	if o.Wait <= 0 {
		o.Wait = defaultWait
	}
	if o.RetryDelay <= 0 {
		o.RetryDelay = defaultRetryDelay
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	pull := PullOptions{Max: o.Max, Wait: o.Wait, Lease: o.Lease, From: o.From}
	failures := 0
	for ctx.Err() == nil {
		pulled, err := c.Pull(ctx, group, topic, pull)
		switch {
		case err == nil && len(pulled.Messages) > 0:
			failures = 0
			d := &delivery{client: c, group: group, topic: topic, options: o, messages: pulled.Messages}
			d.run(ctx, handle)
			continue
		case err == nil && waitedInVain(pulled.Reason):
			failures = 0
			continue
		case ctx.Err() != nil:
			return nil
		case err != nil && pointless(err):
			return fmt.Errorf("pulling %s for group %s: %w", topic, group, err)
		case err != nil:
			o.OnError(err)
		}
		failures++
		timer := time.NewTimer(Retry{}.wait(failures, RetryAfter(err)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

// waitedInVain reports whether an empty answer came after the whole wait, so
// that the next pull may follow at once. Other reasons may be answered early.
func waitedInVain(r *api.Reason) bool { return r == nil || *r == api.ReasonAtEnd }

// pointless reports whether the same call will fail again whatever happens.
func pointless(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && !e.Retryable && e.Code != api.CodeInternal
}

// delivery is one pulled batch on its way through the handler.
type delivery struct {
	client       *Client
	group, topic string
	options      ConsumeOptions
	messages     []api.Message

	mu   sync.Mutex
	next int // guarded by mu: messages before it are handled; those from it on keep their leases
}

func (d *delivery) run(ctx context.Context, handle Handler) {
	stop := d.keepLeases()
	var handled, failed, back []string
	var reason string
	blocked := map[int32]bool{} // partitions of a failed message: what follows comes again after it
	acked := time.Now()
	for i, m := range d.messages {
		switch {
		case ctx.Err() != nil || blocked[m.Partition]:
			back = append(back, m.Receipt)
		default:
			if err := handle(ctx, m); err != nil {
				d.options.OnError(fmt.Errorf("handling message %s: %w", m.ID, err))
				failed, reason = append(failed, m.Receipt), err.Error()
				blocked[m.Partition] = true
			} else {
				handled = append(handled, m.Receipt)
			}
		}
		d.mu.Lock()
		d.next = i + 1
		d.mu.Unlock()
		if time.Since(acked) > ackEvery {
			d.ack(ctx, handled)
			handled, acked = nil, time.Now()
		}
	}
	stop()
	d.ack(ctx, handled)
	d.nack(ctx, d.options.RetryDelay, reason, failed, true)
	d.nack(ctx, 0, "", back, false)
}

// lastWord is a context for acks and nacks: they must be said even when ctx
// has ended, but not for ever.
func lastWord(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
}

func (d *delivery) ack(ctx context.Context, receipts []string) {
	if len(receipts) == 0 {
		return
	}
	ctx, cancel := lastWord(ctx)
	defer cancel()
	answer, err := d.client.Ack(ctx, d.group, d.topic, receipts...)
	if err != nil {
		d.options.OnError(fmt.Errorf("acknowledging %d messages: %w", len(receipts), err))
		return
	}
	for _, r := range answer.Results {
		if r.Error != nil {
			d.options.OnError(fmt.Errorf("acknowledging message %s: %w", r.ID, r.Error))
		}
	}
}

// nack gives messages back. That a lease is gone is told only of a message
// whose handler failed: in order, its return has taken those after it along.
func (d *delivery) nack(ctx context.Context, delay time.Duration, reason string, receipts []string, tell bool) {
	if len(receipts) == 0 {
		return
	}
	ctx, cancel := lastWord(ctx)
	defer cancel()
	if _, err := d.client.Nack(ctx, d.group, d.topic, delay, reason, receipts...); err != nil && tell {
		d.options.OnError(fmt.Errorf("giving back %d messages: %w", len(receipts), err))
	}
}

// keepLeases extends, each third of a lease, the leases of what is not handled
// yet, until the returned function has been called.
func (d *delivery) keepLeases() (stop func()) {
	lease := d.options.Lease
	if lease <= 0 && d.messages[0].LeaseUntil != nil {
		lease = time.Until(*d.messages[0].LeaseUntil).Round(time.Second)
	}
	if lease <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				d.extend(ctx, lease)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (d *delivery) extend(ctx context.Context, lease time.Duration) {
	d.mu.Lock()
	rest := d.messages[d.next:]
	d.mu.Unlock()
	receipts := make([]string, len(rest))
	for i, m := range rest {
		receipts[i] = m.Receipt
	}
	if len(receipts) == 0 {
		return
	}
	if _, err := d.client.Extend(ctx, d.group, d.topic, lease, receipts...); err != nil && ctx.Err() == nil {
		d.options.OnError(fmt.Errorf("extending %d leases: %w", len(receipts), err))
	}
}
