package clock

import (
	"context"
	"time"

	"sidestream/discovery"
)

// TellEvery is how often an agent whose clock has a witness tells it to others.
const TellEvery = 5 * time.Minute

// Told is what this machine's clock says, for others. ok is false while it has
// no witness but, at most, what others told: machines that know nothing would
// confirm each other.
func (c *Clock) Told() (t discovery.ToldTime, ok bool) {
	s := c.now.Load()
	if !s.first {
		return t, false
	}
	passed := time.Since(s.at).Milliseconds()
	return discovery.ToldTime{At: s.wall + passed, Boot: c.opt.machine.read().boot, Writer: discovery.NewNonce()}, true
}

// Peers tells the time by what the agents of other machines have told the store.
// What they told has no date of its own: a key counts when it was written between
// two looks, so the first look finds nothing.
func Peers(store discovery.Store) Remote {
	return peers(store, realMachine{})
}

func peers(store discovery.Store, own machine) Remote {
	var seen map[string]uint64 // versions; nil before the first look
	return Remote{Name: "another broker's machine", peer: true, Ask: func(ctx context.Context) (at time.Time, ok bool) {
		es, err := store.List(ctx, discovery.PrefixClocks)
		if err != nil {
			return at, false
		}
		before := seen
		seen = make(map[string]uint64, len(es))
		for _, e := range es {
			seen[e.Key] = e.Version
			if ok || before == nil || before[e.Key] == e.Version {
				continue
			}
			t, err := discovery.Decode[discovery.ToldTime](e)
			if err == nil && t.Boot != "" && t.Boot != own.read().boot {
				at, ok = time.UnixMilli(t.At), true
			}
		}
		return at, ok
	}}
}
