package publish

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/ratelimit"

	"sidestream/sdk/api"
)

// slackTime is how much of an unused rate may be caught up in a burst.
const slackTime = 20 * time.Millisecond

// takeClock makes a limiter tell the time of the slot instead of sleeping for it.
type takeClock struct{}

func (takeClock) Now() time.Time      { return time.Now() }
func (takeClock) Sleep(time.Duration) {}

// limiter gives out slots of a rate. It knows how long the next one is away
// before it gives it, since one slot is always taken ahead and kept in hand.
type limiter struct {
	rate int
	per  time.Duration

	// mu guards slots and hand; the limiter never sleeps under it.
	mu    sync.Mutex
	slots ratelimit.Limiter
	hand  time.Time // a slot taken and not given yet; zero when none
}

func newLimiter(rate int) *limiter {
	slack := int(int64(rate) * int64(slackTime) / int64(time.Second))
	return &limiter{
		rate:  rate,
		per:   time.Second / time.Duration(rate),
		slots: ratelimit.New(rate, ratelimit.WithClock(takeClock{}), ratelimit.WithSlack(slack)),
	}
}

// wait is how long the last of the next n slots is away; mu is held. For n > 1
// it may be too long by the slack.
func (l *limiter) wait(n int) time.Duration {
	if l.hand.IsZero() {
		l.hand = l.slots.Take()
	}
	return max(0, time.Until(l.hand)+time.Duration(n-1)*l.per)
}

// take gives n slots out; mu is held and wait was called.
func (l *limiter) take(n int) (last time.Time) {
	last, l.hand = l.hand, time.Time{}
	for range n - 1 {
		last = l.slots.Take()
	}
	return last
}

// limits are the limiters in force: the total, by topic.
type limits struct {
	maxWait time.Duration
	total   *limiter
	topics  map[string]*limiter
}

func newLimits(c RateConfig) (*limits, error) {
	byTopic, err := c.topics()
	if err != nil {
		return nil, err
	}
	l := &limits{maxWait: c.MaxWait, topics: make(map[string]*limiter, len(byTopic))}
	if c.MessagesPerSecond > 0 {
		l.total = newLimiter(c.MessagesPerSecond)
	}
	for topic, rate := range byTopic {
		l.topics[topic] = newLimiter(rate)
	}
	return l, nil
}

// admit waits until n messages of a topic may pass. When that would take
// longer than maxWait, or than ctx lasts, it refuses with rate_limited at once,
// and no slot is used up.
func (l *limits) admit(ctx context.Context, topic string, n int) *api.Error {
	byTopic := l.topics[topic]
	if l.total == nil && byTopic == nil || n == 0 {
		return nil
	}
	until, refused := l.reserve(ctx, topic, byTopic, n)
	if refused != nil {
		return refused
	}
	wait := time.Until(until)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done(): // cannot be: the wait ends before ctx, unless it was cancelled
		return api.NewError(api.CodeDraining, "the request was given up while it waited for its turn; nothing was sent")
	}
}

// reserve takes n slots of both limiters or of none; the topic's is locked
// first, always.
func (l *limits) reserve(ctx context.Context, topic string, byTopic *limiter, n int) (until time.Time, refused *api.Error) {
	longest := l.maxWait
	if deadline, ok := ctx.Deadline(); ok {
		longest = min(longest, time.Until(deadline))
	}
	both := [2]*limiter{byTopic, l.total}
	for i, lim := range both {
		if lim == nil {
			continue
		}
		lim.mu.Lock()
		defer lim.mu.Unlock()
		if wait := lim.wait(n); wait > longest {
			scope := "topic " + topic
			if i == 1 {
				scope = "this sidecar"
			}
			return time.Time{}, limited(scope, lim.rate, n, wait, longest)
		}
	}
	for _, lim := range both {
		if lim == nil {
			continue
		}
		if at := lim.take(n); at.After(until) {
			until = at
		}
	}
	return until, nil
}

func limited(scope string, rate, n int, wait, longest time.Duration) *api.Error {
	e := api.NewError(api.CodeRateLimited, fmt.Sprintf(
		"%s is limited to %d messages/s: %d more would wait %s, longer than %s; nothing was sent",
		scope, rate, n, wait.Round(time.Millisecond), longest.Round(time.Millisecond)))
	e.RetryAfterMillis = max(1, wait.Milliseconds())
	return e
}
