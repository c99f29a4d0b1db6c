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
	// SuspectNodeAfter is as SuspectAfter where the service's own check passes and
	// its node is critical. While a host's Consul agent pauses it runs no checks
	// and answers no gossip: the servers find the node gone after 5 to 8 s and
	// see it again a second or so after it wakes. A pause of 10 s is no death; a
	// session of a host that is dead would live 20 s.
	SuspectNodeAfter = 8 * time.Second

	GapWindow = 5 * time.Second // while in this last time
	GapLimit  = 2 * time.Second // our own beats had no longer gap
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
	since map[Holder]critical
}

// critical is since when a holder is: by its own check, and by that or its node's.
// The zero time is not at all.
type critical struct{ own, any time.Time }

// Observe takes in the instances of a service and who holds sessions, as they
// are now. A service that is registered more than once, as on two nodes after a
// move, is critical only when each of its instances is. One that is not
// registered is not critical: absence proves nothing, and its session ends by
// itself.
func (s *Suspicion) Observe(now time.Time, instances []Instance, holders []Holder) {
	registered, beating, passing := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, in := range instances {
		registered[in.ID] = true
		beating[in.ID] = beating[in.ID] || in.Beating
		passing[in.ID] = passing[in.ID] || in.Passing
	}
	since := map[Holder]critical{}
	for _, h := range holders {
		if passing[h.Service] || !registered[h.Service] {
			continue
		}
		c := s.since[h]
		if c.any.IsZero() {
			c.any = now
		}
		switch {
		case beating[h.Service]:
			c.own = time.Time{}
		case c.own.IsZero():
			c.own = now
		}
		since[h] = c
	}
	s.since = since
}

// Critical reports whether any holder's service is critical.
func (s *Suspicion) Critical() bool { return len(s.since) > 0 }

// Suspects lists the holders that were seen critical for SuspectAfter, or their
// nodes for SuspectNodeAfter, sorted; none when ownGap, the longest gap between our own beats in the last GapWindow,
// is over GapLimit.
func (s *Suspicion) Suspects(now time.Time, ownGap time.Duration) []Holder {
	if ownGap > GapLimit {
		return nil
	}
	var suspects []Holder
	for h, c := range s.since {
		if !c.own.IsZero() && now.Sub(c.own) >= SuspectAfter || now.Sub(c.any) >= SuspectNodeAfter {
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
