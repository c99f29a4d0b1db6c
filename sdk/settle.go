package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sidestream/sdk/api"
)

const (
	ackLinger     = 20 * time.Millisecond // while there is something to handle
	settleTimeout = 10 * time.Second      // of one request; a repeat is safe
	lastWord      = 5 * time.Second       // for the last acks when all handlers have returned
)

// settle sends acks and nacks until all workers have ended and all is sent, or
// ctx ends. What is handled is acknowledged together with what follows within a
// moment, but at once when a handler has nothing else to do: then what is
// acknowledged may be all that keeps the next messages from coming.
func (k *consumer) settle(ctx context.Context, worked <-chan struct{}) {
	failures := 0
	ended := false
	for {
		acks, backs, wait := k.due(time.Now())
		if len(acks)+len(backs) == 0 {
			if ended && wait == 0 {
				return
			}
			if wait == 0 {
				wait = time.Hour
			}
			timer := time.NewTimer(wait)
			select {
			case <-k.toSend:
			case <-timer.C:
			case <-worked:
				worked, ended = nil, true
			}
			timer.Stop()
			continue
		}
		err := k.send(ctx, acks, backs)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		pause(ctx, Retry{}.wait(failures, RetryAfter(err)))
		if ctx.Err() != nil {
			k.abandon()
			return
		}
	}
}

// due takes what is to be sent now. wait is how long until there is more, 0 when
// nothing is left.
func (k *consumer) due(now time.Time) (acks []*held, backs []giveBack, wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.acks)+len(k.backs) == 0 {
		return nil, nil, 0
	}
	wait = ackLinger - now.Sub(k.ackSince)
	if wait > 0 && len(k.backs) == 0 && k.idle == 0 && !k.stopping && len(k.acks) < k.o.Max {
		return nil, nil, wait
	}
	acks, backs = k.acks, k.backs
	k.acks, k.backs = nil, nil
	return acks, backs, 0
}

// send settles messages with the sidecar. Those of which that is not known yet
// are put back, and the error says why.
func (k *consumer) send(ctx context.Context, acks []*held, backs []giveBack) error {
	var failure error
	if len(acks) > 0 {
		failure = k.sendAcks(ctx, acks)
	}
	// What no handler had goes first: together with a failed one below it, it
	// would count as having been tried.
	var unhandled, failed []giveBack
	for _, b := range backs {
		if b.reason == "" {
			unhandled = append(unhandled, b)
		} else {
			failed = append(failed, b)
		}
	}
	for _, some := range append([][]giveBack{unhandled}, alike(failed)...) {
		if len(some) > 0 {
			failure = errors.Join(failure, k.sendBacks(ctx, some))
		}
	}
	poke(k.roomy)
	return failure
}

// alike groups what one request can say.
func alike(backs []giveBack) (groups [][]giveBack) {
	type what struct {
		delay  time.Duration
		reason string
	}
	at := map[what]int{}
	for _, b := range backs {
		w := what{b.delay, b.reason}
		i, ok := at[w]
		if !ok {
			i = len(groups)
			at[w] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], b)
	}
	return groups
}

func (k *consumer) sendAcks(ctx context.Context, acks []*held) error {
	receipts := k.receiptsOf(len(acks), func(i int) *held { return acks[i] })
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	answer, err := k.client.Ack(call, k.group, k.topic, receipts...)
	cancel()
	k.heard(err)
	fates := fatesOf(receipts, answer, err)
	var refused []error
	var again error

	k.mu.Lock()
	repeat := func(h *held) {
		if len(k.acks) == 0 {
			k.ackSince = time.Time{} // long ago
		}
		k.acks = append(k.acks, h)
	}
	for i, h := range acks {
		switch fate := fates[i]; {
		case fate == nil:
			k.lanes.settled(h)
		case !settledBy(fate):
			again = fate
			repeat(h)
		case k.lanes.unacked(h):
			repeat(h)
		default:
			k.unsure = true // the leases of others may be gone as well
			refused = append(refused, fmt.Errorf("acknowledging message %s: %w", h.message.ID, fate))
		}
	}
	if k.lanes.available > 0 {
		k.more.Broadcast()
	}
	k.mu.Unlock()

	if len(refused) > 0 {
		poke(k.toKeep)
	}
	for _, err := range refused {
		k.tell(err)
	}
	if again != nil {
		again = fmt.Errorf("acknowledging %d messages: %w", len(acks), again)
		k.tell(again)
	}
	return again
}

// sendBacks gives messages back that are alike. A lease that is gone is no
// failure: its message comes again all the same.
func (k *consumer) sendBacks(ctx context.Context, backs []giveBack) error {
	receipts := k.receiptsOf(len(backs), func(i int) *held { return backs[i].held })
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	var answer api.ReceiptResponse
	var err error
	if backs[0].reason == "" {
		answer, err = k.client.Return(call, k.group, k.topic, receipts...)
	} else {
		answer, err = k.client.Nack(call, k.group, k.topic, backs[0].delay, backs[0].reason, receipts...)
	}
	cancel()
	k.heard(err)
	fates := fatesOf(receipts, answer, err)
	var again error
	k.mu.Lock()
	for i, b := range backs {
		if fate := fates[i]; fate != nil && !settledBy(fate) {
			again = fate
			k.backs = append(k.backs, b)
			continue
		}
		if k.lanes.returned(b.held) {
			k.backs = append(k.backs, giveBack{held: b.held})
		}
	}
	if k.lanes.available > 0 {
		if k.stopping {
			k.giveBackAll() // it has come again at the last moment
		}
		k.more.Broadcast()
	}
	k.mu.Unlock()
	if again != nil {
		again = fmt.Errorf("giving back %d messages: %w", len(backs), again)
		k.tell(again)
	}
	return again
}

func (k *consumer) receiptsOf(n int, h func(int) *held) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	receipts := make([]string, n)
	for i := range receipts {
		receipts[i] = h(i).message.Receipt
	}
	return receipts
}

// fatesOf is what became of each receipt, nil where all is well.
func fatesOf(receipts []string, answer api.ReceiptResponse, err error) []error {
	fates := make([]error, len(receipts))
	if err != nil && len(answer.Results) == 0 {
		for i := range fates {
			fates[i] = err
		}
		return fates
	}
	results := map[string]error{}
	for _, r := range answer.Results {
		if r.Error != nil {
			results[r.Receipt] = r.Error
		}
	}
	for i, receipt := range receipts {
		fates[i] = results[receipt]
	}
	return fates
}

// settledBy reports whether an error is the last word on a receipt, so that
// saying it again is of no use.
func settledBy(err error) bool { return pointless(err) }

// abandon tells of what could not be said in time.
func (k *consumer) abandon() {
	k.mu.Lock()
	acks, backs := len(k.acks), len(k.backs)
	k.mu.Unlock()
	if acks+backs > 0 {
		k.tell(fmt.Errorf("stopped before %d messages were acknowledged and %d given back: they come again when their leases are over", acks, backs))
	}
}
