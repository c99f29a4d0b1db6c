package consume

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// How long what is left of a removed group, a seek for each topic, is kept for
// the sake of sidecars that are away.
const (
	keepRemoved          = 30 * 24 * time.Hour
	keepRemovedEphemeral = 24 * time.Hour
)

// keeper looks after the groups of the cluster, on the one sidecar that holds
// its lock: it removes those that nobody has used for long, and counts what all
// cost.
type keeper struct {
	m     *Manager
	every time.Duration       // between two looks
	seen  map[string]sighting // groups that have no member, by name
	lags  idleLags
}

func newKeeper(m *Manager, every time.Duration) *keeper {
	return &keeper{m: m, every: every, seen: map[string]sighting{}, lags: idleLags{m: m, shown: map[idleTopic]bool{}}}
}

// sighting is a group without members as it was last seen.
type sighting struct {
	created uint64        // of its idle key: another one is another time
	since   time.Time     // as it says
	version uint64        // of the idle key
	stored  time.Duration // what that key says
	counted time.Duration // since then, by our own clock
	at      time.Time     // of the last look
}

// runKeeper takes its turn as the keeper until ctx ends.
func (m *Manager) runKeeper(ctx context.Context) {
	k := newKeeper(m, m.cfg.GroupSweep)
	if pause(ctx, rand.N(k.every)) != nil { // not all sidecars at once
		return
	}
	const part = "the removal of idle groups"
	defer m.outage.works(part)
	for n := 0; ; n++ {
		held, err := k.hold(ctx)
		switch {
		case err == nil && held:
			err = k.sweep(ctx, time.Now())
		default:
			clear(k.seen) // whoever is the keeper counts, and tells
			k.lags.update(ctx, nil)
			m.metrics.groupPartitions.Set(0)
		}
		if err == nil && n%10 == 0 {
			err = m.tidyLocal(ctx)
		}
		if err == nil {
			m.outage.works(part)
		} else if ctx.Err() == nil {
			m.outage.fails(part, "look after groups", err)
		}
		if pause(ctx, k.every) != nil {
			return
		}
	}
}

// hold says whether this sidecar is the keeper, and makes it so where there is
// none.
func (k *keeper) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sess := k.m.session()
	if sess == nil || sess.Ownership() != discovery.Proven {
		return false, nil
	}
	e, err := k.m.store.Get(ctx, discovery.KeyKeeper)
	switch {
	case err == nil && e.Session != "":
		return e.Session == sess.ID(), nil
	case err != nil && !isNotFound(err):
		return false, err
	}
	value := discovery.Keeper{Sidecar: k.m.id, Writer: discovery.NewNonce()}
	_, err = k.m.store.Commit(ctx, discovery.Acquire(discovery.KeyKeeper, discovery.Encode(value), sess.ID()))
	if errors.Is(err, discovery.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// sweep looks at all groups once.
func (k *keeper) sweep(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	es, err := k.m.store.List(ctx, discovery.PrefixGroups)
	if err != nil {
		return err
	}
	partitions := 0
	var idle []idleTopic
	here := map[string]bool{}
	for len(es) > 0 {
		name, _, _ := strings.Cut(strings.TrimPrefix(es[0].Key, discovery.PrefixGroups), "/")
		prefix := discovery.PrefixGroups + name + "/"
		n := 1
		for n < len(es) && strings.HasPrefix(es[n].Key, prefix) {
			n++
		}
		g := readGroupKeys(name, es[:n])
		es = es[n:]
		here[name] = true
		removed, err := k.look(ctx, g, now)
		if err != nil {
			return err
		}
		if removed {
			continue
		}
		partitions += g.partitions()
		if !g.live && g.config != nil {
			for _, topic := range slices.Sorted(maps.Keys(g.begun)) {
				idle = append(idle, idleTopic{name, topic})
			}
		}
	}
	for name := range k.seen {
		if !here[name] {
			delete(k.seen, name)
		}
	}
	k.m.metrics.groupPartitions.Set(float64(partitions))
	k.lags.update(ctx, idle)
	return k.m.setCensus(ctx, partitions)
}

// look counts for how long a group has had no members, and removes it when that
// is long enough. Each look adds at most a few sweeps to what was counted, by
// one clock that goes forward: no clock that is wrong removes a group. Whoever
// joins takes the count away, and with it the ground under a removal.
func (k *keeper) look(ctx context.Context, g groupKeys, now time.Time) (removed bool, err error) {
	if g.live {
		delete(k.seen, g.name)
		if g.idle != nil { // whoever joined has been there before it, or it is the mark of an earlier life
			_, err = k.m.store.Commit(ctx, discovery.DeleteCAS(g.idle.Key, g.idle.Version))
		}
		return false, notConflict(err)
	}
	var idle discovery.Idle
	version := uint64(0)
	if g.idle != nil {
		if idle, err = discovery.Decode[discovery.Idle](*g.idle); err != nil {
			return false, nil // of a later version
		}
		version = g.idle.Version
	}
	if g.idle == nil || g.config != nil && g.config.Version != idle.Config {
		// Left just now, or made or changed by somebody who still wants it.
		delete(k.seen, g.name)
		idle = discovery.Idle{Since: now.UTC().Truncate(time.Second)}
		if g.config != nil {
			idle.Config = g.config.Version
		}
		return false, notConflict(k.write(ctx, g, idle, version))
	}
	s, known := k.seen[g.name]
	stored := time.Duration(idle.Seconds) * time.Second
	switch {
	case !known || s.created != g.idle.Created || !s.since.Equal(idle.Since):
		s = sighting{created: g.idle.Created, since: idle.Since}
	default:
		s.counted += min(now.Sub(s.at), 4*k.every)
		if s.version != g.idle.Version {
			s.counted = max(0, s.counted-(stored-s.stored)) // written by the look before
		}
	}
	s.version, s.stored, s.at = g.idle.Version, stored, now
	k.seen[g.name] = s
	limit := k.limit(g, idle)
	total := stored + s.counted
	switch {
	case total >= limit:
		err = k.remove(ctx, g, idle)
		if err == nil {
			delete(k.seen, g.name)
			return true, nil
		}
		return false, notConflict(err)
	case s.counted >= limit/20:
		idle.Seconds = int64(total / time.Second)
		return false, notConflict(k.write(ctx, g, idle, g.idle.Version))
	}
	return false, nil
}

// limit is how long a group without members is kept.
func (k *keeper) limit(g groupKeys, idle discovery.Idle) time.Duration {
	switch {
	case g.config == nil && idle.Removed && idle.Ephemeral:
		return keepRemovedEphemeral
	case g.config == nil && idle.Removed:
		return keepRemoved
	case g.ephemeral():
		return k.m.cfg.EphemeralAfter
	}
	return k.m.cfg.IdleAfter
}

func (g groupKeys) ephemeral() bool {
	if g.config == nil {
		return false
	}
	c, err := discovery.Decode[discovery.GroupConfig](*g.config)
	return err == nil && c.Ephemeral
}

func (k *keeper) write(ctx context.Context, g groupKeys, idle discovery.Idle, version uint64) error {
	idle.Writer = discovery.NewNonce()
	_, err := k.m.store.Commit(ctx, discovery.CAS(discovery.KeyIdle(g.name), discovery.Encode(idle), version))
	return err
}

// remove removes a group that is idle, or what is left of one that was removed.
func (k *keeper) remove(ctx context.Context, g groupKeys, idle discovery.Idle) error {
	log := k.m.log.With(zap.String("group", g.name))
	if g.config == nil && idle.Removed {
		_, err := k.m.store.Commit(ctx,
			discovery.Unchanged(g.idle.Key, g.idle.Version), discovery.Absent(discovery.KeyGroupConfig(g.name)),
			discovery.DeletePrefix(discovery.PrefixGroups+g.name+"/"))
		if err == nil {
			log.Info("what was left of a removed group is forgotten")
		}
		return err
	}
	mark := removedMark(g.ephemeral(), time.Now())
	commits := g.forgetOps([]discovery.Op{discovery.Unchanged(g.idle.Key, g.idle.Version)}, discovery.Op{})
	last := commits[len(commits)-1]
	// The mark takes the place of the count: one operation checks and writes it.
	last[0] = discovery.CAS(g.idle.Key, mark, g.idle.Version)
	commits[len(commits)-1] = append(last[:1], last[2:]...)
	for _, ops := range commits {
		if _, err := k.m.store.Commit(ctx, ops...); err != nil {
			return err
		}
	}
	k.m.metrics.groupsRemoved.Inc()
	k.m.deleteSeries(g.name)
	k.m.forgetHere(g.keys)
	log.Warn("a group that nobody used is removed with its positions", zap.Duration("idle", time.Duration(idle.Seconds)*time.Second), zap.Bool("ephemeral", g.ephemeral()))
	return nil
}

// notConflict passes over an error that says only that somebody was faster.
func notConflict(err error) error {
	if errors.Is(err, discovery.ErrConflict) {
		return nil
	}
	return err
}
