package discovery

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lease is the Session of both stores: it renews itself until it is destroyed,
// lost or its store closed.
type lease struct {
	id      string
	ttl     time.Duration
	every   time.Duration // between two renewals
	timeout time.Duration // of one renewal: a paused store must not hang it for ever
	renew   func(context.Context) error
	destroy func(context.Context) error
	log     *zap.Logger

	stop    context.CancelFunc
	stopped <-chan struct{} // ends when the renewals were told to stop
	done    chan struct{}   // closed when the renewals have stopped
	lost    chan struct{}

	mu   sync.Mutex // guards sent, gone
	sent time.Time  // when the last successful renewal was sent
	gone bool
}

// renewEvery is the share of the TTL between two renewals: 3 s of 10 s.
func renewEvery(ttl time.Duration) time.Duration { return ttl * 3 / 10 }

// confirmAfter is how long after the first renewal that succeeded again another
// must confirm it: 1 s with a TTL of 10 s.
func confirmAfter(ttl time.Duration) time.Duration { return ttl / 10 }

// newLease starts to renew a session that was asked for at sent.
func newLease(k *keepers, id string, ttl time.Duration, sent time.Time, log *zap.Logger,
	renew, destroy func(context.Context) error) (*lease, error) {
	l := &lease{
		id: id, ttl: ttl, every: renewEvery(ttl), timeout: max(ttl/4, time.Second),
		renew: renew, destroy: destroy, log: log.With(zap.String("session", id)),
		done: make(chan struct{}), lost: make(chan struct{}), sent: sent,
	}
	ctx, cancel := context.WithCancel(k.ctx)
	l.stop, l.stopped = cancel, ctx.Done()
	if !k.start(func(context.Context) { l.run(ctx) }) {
		cancel()
		return nil, errClosed
	}
	return l, nil
}

func (l *lease) ID() string            { return l.id }
func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.sent)
}

func (l *lease) Ownership() Ownership {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gone:
		return Lost
	case time.Since(l.sent) >= l.ttl:
		return Unproven
	}
	return Proven
}

// Destroy may be called again after an error; the renewals stop with the first call.
func (l *lease) Destroy(ctx context.Context) error {
	l.stop()
	<-l.done // at once: the call in flight is cancelled
	if l.Ownership() == Lost {
		return nil
	}
	if err := l.destroy(ctx); err != nil {
		return err
	}
	l.lose()
	return nil
}

func (l *lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.gone = true
		close(l.lost)
	}
}

func (l *lease) run(ctx context.Context) {
	defer close(l.done)
	defer l.stop()
	timer := time.NewTimer(l.every - l.Age())
	defer timer.Stop()
	failing := false
	var doubted time.Time // when the renewal was sent that is to be confirmed; zero: none
	for {
		select {
		case <-l.stopped:
			return
		case <-timer.C:
		}
		sent := time.Now()
		call, cancel := context.WithTimeout(ctx, l.timeout)
		err := l.renew(call)
		cancel()
		wait := l.every - time.Since(sent)
		switch {
		case err == nil && l.Ownership() == Unproven && doubted.IsZero():
			// A store that was away for so long may be about to end the session:
			// Consul, as it wakes from a pause, answers renewals of sessions whose
			// time is over and which it ends in the same moment.
			doubted = sent
			wait = confirmAfter(l.ttl)
		case err == nil:
			l.mu.Lock()
			l.sent = sent
			l.mu.Unlock()
			doubted = time.Time{}
			if failing {
				l.log.Info("session is renewed again")
			}
			failing = false
		case errors.Is(err, ErrSessionLost):
			l.log.Warn("session is lost: the store no longer knows it")
			l.lose()
			return
		case ctx.Err() != nil:
			return
		default:
			// Only the store may call a session lost: an error means that we
			// do not know, so try again, sooner than usual.
			if !failing {
				l.log.Warn("session cannot be renewed, trying again", zap.Error(err))
			}
			failing = true
			doubted = time.Time{}
			wait = jitter(l.every / 4)
		}
		timer.Reset(wait)
	}
}
