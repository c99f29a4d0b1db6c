package limit

import (
	"time"

	"go.uber.org/ratelimit"
)

const (
	// slackTime is how much of an unused rate may be caught up in a burst.
	slackTime = 20 * time.Millisecond

	// minSlot is the shortest slot. Shorter ones would cost more time than they
	// measure, and their length is a whole number of nanoseconds.
	minSlot = 250 * time.Microsecond
)

// slotClock makes a limiter tell the time of the slot instead of sleeping for
// it, at the time that it is told.
type slotClock struct{ now time.Time }

func (c *slotClock) Now() time.Time      { return c.now }
func (c *slotClock) Sleep(time.Duration) {}

// limiter gives out a rate in slots, each for a number of messages or bytes. It
// knows how long the next slot is away before it gives it, since one is taken
// ahead and kept in hand. What a slot holds beyond what was asked for is left to
// the next, so small messages are not rounded up. It is not safe for concurrent
// use.
type limiter struct {
	rate    int64 // messages or bytes a second
	perSlot int64 // of them
	clock   slotClock
	slots   ratelimit.Limiter
	hand    time.Time // a slot taken and not given yet; zero when none
	current time.Time // the slot given last
	left    int64     // of it
}

// newLimiter limits to a rate of 1 to maxBytes a second.
func newLimiter(rate int64) *limiter {
	l := &limiter{rate: rate, perSlot: 1}
	for l.length(l.perSlot) < minSlot {
		l.perSlot *= 2
	}
	slot := l.length(l.perSlot)
	l.slots = ratelimit.New(1, ratelimit.Per(slot), ratelimit.WithSlack(int(slackTime/slot)), ratelimit.WithClock(&l.clock))
	return l
}

// length is how long the rate takes for n; n is at most some slots' worth.
func (l *limiter) length(n int64) time.Duration {
	return time.Duration(float64(n) / float64(l.rate) * float64(time.Second))
}

// turn is when the next may pass.
func (l *limiter) turn(now time.Time) time.Time {
	if l.left > 0 {
		return l.current
	}
	if l.hand.IsZero() {
		l.hand = l.take(now)
	}
	return l.hand
}

func (l *limiter) take(now time.Time) time.Time {
	l.clock.now = now
	return l.slots.Take()
}

// use takes n out of the rate, from the next turn on: those who come later wait
// for as long as n takes.
func (l *limiter) use(n int64, now time.Time) {
	if n <= l.left {
		l.left -= n
		return
	}
	n -= l.left
	slots := (n + l.perSlot - 1) / l.perSlot
	for range slots {
		if l.current = l.hand; l.current.IsZero() {
			l.current = l.take(now)
		}
		l.hand = time.Time{}
	}
	l.left = slots*l.perSlot - n
}

// idle tells that nothing would be lost if it began anew.
func (l *limiter) idle(now time.Time) bool {
	return l == nil || now.Sub(l.current) > time.Second && now.Sub(l.hand) > time.Second
}
