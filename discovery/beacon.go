package discovery

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
)

// errForgotten: the registry no longer knows the service; register it again.
var errForgotten = errors.New("discovery: the registry forgot the service")

// errClosed: the store was closed.
var errClosed = errors.New("discovery: the store is closed")

// beatEvery is the share of the check's TTL between two beats: 1 s of 3 s.
func beatEvery(checkTTL time.Duration) time.Duration { return checkTTL / 3 }

// beacon is the Registration of both stores.
type beacon struct {
	every      time.Duration
	timeout    time.Duration // of one beat
	register   func(context.Context) error
	beat       func(context.Context) error
	deregister func(context.Context) error
	log        *zap.Logger

	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex // guards beats
	beats beatLog
}

// newBeacon beats for a service that was registered just now.
func newBeacon(k *keepers, id string, checkTTL time.Duration, log *zap.Logger,
	register, beat, deregister func(context.Context) error) (*beacon, error) {
	b := &beacon{
		every: beatEvery(checkTTL), timeout: max(beatEvery(checkTTL), time.Second),
		register: register, beat: beat, deregister: deregister,
		log: log.With(zap.String("service", id)), done: make(chan struct{}),
	}
	b.beats.add(time.Now())
	ctx, cancel := context.WithCancel(k.ctx)
	b.stop = cancel
	if !k.start(func(context.Context) { b.run(ctx) }) {
		cancel()
		return nil, errClosed
	}
	return b, nil
}

func (b *beacon) LongestGap(window time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.beats.longestGap(time.Now(), window)
}

// Deregister may be called again after an error; the beats stop with the first
// call, so that the service turns critical by itself.
func (b *beacon) Deregister(ctx context.Context) error {
	b.stop()
	<-b.done // at once: the call in flight is cancelled
	return b.deregister(ctx)
}

func (b *beacon) run(ctx context.Context) {
	defer close(b.done)
	defer b.stop()
	timer := time.NewTimer(b.every)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		start := time.Now()
		err := b.once(ctx)
		switch {
		case err == nil:
			b.mu.Lock()
			b.beats.add(time.Now())
			b.mu.Unlock()
			failing = false
		case ctx.Err() != nil:
			return
		default:
			if !failing {
				b.log.Warn("service cannot be beaten, trying again", zap.Error(err))
			}
			failing = true
		}
		timer.Reset(max(b.every-time.Since(start), b.every/10))
	}
}

func (b *beacon) once(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := b.beat(call)
	if !errors.Is(err, errForgotten) {
		return err
	}
	b.log.Warn("the registry forgot the service, registering it again")
	return b.register(call)
}

// beatsKept covers a window of over a minute at one beat a second.
const beatsKept = 90

// beatLog remembers when the last beats were accepted, oldest first.
type beatLog struct{ at []time.Time }

func (l *beatLog) add(now time.Time) {
	if len(l.at) == beatsKept {
		l.at = append(l.at[:0], l.at[1:]...)
	}
	l.at = append(l.at, now)
}

// longestGap is the longest time between two neighbours of: the beats and now,
// as far as it touches the last window. Where the log begins inside the window
// the time before counts as a gap from the window's start: one who has just
// begun to beat cannot vouch for what was before.
func (l *beatLog) longestGap(now time.Time, window time.Duration) time.Duration {
	start := now.Add(-window)
	before := start
	var longest time.Duration
	for i, at := range l.at {
		if i == 0 && at.Before(start) {
			before = at
		}
		if !at.Before(start) {
			longest = max(longest, at.Sub(before))
		}
		before = at
	}
	return max(longest, now.Sub(before))
}
