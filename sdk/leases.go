package sdk

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sidestream/sdk/api"
)

// keepEvery is the least time between two rounds of extensions.
const keepEvery = 10 * time.Millisecond

// unsureAgain is how soon leases of which it is not known whether they are left
// are asked for again.
const unsureAgain = 500 * time.Millisecond

// keep extends the leases of what waits and what is being handled when a third
// of them has passed, until all workers have ended.
func (k *consumer) keep(ctx context.Context, worked <-chan struct{}) {
	for {
		receipts, all, next := k.expiring(time.Now())
		var err error
		if len(receipts) > 0 {
			next = max(keepEvery, next)
			if err = k.extend(ctx, receipts); err != nil && !all { // an outage is told by what met it
				k.tell(err)
			}
		}
		switch {
		case all && err == nil:
			k.sure()
		case all:
			next = min(next, unsureAgain)
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-k.toKeep:
		case <-worked:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// sure lets handlers begin again.
func (k *consumer) sure() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unsure = k.away
	k.more.Broadcast()
}

// expiring are the receipts whose leases are to be extended now, and how long
// until the next are. All are when it is not known which leases are left; while
// the sidecar is away that also finds out when it is back.
func (k *consumer) expiring(now time.Time) (receipts map[string]*held, all bool, next time.Duration) {
	next = time.Hour
	receipts = map[string]*held{}
	k.mu.Lock()
	defer k.mu.Unlock()
	all = k.unsure
	for _, h := range k.lanes.held {
		if h.lease <= 0 || h.state == running && k.o.HandlerTimeout > 0 && now.Sub(h.handing) > k.o.HandlerTimeout {
			continue
		}
		// Those that are due a little later go along.
		left := h.until.Sub(now) - h.lease*2/3
		if left > h.lease/20 && !all {
			next = min(next, left)
			continue
		}
		// Until an answer is there, soon again.
		next = min(next, h.lease/6)
		for _, r := range h.receipts() {
			receipts[r] = h
		}
	}
	return receipts, all, next
}

func (k *consumer) extend(ctx context.Context, held map[string]*held) error {
	receipts := make([]string, 0, len(held))
	for r := range held {
		receipts = append(receipts, r)
	}
	call, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	answer, err := k.client.Extend(call, k.group, k.topic, k.o.Lease, receipts...)
	k.heard(err)
	if err != nil && len(answer.Results) == 0 {
		if !pointless(err) {
			return fmt.Errorf("extending %d leases: %w", len(receipts), err)
		}
		for _, r := range receipts { // the group is gone, say
			answer.Results = append(answer.Results, api.ReceiptResult{Receipt: r, Error: api.NewError(api.CodeLeaseLost, err.Error())})
		}
	}
	now := time.Now()
	var failure error
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range answer.Results {
		h := held[r.Receipt]
		switch {
		case h == nil:
		case r.Error == nil && slices.Contains(h.receipts(), r.Receipt):
			k.lanes.extended(h, r, now)
		case r.Error == nil: // it has come again meanwhile
		case settledBy(r.Error):
			for _, d := range k.lanes.lose(h, r.Receipt) {
				k.backs = append(k.backs, giveBack{held: d})
			}
		default:
			failure = fmt.Errorf("extending the lease of message %s: %w", h.message.ID, r.Error)
		}
	}
	if len(k.backs) > 0 {
		poke(k.toSend)
	}
	return failure
}

// extended notes the new end of a lease.
func (l *lanes) extended(h *held, r api.ReceiptResult, now time.Time) {
	if r.LeaseUntil != nil {
		h.lease = l.lasts(r.LeaseUntil.Sub(now))
	}
	h.until = now.Add(h.lease)
}
