package sdk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// consumer is one running Consume: the caller's goroutine pulls (pulling.go),
// workers call the handler, one goroutine settles (settle.go), one keeps leases
// (leases.go).
type consumer struct {
	client       *Client
	group, topic string
	o            ConsumeOptions
	handle       func(context.Context, []api.Message) []error

	// Only the pulling goroutine looks at these:
	order    string    // of the group, "" until it is known
	askOrder time.Time // not before
	tokens   string    // what the tokens of the pulls begin with
	pulls    int       // that were answered

	mu       sync.Mutex // guards what follows
	lanes    lanes
	acks     []*held    // to be acknowledged
	backs    []giveBack // to be given back
	ackSince time.Time  // since when the oldest of acks waits
	idle     int        // workers that have nothing to do
	filling  int        // workers whose batch is not full
	stopping bool
	away     bool // the sidecar does not answer
	unsure   bool // whether leases are still there: keep finds out

	more    *sync.Cond    // on mu: more is available, or stopping
	roomy   chan struct{} // poked when there may be room for a pull
	toSend  chan struct{} // poked when there may be something to settle
	toKeep  chan struct{} // poked when there are new leases
	telling sync.Mutex    // held while OnError or OnReason is called; guards nothing else
}

// giveBack is one message to be given back.
type giveBack struct {
	*held
	delay  time.Duration
	reason string // "" when no handler had it
}

func (c *Client) consume(ctx context.Context, group, topic string, o ConsumeOptions, handle func(context.Context, []api.Message) []error) error {
	once := *c
	once.retry = Retry{} // the loop repeats by itself, and must know when the sidecar is away
	k := &consumer{
		client: &once, group: group, topic: topic, o: o.withDefaults(), handle: handle, lanes: newLanes(), tokens: rand.Text() + "-",
		roomy: make(chan struct{}, 1), toSend: make(chan struct{}, 1), toKeep: make(chan struct{}, 1),
	}
	k.more = sync.NewCond(&k.mu)
	k.lanes.lease = max(0, o.Lease)
	return k.run(ctx)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (k *consumer) tell(err error) {
	k.telling.Lock()
	defer k.telling.Unlock()
	k.o.OnError(err)
}

func (k *consumer) run(ctx context.Context) error {
	lasting := context.WithoutCancel(ctx)
	handlers, endHandlers := context.WithCancel(lasting)
	calls, endCalls := context.WithCancel(lasting)
	defer endCalls()
	defer endHandlers()
	worked := make(chan struct{}) // closed when all workers have ended
	var workers, helpers sync.WaitGroup
	for range k.o.Concurrency {
		workers.Go(func() { k.work(ctx, handlers) })
	}
	helpers.Go(func() { k.settle(calls, worked) })
	helpers.Go(func() { k.keep(calls, worked) })

	err := k.pullAll(ctx)
	k.stop()
	patience := time.AfterFunc(k.o.StopTimeout, endHandlers)
	workers.Wait()
	patience.Stop()
	close(worked)
	last := time.AfterFunc(lastWord, endCalls)
	helpers.Wait()
	last.Stop()
	return err
}

// stop makes the workers end and gives back what waits.
func (k *consumer) stop() {
	k.mu.Lock()
	k.stopping = true
	k.giveBackAll()
	k.more.Broadcast()
	k.mu.Unlock()
	poke(k.toSend)
}

// heard notes whether the sidecar answered. While it does not no handler begins,
// and then not before it is known which leases are left: a sidecar that starts
// anew takes no acknowledgements for what it handed out before, and delivers it
// again.
func (k *consumer) heard(err error) {
	answered := err == nil
	if _, ok := errors.AsType[*api.Error](err); ok {
		answered = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away && answered {
		poke(k.toKeep)
	}
	k.away = !answered
	k.unsure = k.unsure || k.away
}

// giveBackAll gives back what waits. It needs mu.
func (k *consumer) giveBackAll() {
	for _, h := range k.lanes.giveUp() {
		k.backs = append(k.backs, giveBack{held: h})
	}
}

// work calls the handler, under the context handlers, until ctx ends or the
// consumer stops.
func (k *consumer) work(ctx, handlers context.Context) {
	for {
		batch, messages := k.next(ctx)
		if batch == nil {
			return
		}
		k.finish(handlers, batch, k.call(handlers, messages))
	}
}

func (k *consumer) call(ctx context.Context, messages []api.Message) []error {
	if k.o.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.o.HandlerTimeout)
		defer cancel()
	}
	return k.handle(ctx, messages)
}

// next waits for messages to handle; none when the consumer stops.
func (k *consumer) next(ctx context.Context) ([]*held, []api.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.stopping && ctx.Err() == nil {
		if k.lanes.available == 0 || k.away || k.unsure {
			k.idle++
			poke(k.roomy)
			poke(k.toSend) // what was lingered for
			k.more.Wait()
			k.idle--
			continue
		}
		if k.o.BatchWait > 0 && !k.fill(ctx) {
			continue
		}
		batch, expired := k.lanes.take(k.o.BatchMax, time.Now())
		for _, h := range expired {
			k.backs = append(k.backs, giveBack{held: h})
		}
		if len(expired) > 0 {
			poke(k.toSend)
		}
		if len(batch) == 0 {
			continue // another worker was quicker
		}
		poke(k.roomy)
		messages := make([]api.Message, len(batch))
		for i, h := range batch {
			messages[i] = h.message
		}
		return batch, messages
	}
	return nil, nil
}

// fill waits for the batch to become full, for a while, and reports whether it
// is to be handled. It needs mu, and lets go of it meanwhile.
func (k *consumer) fill(ctx context.Context) bool {
	over := false // guarded by mu
	timer := time.AfterFunc(k.o.BatchWait, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		over = true
		k.more.Broadcast()
	})
	defer timer.Stop()
	k.filling++
	defer func() { k.filling-- }()
	poke(k.roomy)
	for !over && !k.stopping && k.lanes.available > 0 && k.lanes.available < k.o.BatchMax {
		k.more.Wait()
	}
	return !k.stopping && ctx.Err() == nil && k.lanes.available > 0
}

// finish notes what a handler said of its messages. errs has an entry for each,
// or none when all went well.
func (k *consumer) finish(ctx context.Context, batch []*held, errs []error) {
	k.mu.Lock()
	for i, h := range batch {
		if errs == nil || errs[i] == nil {
			k.lanes.handled(h)
			if len(k.acks) == 0 {
				k.ackSince = time.Now()
			}
			k.acks = append(k.acks, h)
			continue
		}
		dropped := k.lanes.failed(h)
		delay := k.o.retryDelay(h.message.Attempt, errs[i])
		if ctx.Err() != nil {
			delay = 0 // it was not given the time
		}
		k.backs = append(k.backs, giveBack{h, delay, reasonText(errs[i])})
		for _, d := range dropped {
			k.backs = append(k.backs, giveBack{held: d})
		}
	}
	// This worker takes what may follow, unless that is of several lanes or
	// another waits for its batch to become full.
	if k.filling > 0 || k.idle > 0 && len(batch) > 1 {
		k.more.Broadcast()
	}
	k.mu.Unlock()
	poke(k.toSend)
	for i, err := range errs {
		if err != nil {
			k.tell(fmt.Errorf("handling message %s: %w", batch[i].message.ID, err))
		}
	}
}

// longestReason of a message that is given back, in bytes.
const longestReason = 1000

func reasonText(err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > longestReason {
		text = strings.ToValidUTF8(text[:longestReason], "") + "…"
	}
	if text == "" {
		text = "the handler failed"
	}
	return text
}
