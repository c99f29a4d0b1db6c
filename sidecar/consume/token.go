package consume

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// MaxAttemptToken is the most bytes of an attempt token.
const MaxAttemptToken = 128

// maxTokens bounds how many tokens are remembered. A pull with one more is
// answered, but not again.
const maxTokens = 10_000

// tokens remembers what the pulls got that carried an attempt token, so that an
// application whose answer did not arrive gets the same once more.
type tokens struct {
	mu    sync.Mutex // guards both below, and the fields of attempts that say so
	by    map[tokenKey]*attempt
	swept time.Time
}

type tokenKey struct{ group, topics, token string }

// attempt is a token in use.
type attempt struct {
	turn chan struct{} // holds one: the right to pull with this token

	// Guarded by tokens.mu.
	users   int // pulls with it that are here
	answers int // given so far
	last    []batch
	until   time.Time // the latest end of the last answer's leases
}

// batch is what of an answer one partition gave under one lease.
type batch struct {
	o        *owner
	receipt  receipt // of one of its messages
	offsets  []int64
	receipts []string
}

func newTokens() *tokens { return &tokens{by: map[tokenKey]*attempt{}} }

// enter waits until no other pull with the token is under way.
func (t *tokens) enter(ctx context.Context, key tokenKey) (*attempt, error) {
	t.mu.Lock()
	t.sweep(time.Now())
	a := t.by[key]
	if a == nil {
		a = &attempt{turn: make(chan struct{}, 1)}
		if len(t.by) < maxTokens {
			t.by[key] = a
		}
	}
	a.users++
	t.mu.Unlock()
	select {
	case a.turn <- struct{}{}:
		return a, nil
	case <-ctx.Done():
		t.gone(key, a)
		return nil, ctx.Err()
	}
}

func (t *tokens) leave(key tokenKey, a *attempt) {
	<-a.turn
	t.gone(key, a)
}

func (t *tokens) gone(key tokenKey, a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.users--; a.users == 0 && a.last == nil && t.by[key] == a {
		delete(t.by, key)
	}
}

// sweepEvery is how often tokens are looked through that nobody asks for again.
const sweepEvery = time.Second

// sweep forgets the tokens of what was settled or is no longer out. It needs mu.
func (t *tokens) sweep(now time.Time) {
	if now.Sub(t.swept) < sweepEvery {
		return
	}
	t.swept = now
	for key, a := range t.by {
		if a.users == 0 && (a.until.Before(now) || slices.ContainsFunc(a.last, func(b batch) bool { return !b.held() })) {
			delete(t.by, key)
		}
	}
}

// answer is what the token's last pull got; nil when there is none to repeat.
func (t *tokens) answer(a *attempt) []batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a.last
}

// answered remembers an answer. unsent is for when it could not be written: it
// says whether to take the messages back, which is not so when they have been
// given again meanwhile.
func (t *tokens) answered(a *attempt, last []batch, until time.Time) (unsent func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.answers++
	a.last, a.until = last, until
	mine := a.answers
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		if a.answers != mine {
			return false
		}
		a.last = nil
		return true
	}
}

// pullOnce answers a pull that carries an attempt token: with the messages of
// the last answer to that token if all of them are still out, else as any pull.
func (m *Manager) pullOnce(ctx context.Context, req PullRequest) (*Delivery, error) {
	key := tokenKey{req.Group, req.Topic, req.AttemptToken}
	switch {
	case len(req.AttemptToken) > MaxAttemptToken:
		return nil, badRequest("attempt_token has %d bytes: use at most %d", len(req.AttemptToken), MaxAttemptToken)
	case req.AutoAck:
		return nil, badRequest("attempt_token does not go with ack=auto: what counts as acknowledged when it is given is not given again")
	}
	a, err := m.tokens.enter(ctx, key)
	if err != nil {
		return nil, apiError(api.CodeUnknownOutcome, "another pull with the same attempt_token is under way: %v", err)
	}
	defer m.tokens.leave(key, a)
	d, err := m.pullAgain(ctx, req, m.tokens.answer(a))
	if d == nil && err == nil {
		req.AttemptToken = ""
		d, err = m.Pull(ctx, req)
	}
	if err != nil || len(d.Messages) == 0 {
		return d, err
	}
	last, until := m.batches(req.Group, d.Messages)
	unsent, takeBack := m.tokens.answered(a, last, until), d.Return
	d.Return = func() {
		if unsent() {
			takeBack()
		}
	}
	return d, nil
}

// batches sorts the messages of an answer by the leases that they are out under.
func (m *Manager) batches(group string, msgs []api.Message) (all []batch, until time.Time) {
	g := m.lookup(group)
	if g == nil {
		return nil, until
	}
	for _, msg := range msgs {
		r, err := decodeReceipt(msg.Receipt, group, msg.Topic)
		s := g.share(msg.Topic)
		if err != nil || s == nil {
			return nil, until
		}
		o := s.owner(msg.Partition)
		if o == nil {
			return nil, until
		}
		if n := len(all); n == 0 || all[n-1].o != o || all[n-1].receipt.lease != r.lease {
			all = append(all, batch{o: o, receipt: r})
		}
		b := &all[len(all)-1]
		b.offsets, b.receipts = append(b.offsets, msg.Offset), append(b.receipts, msg.Receipt)
		if msg.LeaseUntil != nil && msg.LeaseUntil.After(until) {
			until = *msg.LeaseUntil
		}
	}
	return all, until
}

// pullAgain gives out again what is out, under the same receipts and for at
// least the lease from now on; nil when some of it is no longer.
func (m *Manager) pullAgain(ctx context.Context, req PullRequest, last []batch) (*Delivery, error) {
	if m.isDraining() || len(last) == 0 || slices.ContainsFunc(last, func(b batch) bool { return !b.held() }) {
		return nil, nil
	}
	g := last[0].o.s.g
	unproven, hold := g.proof()
	if hold {
		return nil, nil
	}
	lease := req.Lease
	if lease == 0 {
		lease = g.lease()
	}
	d := &Delivery{Return: func() {
		for _, b := range last {
			b.takeBack()
		}
	}}
	if unproven {
		d.Ownership = discovery.Unproven.String()
	}
	if c, err := checkChoice(req.Group, req.Topic); err == nil {
		if sub := g.subscription(c); sub != nil {
			d.Away = sub.away()
		}
	}
	for _, b := range last {
		hs, ok := b.again(time.Now(), lease)
		if !ok {
			return nil, nil
		}
		for i, x := range hs {
			msg := MessageOf(x.Ref)
			until := x.LeaseUntil.UTC()
			msg.Attempt, msg.LeaseUntil, msg.Receipt = x.Attempt, &until, b.receipts[i]
			d.Messages = append(d.Messages, msg)
		}
	}
	// The receipts that came along were settled with the first answer; those that
	// were not say what they would have said then.
	if len(req.Ack)+len(req.Nack) > 0 {
		acks := api.ReceiptResponse{Results: []api.ReceiptResult{}}
		for _, s := range []struct {
			settle   func(context.Context, string, string, api.Receipts) (api.ReceiptResponse, error)
			receipts []string
		}{{m.Ack, req.Ack}, {m.Nack, req.Nack}} {
			if len(s.receipts) == 0 {
				continue
			}
			r, err := s.settle(ctx, req.Group, req.Topic, api.Receipts{Receipts: s.receipts})
			if err != nil {
				return nil, err
			}
			acks.OK, acks.Failed, acks.Results = acks.OK+r.OK, acks.Failed+r.Failed, append(acks.Results, r.Results...)
		}
		d.Acks = &acks
	}
	return d, nil
}

// present says whether the partition is here as it was. It needs o.mu.
func (b batch) present() bool {
	o := b.o
	return o.win != nil && o.state == stateOwned && o.generation == b.receipt.generation && o.epoch == b.receipt.seekEpoch &&
		o.sess.Ownership() != discovery.Lost
}

// held says whether all of the batch is still out under its lease, and may be.
func (b batch) held() bool {
	if b.o.s.g.isPaused(b.o.key.Topic) {
		return false
	}
	b.o.mu.Lock()
	defer b.o.mu.Unlock()
	return b.present() && b.o.win.Holds(b.receipt.lease, b.offsets)
}

func (b batch) again(now time.Time, lease time.Duration) ([]window.Handout[*kgo.Record], bool) {
	b.o.mu.Lock()
	defer b.o.mu.Unlock()
	if !b.present() {
		return nil, false
	}
	return b.o.win.Again(now, b.receipt.lease, b.offsets, lease)
}

// takeBack returns messages that the application never got.
func (b batch) takeBack() {
	h := handed{o: b.o, generation: b.receipt.generation, epoch: b.receipt.seekEpoch}
	h.messages = []window.Handout[*kgo.Record]{{LeaseNo: b.receipt.lease}}
	b.o.takeBack(h)
}
