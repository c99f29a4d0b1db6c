package publish

import (
	"context"
	"sync"
	"time"
)

// expiry bounds how long records stay in the brokers' client. Its own bound
// (RecordDeliveryTimeout) goes by the records' timestamps, which are the
// callers' and may lie far back; the callers' contexts must not go along,
// since the end of one would fail its neighbours in the batch. So records of
// about the same time share one context that ends after all of them are old.
type expiry struct {
	after time.Duration

	// mu guards what follows.
	mu      sync.Mutex
	made    time.Time
	current context.Context
	ends    []context.CancelFunc // of the contexts that may still be in use
}

// context for a record that enters now: it ends after e.after at the earliest,
// a quarter later at the latest.
func (e *expiry) context(now time.Time) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	window := e.after / 4
	if e.current == nil || now.Sub(e.made) >= window {
		var cancel context.CancelFunc
		e.current, cancel = context.WithTimeout(context.Background(), e.after+window)
		e.made = now
		e.ends = append(e.ends, cancel)
		if len(e.ends) > 6 { // older ones have ended by themselves
			e.ends[0]()
			e.ends = e.ends[1:]
		}
	}
	return e.current
}

// close ends all of them; call it when no record is on its way any more.
func (e *expiry) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.ends {
		end()
	}
	e.ends, e.current = nil, nil
}
