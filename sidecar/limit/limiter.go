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
//
// A slot cannot be put back, so what was taken and not used moves the clock: the
// slots that follow come earlier by it. Times of slots are by that clock, ahead of
// the real one by back.
type limiter struct {
	rate    int64 // messages or bytes a second
	perSlot int64 // of them
	clock   slotClock
	slots   ratelimit.Limiter
	hand    time.Time // a slot taken and not given yet; zero when none
	current time.Time // the slot given last
	left    int64     // of it
	back    time.Duration
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

// amount is what the rate gives in a time.
func (l *limiter) amount(d time.Duration) int64 { return int64(d.Seconds() * float64(l.rate)) }

// turn is when the next may pass.
func (l *limiter) turn(now time.Time) time.Time { return l.slot(now).Add(-l.back) }

func (l *limiter) slot(now time.Time) time.Time {
	if l.left > 0 {
		return l.current
	}
	if l.hand.IsZero() {
		l.hand = l.take(now)
	}
	return l.hand
}

func (l *limiter) take(now time.Time) time.Time {
	l.clock.now = now.Add(l.back)
	return l.slots.Take()
}

// use takes n out of the rate, from the next turn on: those who come later wait
// for as long as n takes. It returns the beginning of what was taken, by the
// limiter's clock.
func (l *limiter) use(n int64, now time.Time) (begin time.Time) {
	begin = l.slot(now)
	if real := now.Add(l.back); begin.Before(real) {
		begin = real
	}
	if n <= l.left {
		l.left -= n
		return begin
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
	return begin
}

// giveBack returns n of those that were taken with use and not used. What of it
// lies in the past is gone as any rate that nobody uses, but for the slack. It
// returns by how much earlier the turns behind it are now.
func (l *limiter) giveBack(n, taken int64, begin, now time.Time) time.Duration {
	ahead := begin.Add(l.length(taken)).Sub(now.Add(l.back)) + slackTime
	if n = min(n, l.amount(ahead)); n <= 0 {
		return 0
	}
	l.left += n
	slots := l.left / l.perSlot
	l.left %= l.perSlot
	earlier := time.Duration(slots) * l.length(l.perSlot)
	l.back += earlier
	return earlier
}

// idle tells that nothing would be lost if it began anew.
func (l *limiter) idle(now time.Time) bool {
	if l == nil {
		return true
	}
	now = now.Add(l.back)
	return now.Sub(l.current) > time.Second && now.Sub(l.hand) > time.Second
}
