package consume

import (
	"context"
	"strings"
	"sync"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// assignedEntry is an assignment as it is in the store.
type assignedEntry struct {
	discovery.Assignment
	version uint64
}

// followAssigned watches what the planners of all groups assign to this
// sidecar: one watch, however many groups.
func (m *Manager) followAssigned(ctx context.Context) {
	prefix := discovery.PrefixAssigned(m.id)
	_ = discovery.Follow(ctx, m.store, prefix, func(es []discovery.Entry) {
		now := make(map[string]assignedEntry, len(es))
		for _, e := range es {
			name := strings.TrimPrefix(e.Key, prefix)
			a, err := discovery.Decode[discovery.Assignment](e)
			if err != nil {
				m.log.Error("an assignment cannot be read", zap.String("key", e.Key), zap.Error(err))
				continue
			}
			now[name] = assignedEntry{a, e.Version}
		}
		m.mu.Lock()
		m.assigned = now
		groups := m.list()
		m.mu.Unlock()
		for _, g := range groups {
			m.reassign(g)
		}
	})
}

// reassign hands a group its assignment. One that is not there says nothing: an
// empty store takes no partition from anybody. One from before we joined was for
// an earlier life of this sidecar.
func (m *Manager) reassign(g *group) {
	m.mu.Lock()
	e, ok := m.assigned[g.name]
	m.mu.Unlock()
	since, joined := g.joined()
	if !ok || !joined || e.version <= since {
		return
	}
	a := e.Assignment
	if have := g.assigned(); have != nil && have.Plan == a.Plan && have.Writer == a.Writer {
		return
	}
	g.assign(a)
}

// reconcile brings what is owned towards what is assigned: releases what is no
// longer, takes what is.
func (g *group) reconcile(ctx context.Context, sess discovery.Session, owners *sync.WaitGroup) {
	a := g.assigned()
	if a == nil {
		return
	}
	g.follow(a.Partitions)
	for _, s := range g.all() {
		want := map[int32]bool{}
		if s.isSubscribed() && s.goneError() == nil {
			for _, p := range a.Partitions[s.topic] {
				want[p] = true
			}
		}
		var fresh []*owner
		s.mu.Lock()
		s.seekEpoch = max(s.seekEpoch, a.Seeks[s.topic])
		had := s.sorted()
		for p := range want {
			if s.owners[p] == nil {
				o := newOwner(s, p, sess, a.Plan, a.Cause)
				s.owners[p], s.ordered = o, nil
				fresh = append(fresh, o)
			}
		}
		s.mu.Unlock()
		for _, o := range had {
			if want[o.key.Partition] {
				kick(o.poke) // it may have a seek to apply
			} else {
				o.releaseNow(a.Cause)
			}
		}
		for _, o := range fresh {
			owners.Go(func() { o.run(ctx) })
		}
		s.wake() // why it is empty may be another reason now
	}
}

// forgetEpoch takes back a seek that turned out not to be there.
func (s *share) forgetEpoch(epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seekEpoch = epoch
}
