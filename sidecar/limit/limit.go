// Package limit holds publishing to rates: by topic, by calling application,
// and in all, in messages and in bytes per second. A request waits for its turn
// for a while, and is refused with the true time to wait when that is too long.
//
// A request passes when the first of its messages may: the others are taken out
// of the rate, and those who come later wait for them. So a batch is not held
// back for what it uses up itself, and the rate holds all the same.
package limit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// Scopes of limits.
const (
	scopeTotal  = "total"
	scopeTopic  = "topic"
	scopeCaller = "caller"
)

const (
	// tolerance is the wait that is none: a timer takes about as long.
	tolerance = time.Millisecond

	// maxUse is how long one batch may use up a rate; max_wait where that is
	// longer. A larger one would shut out everybody else for longer.
	maxUse = 10 * time.Second
)

// Next is what publishes in the end.
type Next interface {
	Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error)
	PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error)
}

// Options of a Publisher beside its Config.
type Options struct {
	Timeout    time.Duration // of a request that names none; 0: waits are bounded by max_wait alone
	Registerer prometheus.Registerer
}

// Publisher lets pass what the limits allow. It is safe for concurrent use.
type Publisher struct {
	next    Next
	timeout time.Duration
	metrics *metrics
	limits  atomic.Pointer[limits]

	// mu is held by one Change at a time.
	mu sync.Mutex
}

// New limits what goes to next.
func New(cfg Config, next Next, o Options) (*Publisher, error) {
	p := &Publisher{next: next, timeout: o.Timeout}
	var err error
	if p.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("metrics of limits: %w", err)
	}
	return p, p.Change(cfg)
}

// Change puts other limits in force at once. Requests that wait go on to wait
// for the turn that they were given; limits that are the same remember what was
// used of them.
func (p *Publisher) Change(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := newLimits(cfg, p.limits.Load())
	if err != nil {
		return err
	}
	p.limits.Store(l)
	return nil
}

// Limits are those in force.
func (p *Publisher) Limits() Config { return p.limits.Load().cfg }

// Publish implements the sidecar's publishing of one message.
func (p *Publisher) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	l := p.limits.Load()
	if l.none {
		return p.next.Publish(ctx, topic, m, o)
	}
	r := request{topic, o.Caller, 1, size(m), false}
	t, e := p.admit(ctx, l, r, o)
	if e != nil {
		return api.Published{}, e
	}
	done, err := p.next.Publish(ctx, topic, m, o)
	if notSent(err) {
		t.giveBack(r)
	}
	return done, err
}

// PublishBatch implements the sidecar's publishing of several messages: all of
// them pass or none.
func (p *Publisher) PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	l := p.limits.Load()
	if l.none || len(ms) == 0 {
		return p.next.PublishBatch(ctx, topic, ms, o)
	}
	r := request{topic, o.Caller, int64(len(ms)), 0, len(ms) > 1}
	for _, m := range ms {
		r.bytes += size(m)
	}
	t, e := p.admit(ctx, l, r, o)
	if e != nil {
		return nil, e
	}
	results, err := p.next.PublishBatch(ctx, topic, ms, o)
	unsent := request{}
	if notSent(err) {
		unsent = r
	}
	for i := range results {
		if e := results[i].Error; e != nil && notSent(e) {
			unsent.messages++
			unsent.bytes += size(ms[i])
		}
	}
	if unsent.messages > 0 {
		t.giveBack(unsent)
	}
	return results, err
}

// notSent tells that a message is certainly not written: only one whose outcome
// is not known may be.
func notSent(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Code != api.CodeUnknownOutcome
}

func size(m publish.Message) int64 {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return int64(n)
}

// request is what one request asks for.
type request struct {
	topic, caller   string
	messages, bytes int64
	divisible       bool // smaller requests could say the same
}

// limits are the gates of one configuration.
type limits struct {
	cfg             Config
	none            bool
	total           *gate // nil: no limit
	topics, callers *table
}

func newLimits(cfg Config, before *limits) (*limits, error) {
	l := &limits{cfg: cfg}
	var topics, callers *table
	if before != nil {
		l.total, topics, callers = before.total, before.topics, before.callers
	}
	var err error
	if l.topics, err = newTable(scopeTopic, cfg.Topics, topics); err != nil {
		return nil, err
	}
	if l.callers, err = newTable(scopeCaller, cfg.Callers, callers); err != nil {
		return nil, err
	}
	switch r := (rates{cfg.MessagesPerSecond, cfg.BytesPerSecond}); {
	case r.none():
		l.total = nil
	case l.total == nil || l.total.rates != r:
		l.total = newGate(r, label{scopeTotal, ""}, "this sidecar")
	}
	l.none = l.total == nil && l.topics.empty() && l.callers.empty()
	return l, nil
}

// admit waits until a request may pass. When that would take longer than
// max_wait, or than the request has time, it refuses at once, and nothing is
// taken of any rate.
func (p *Publisher) admit(ctx context.Context, l *limits, r request, o publish.Options) (ticket, *api.Error) {
	now := time.Now()
	longest := l.cfg.MaxWait
	if timeout := p.timeoutOf(o); timeout > 0 {
		begun := o.Begun
		if begun.IsZero() {
			begun = now
		}
		longest = min(longest, timeout-now.Sub(begun))
	}
	if deadline, ok := ctx.Deadline(); ok {
		longest = min(longest, deadline.Sub(now))
	}
	v := l.reserve(r, now, max(longest, tolerance))
	if v.refused != nil {
		p.metrics.refuse(v, r)
		return ticket{}, v.refused
	}
	if v.wait > tolerance {
		p.metrics.delay(v, r)
		if !v.ticket.wait(ctx) {
			return ticket{}, api.NewError(api.CodeDraining, "the request was given up while it waited for its turn; nothing was sent")
		}
	}
	return v.ticket, nil
}

func (p *Publisher) timeoutOf(o publish.Options) time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return p.timeout
}

// verdict is what the limits say of a request: how long it waits, or why it is
// refused, and by which of them.
type verdict struct {
	ticket  ticket
	wait    time.Duration
	by      label
	unit    string
	refused *api.Error
}

// reserve takes a request out of all rates that it counts to, or out of none.
// Gates are locked in one order: the topic's, the caller's, that of all.
func (l *limits) reserve(r request, now time.Time, longest time.Duration) (v verdict) {
	var by *gate // whose turn is the last
	gates := [3]*gate{l.topics.of(r.topic, now), l.callers.of(r.caller, now), l.total}
	for _, g := range gates {
		if g == nil {
			continue
		}
		if d, unit := g.longest(r); r.divisible && d > max(maxUse, l.cfg.MaxWait) {
			return verdict{by: g.label, unit: unit, refused: tooMuch(g, unit, r, max(maxUse, l.cfg.MaxWait))}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		at, unit := g.turn(now)
		if wait := at.Sub(now); wait > v.wait {
			v.wait, v.by, v.unit, by = wait, g.label, unit, g
		}
	}
	if v.wait > longest {
		v.refused = limited(by, v.unit, v.wait, longest)
		return v
	}
	v.ticket = ticket{taken: r, gates: gates}
	for i, g := range gates {
		if g != nil {
			v.ticket.places[i] = g.use(r, now)
		}
	}
	return v
}

func (g *gate) rate(unit string) int64 {
	if unit == unitBytes {
		return g.rates.bytes
	}
	return g.rates.messages
}

func limited(g *gate, unit string, wait, longest time.Duration) *api.Error {
	e := api.NewError(api.CodeRateLimited, fmt.Sprintf(
		"%s is limited to %d %s/s: the next may pass in %s, and waits at most %s; nothing was sent",
		g.title, g.rate(unit), unit, wait.Round(time.Millisecond), longest.Round(time.Millisecond)))
	e.RetryAfterMillis = max(1, (wait + time.Millisecond - 1).Milliseconds())
	return e
}

func tooMuch(g *gate, unit string, r request, most time.Duration) *api.Error {
	n := r.messages
	if unit == unitBytes {
		n = r.bytes
	}
	return api.NewError(api.CodeRequestTooLarge, fmt.Sprintf(
		"%s is limited to %d %s/s, and the batch has %d %s: at most %d, those of %s, are allowed in one; send smaller batches, nothing was sent",
		g.title, g.rate(unit), unit, n, unit, int64(most.Seconds()*float64(g.rate(unit))), most))
}
