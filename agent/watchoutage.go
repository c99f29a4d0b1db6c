package agent

import (
	"context"
	"strconv"
	"time"
)

const (
	lookEvery = 500 * time.Millisecond // ages are looked at so often
	lookLeast = 200 * time.Millisecond // between two looks, though the view changes all the time
)

// watchOutage keeps alarms and metrics of what has no leader until ctx ends.
func (a *Agent) watchOutage(ctx context.Context) error {
	var known outages
	raised := map[string]bool{}
	for {
		_, newer := a.viewAndNext()
		known = a.lookForOutage(known, raised)
		timer := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-newer:
			timer.Stop()
			if !sleep(ctx, lookLeast) {
				return nil
			}
		case <-timer.C:
		}
	}
}

func (a *Agent) lookForOutage(known outages, raised map[string]bool) outages {
	f, _ := a.mirror.Latest()
	v, now := a.View(), time.Now()
	known, out := known.look(f, v, a.silent(f, now), a.ID(), now, a.storeSeen(now))
	a.mu.Lock()
	a.outage = out
	a.mu.Unlock()
	texts := out.alarms(now)
	for kind := range raised {
		if _, stands := texts[kind]; !stands {
			a.alarms.put(kind, "")
			delete(raised, kind)
		}
	}
	for kind, text := range texts {
		a.alarms.put(kind, text)
		raised[kind] = true
	}
	a.metrics.offline.Set(float64(out.Offline))
	a.metrics.missing.Set(float64(out.brokersMissing()))
	a.metrics.brokersUp(up(f.ServingIDs(), known))
	return known
}

// up says of each broker that is there, or holds partitions, whether it serves.
func up(serving []int32, known outages) map[string]bool {
	is := map[string]bool{}
	for _, id := range serving {
		is[strconv.Itoa(int(id))] = true
	}
	for id, a := range known.gone { // also one that is registered and silent
		is[strconv.Itoa(int(id))] = !a.back.IsZero()
	}
	return is
}

// storeSeen is when the coordination store last answered this agent, zero when
// it never did.
func (a *Agent) storeSeen(now time.Time) time.Time {
	s := a.liveSession()
	a.mu.Lock()
	defer a.mu.Unlock()
	if s != nil {
		if at := now.Add(-s.Age()); at.After(a.seen) {
			a.seen = at
		}
	}
	return a.seen
}

// Outage is what of the cluster had no leader when this agent last looked, at
// most about a second ago.
func (a *Agent) Outage() Outage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outage
}
