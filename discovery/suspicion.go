package discovery

import (
	"cmp"
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

// Holder is one life of a service: its registration's id with the session that
// it holds its keys by.
type Holder struct{ Service, Session string }

// Suspicion remembers since when holders are critical. It holds no clock and
// does no I/O; the zero value is ready. Not safe for concurrent use.
//
// Time counts from when the check was seen critical and the session was known,
// both: a process that restarts after a crash is there with a new session while
// the check that its earlier life left behind is still critical for a moment.
type Suspicion struct {
	since map[Holder]time.Time
}

// Observe takes in the instances of a service and who holds sessions, as they
// are now. A service that is registered more than once, as on two nodes after a
// move, is critical only when each of its instances is. One that is not
// registered is not critical: absence proves nothing, and its session ends by
// itself.
func (s *Suspicion) Observe(now time.Time, instances []Instance, holders []Holder) {
	passing := map[string]bool{}
	for _, in := range instances {
		passing[in.ID] = passing[in.ID] || in.Passing
	}
	since := map[Holder]time.Time{}
	for _, h := range holders {
		if ok, registered := passing[h.Service]; ok || !registered {
			continue
		}
		if t, known := s.since[h]; known {
			since[h] = t
		} else {
			since[h] = now
		}
	}
	s.since = since
}

// Critical reports whether any holder's service is critical.
func (s *Suspicion) Critical() bool { return len(s.since) > 0 }

// Suspects lists the holders that were seen critical for SuspectAfter, sorted;
// none when ownGap, the longest gap between our own beats in the last GapWindow,
// is over GapLimit.
func (s *Suspicion) Suspects(now time.Time, ownGap time.Duration) []Holder {
	if ownGap > GapLimit {
		return nil
	}
	var suspects []Holder
	for h, since := range s.since {
		if now.Sub(since) >= SuspectAfter {
			suspects = append(suspects, h)
		}
	}
	slices.SortFunc(suspects, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Session, b.Session))
	})
	return suspects
}

// suspectEvery is how often FollowSuspects looks while someone is critical.
const suspectEvery = 500 * time.Millisecond

// FollowSuspects calls f with the suspects among a service's holders, twice a
// second for as long as there are any, each time after a fresh read of their
// health. holders tells who is to be judged at present; it must not block, and
// may be called by several goroutines. f destroys the suspects' sessions; one
// that it destroyed before may be among them until holders leaves it out. own
// is the caller's registration. FollowSuspects returns only when ctx ends, with
// its error.
func FollowSuspects(ctx context.Context, store Store, service string, own Registration,
	holders func() []Holder, f func(ctx context.Context, suspects []Holder)) error {
	var (
		mu   sync.Mutex // guards what follows
		s    Suspicion
		seen []Instance
	)
	observe := func(instances []Instance) {
		who := holders()
		mu.Lock()
		defer mu.Unlock()
		seen = instances
		s.Observe(time.Now(), instances, who)
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
		who := holders()
		mu.Lock()
		s.Observe(time.Now(), seen, who) // who came since the last news
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
		observe(now)
		mu.Lock()
		suspects := s.Suspects(time.Now(), own.LongestGap(GapWindow))
		mu.Unlock()
		if len(suspects) > 0 {
			f(ctx, suspects)
		}
	}
}
