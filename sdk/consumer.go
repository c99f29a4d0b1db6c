package sdk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// consumer is one running Consume: the caller's goroutine pulls, workers call
// the handler, one goroutine settles (settle.go), one keeps leases (leases.go).
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
	k := &consumer{
		client: c, group: group, topic: topic, o: o.withDefaults(), handle: handle, lanes: newLanes(), tokens: rand.Text() + "-",
		roomy: make(chan struct{}, 1), toSend: make(chan struct{}, 1), toKeep: make(chan struct{}, 1),
	}
	k.more = sync.NewCond(&k.mu)
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

	k.mu.Lock()
	k.stopping = true
	k.giveBackAll()
	k.more.Broadcast()
	k.mu.Unlock()
	poke(k.toSend)
	patience := time.AfterFunc(k.o.StopTimeout, endHandlers)
	workers.Wait()
	patience.Stop()
	close(worked)
	last := time.AfterFunc(lastWord, endCalls)
	helpers.Wait()
	last.Stop()
	return err
}

// giveBackAll gives back what waits. It needs mu.
func (k *consumer) giveBackAll() {
	for _, h := range k.lanes.giveUp() {
		k.backs = append(k.backs, giveBack{held: h})
	}
}

// pullAll pulls until ctx ends or pulling is pointless.
func (k *consumer) pullAll(ctx context.Context) error {
	failures := 0
	told := api.ReasonAtEnd // that nothing is there needs no word at first
	for {
		room := k.awaitRoom(ctx)
		if ctx.Err() != nil {
			return nil
		}
		started := time.Now()
		pulled, err := k.pull(ctx, room, k.o.Wait)
		switch {
		case err == nil:
			told = k.reason(told, pulled.Reason)
			if len(pulled.Messages) > 0 {
				failures = 0
				k.learnOrder(ctx)
				k.add(pulled.Messages)
				continue
			}
			if time.Since(started) > k.o.Wait/2 {
				failures = 0 // it has waited: the next may follow at once
				continue
			}
		case ctx.Err() != nil:
			k.pullLast(ctx)
			return nil
		case pointless(err):
			return fmt.Errorf("pulling %s for group %s: %w", k.topic, k.group, err)
		default:
			k.tell(fmt.Errorf("pulling %s for group %s: %w", k.topic, k.group, err))
		}
		failures++
		pause(ctx, Retry{}.wait(failures, RetryAfter(err)))
	}
}

// pullGrace is how long a pull may take beyond its wait before its sidecar is
// taken to hang.
const pullGrace = 30 * time.Second

// pull takes messages. As long as no answer has come it is the same pull, which
// the token tells the sidecar.
func (k *consumer) pull(ctx context.Context, room int, wait time.Duration) (api.Pulled, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+pullGrace)
	defer cancel()
	pulled, err := k.client.Pull(ctx, k.group, k.topic, PullOptions{Max: room, Wait: wait, Lease: k.o.Lease, From: k.o.From,
		AttemptToken: k.tokens + strconv.Itoa(k.pulls)})
	if e, ok := errors.AsType[*api.Error](err); err == nil || ok && e.Code != api.CodeUnknownOutcome {
		k.pulls++
	}
	return pulled, err
}

// pullLast asks for the messages of a pull that was broken off: its answer may
// have been on its way, and they would be kept from others until their lease is
// over.
func (k *consumer) pullLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPull)
	defer cancel()
	if pulled, err := k.pull(ctx, 1, 0); err == nil {
		k.add(pulled.Messages) // they go back at once
	}
}

// lastPull is how long the last pull may take.
const lastPull = 2 * time.Second

// awaitRoom waits until a pull is worth while, and tells for how many messages:
// when a handler is idle, or half of what may be held is free. It returns at
// once when ctx ends.
func (k *consumer) awaitRoom(ctx context.Context) int {
	crowded := time.NewTimer(crowdedFor)
	defer crowded.Stop()
	for {
		k.mu.Lock()
		room := k.o.InFlight - len(k.lanes.held)
		worth := room > 0 && (k.idle > 0 || k.filling > 0 || 2*room >= k.o.InFlight)
		if k.order != "" && k.order != k.lanes.order {
			// Messages that are held are in lanes of the other order.
			if worth = room == k.o.InFlight; worth {
				k.lanes.order = k.order
			}
		}
		k.mu.Unlock()
		if worth {
			return min(room, k.o.Max)
		}
		select {
		case <-k.roomy:
		case <-crowded.C:
			k.makeRoom()
			crowded.Reset(crowdedFor)
		case <-ctx.Done():
			return 0
		}
	}
}

// crowdedFor is how long there must have been no room for a pull before room is
// made.
const crowdedFor = time.Second

// makeRoom gives back what waits in the longest lane, if all that is held waits
// behind slow handlers while others have nothing to do: one slow key must not
// keep the other keys away. With order=partition the sidecar keeps the lanes
// apart, and there is mostly nothing else.
func (k *consumer) makeRoom() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.idle == 0 || k.lanes.available > 0 || len(k.lanes.held) < k.o.InFlight || k.lanes.order == orderPartition || k.lanes.order == "" {
		return
	}
	for _, h := range k.lanes.longest() {
		k.backs = append(k.backs, giveBack{held: h})
	}
	poke(k.toSend)
}

// reason tells why nothing comes when that is news, and returns what was told.
func (k *consumer) reason(told api.Reason, reason *api.Reason) api.Reason {
	now := api.Reason("")
	if reason != nil {
		now = *reason
	}
	if now == told || now == "" && told == api.ReasonAtEnd {
		return told
	}
	k.telling.Lock()
	defer k.telling.Unlock()
	k.o.OnReason(now)
	return now
}

// learnOrder asks now and then for the group's order, which says what may be
// handled at once; it may be changed. The group may have begun with the first
// pull. Until its order is known messages are kept in the strictest.
func (k *consumer) learnOrder(ctx context.Context) {
	if time.Now().Before(k.askOrder) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	g, err := k.client.Group(ctx, k.group)
	if err != nil {
		k.askOrder = time.Now().Add(orderRetry)
		return
	}
	k.askOrder = time.Now().Add(orderAgain)
	if k.order = g.Config.Order; k.order == "" {
		k.order = orderPartition
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.lanes.held) == 0 {
		k.lanes.order = k.order
	}
}

const (
	orderTimeout = 5 * time.Second
	orderRetry   = 10 * time.Second
	orderAgain   = time.Minute
)

// add takes in what was pulled.
func (k *consumer) add(messages []api.Message) {
	now := time.Now()
	k.mu.Lock()
	for _, m := range messages {
		k.lanes.add(m, now)
	}
	k.more.Broadcast()
	k.mu.Unlock()
	poke(k.toKeep)
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
		if k.lanes.available == 0 {
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

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
