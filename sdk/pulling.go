package sdk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"sidestream/sdk/api"
)

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
			k.stop()
			k.pullLast(ctx)
			return nil
		case pointless(err):
			return fmt.Errorf("pulling %s for group %s: %w", k.topic, k.group, err)
		default:
			if errors.Is(err, &api.Error{Code: api.CodeDraining}) {
				k.giveBackWaiting()
			}
			k.tell(fmt.Errorf("pulling %s for group %s: %w", k.topic, k.group, err))
		}
		failures++
		pause(ctx, Retry{}.wait(failures, RetryAfter(err)))
	}
}

// giveBackWaiting gives back what waits while the sidecar drains: it waits for
// what is out, and what comes too late would be handled twice.
func (k *consumer) giveBackWaiting() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.giveBackAll()
	poke(k.toSend)
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
	k.heard(err)
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
// handled at once, and for its lease; they may be changed. The group may have
// begun with the first pull. Until its order is known messages are kept in the
// strictest.
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
	lease, err := time.ParseDuration(g.Config.Lease)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.o.Lease <= 0 && err == nil {
		k.lanes.lease = lease
	}
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

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
