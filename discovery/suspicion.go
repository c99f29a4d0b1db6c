package discovery

import (
	"context"
	"slices"
	"sync"
	"time"
)

// The rule of suspicion. Sessions outlive their holder by two TTLs; the
// service's check, three seconds, tells sooner. But a check also turns critical
// when a host or its Consul agent merely paused, so suspicion waits a moment,
// and one who may have paused itself suspects nobody.
const (
	SuspectAfter = 1500 * time.Millisecond // critical for this long
	GapWindow    = 5 * time.Second         // while in this last time
	GapLimit     = 2 * time.Second         // our own beats had no longer gap
)

// Suspicion remembers since when services are critical. It holds no clock and
// does no I/O; the zero value is ready. Not safe for concurrent use.
type Suspicion struct {
	since map[string]time.Time
}

// Observe takes in the instances of a service as they are now. A service that
// is registered more than once, as on two nodes after a move, is critical only
// when each of its instances is. One that is not registered is not critical:
// absence proves nothing, and its session ends by itself.
func (s *Suspicion) Observe(now time.Time, instances []Instance) {
	passing := map[string]bool{}
	for _, in := range instances {
		passing[in.ID] = passing[in.ID] || in.Passing
	}
	since := map[string]time.Time{}
	for id, ok := range passing {
		if ok {
			continue
		}
		if t, known := s.since[id]; known {
			since[id] = t
		} else {
			since[id] = now
		}
	}
	s.since = since
}

// Critical reports whether any service is critical.
func (s *Suspicion) Critical() bool { return len(s.since) > 0 }

// Suspects lists the ids of the services that were seen critical for
// SuspectAfter, sorted; none when ownGap, the longest gap between our own beats
// in the last GapWindow, is over GapLimit.
func (s *Suspicion) Suspects(now time.Time, ownGap time.Duration) []string {
	if ownGap > GapLimit {
		return nil
	}
	var ids []string
	for id, since := range s.since {
		if now.Sub(since) >= SuspectAfter {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// suspectEvery is how often FollowSuspects looks while someone is critical.
const suspectEvery = 500 * time.Millisecond

// FollowSuspects calls f with the ids of a service's suspected instances, twice
// a second for as long as there are any, each time after a fresh read of their
// health. f looks up who stands behind an id and destroys its session; what it
// did before is to be expected among the ids. own is the caller's registration.
// FollowSuspects returns only when ctx ends, with its error.
func FollowSuspects(ctx context.Context, store Store, service string, own Registration, f func(ctx context.Context, ids []string)) error {
	var (
		mu sync.Mutex // guards s
		s  Suspicion
	)
	observe := func(instances []Instance) {
		mu.Lock()
		defer mu.Unlock()
		s.Observe(time.Now(), instances)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { _ = FollowServices(ctx, store, service, observe) }) // ends with ctx only

	for {
		if err := sleep(ctx, suspectEvery); err != nil {
			return err
		}
		mu.Lock()
		critical := s.Critical()
		mu.Unlock()
		if !critical {
			continue
		}
		call, done := context.WithTimeout(ctx, GapLimit)
		now, _, err := store.WatchServices(call, service, 0)
		done()
		if err != nil {
			continue // who cannot read health must not judge it
		}
		mu.Lock()
		s.Observe(time.Now(), now)
		suspects := s.Suspects(time.Now(), own.LongestGap(GapWindow))
		mu.Unlock()
		if len(suspects) > 0 {
			f(ctx, suspects)
		}
	}
}
