package agent

import (
	"context"
	"time"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

// silentAfter is for how long a broker's check must be critical until it counts
// as missing here. Its session, which proves more, ends a second or more later
// (discovery.SuspectAfter): an operator need not wait for the proof.
const silentAfter = 700 * time.Millisecond

// silences is since when the checks of registered brokers have been critical, by
// the id of the registration.
type silences map[string]time.Time

// observe takes the news of all instances in. It is pure.
func (s silences) observe(now time.Time, instances []discovery.Instance) silences {
	next, beating := silences{}, map[string]bool{}
	for _, in := range instances {
		beating[in.ID] = beating[in.ID] || in.Beating
	}
	for id, beats := range beating {
		switch since, was := s[id]; {
		case beats:
		case was:
			next[id] = since
		default:
			next[id] = now
		}
	}
	return next
}

// brokers are the registered brokers that are silent. Who has not beaten itself
// for a while cannot tell, since it may have been paused.
func (s silences) brokers(f *facts.Facts, now time.Time, ownGap time.Duration) map[int32]bool {
	if ownGap > discovery.GapLimit {
		return nil
	}
	var silent map[int32]bool
	for id, b := range f.Brokers {
		if since, is := s[b.Service]; is && b.Port != 0 && now.Sub(since) >= silentAfter {
			if silent == nil {
				silent = map[int32]bool{}
			}
			silent[id] = true
		}
	}
	return silent
}

// watchSilence follows the checks of all brokers until ctx ends.
func (a *Agent) watchSilence(ctx context.Context) error {
	_ = discovery.FollowServices(ctx, a.store, discovery.ServiceBroker, func(instances []discovery.Instance) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.silences = a.silences.observe(time.Now(), instances)
	}) // ends with ctx only
	return nil
}

// silent are the brokers whose checks are critical now.
func (a *Agent) silent(f *facts.Facts, now time.Time) map[int32]bool {
	own := a.registration()
	if own == nil {
		return nil
	}
	gap := own.LongestGap(discovery.GapWindow)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.silences.brokers(f, now, gap)
}
