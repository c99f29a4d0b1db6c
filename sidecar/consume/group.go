package consume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/discovery"
)

// group is this sidecar's part of a consumer group, from the first pull until
// it leaves.
type group struct {
	m    *Manager
	name string
	poke chan struct{} // wakes the membership: something below has changed
	quit chan struct{} // closed: leave now
	done chan struct{} // closed when it has left

	tickets atomic.Uint64 // that waiting pulls were given

	mu         sync.Mutex // guards all below
	config     discovery.GroupConfig
	shares     map[string]*share        // by topic
	subs       map[string]*subscription // by the choice's text
	closing    bool                     // no pull may enter any more
	sess       discovery.Session        // under which it is a member; nil while it is not
	since      uint64                   // version of the store at which it joined
	assignment *discovery.Assignment
	// settingsSeen is the version of the settings that was last read, as the
	// planner passes it on.
	settingsSeen string
	planning     bool // this sidecar holds the planner's lock
	quitOnce     bool
}

func newGroup(m *Manager, name string, config discovery.GroupConfig) *group {
	return &group{
		m: m, name: name, config: config,
		poke: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		shares: map[string]*share{}, subs: map[string]*subscription{},
	}
}

func (g *group) settings() discovery.GroupConfig {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.config
}

func (g *group) setConfig(c discovery.GroupConfig) {
	g.mu.Lock()
	paused := g.config.Paused != c.Paused
	g.config = c
	g.mu.Unlock()
	if paused {
		for _, s := range g.all() {
			s.wakeAll() // what they may have, and why not, has changed
		}
	}
}

// isPaused says whether nothing of a topic is to be handed out.
func (g *group) isPaused(topic string) bool { return isPaused(g.settings(), topic) }

// lease is the group's, or the sidecar's default.
func (g *group) lease() time.Duration {
	if ms := g.settings().LeaseMillis; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return g.m.cfg.Lease
}

// share finds the part of a topic; nil when nobody here pulled it.
func (g *group) share(topic string) *share {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shares[topic]
}

// leaveNow tells the membership to end: no pull may enter any more.
func (g *group) leaveNow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closing = true
	if !g.quitOnce {
		g.quitOnce = true
		close(g.quit)
	}
}

// session is that under which the sidecar is a member, or nil.
func (g *group) session() discovery.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sess
}

// joined is the version of the store at which the sidecar joined, if it did.
func (g *group) joined() (since uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since, g.sess != nil
}

func (g *group) setSession(s discovery.Session, since uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sess, g.since, g.assignment = s, since, nil
}

// forgetSince accepts assignments whatever their version: by now the watch has
// shown that none of an earlier life is left, and the versions of a store that
// was restored from a backup may begin lower.
func (g *group) forgetSince() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = 0
}

// assign takes a new assignment in. It is called by what the manager waits for.
func (g *group) assign(a discovery.Assignment) {
	g.mu.Lock()
	news := g.settingsSeen != a.Settings
	g.assignment, g.settingsSeen = &a, a.Settings
	g.mu.Unlock()
	if news {
		g.m.wg.Go(func() { g.readSettings(g.m.ctx) })
	}
	kick(g.poke)
}

// readSettings takes in what another sidecar has set. Where it fails, the
// membership looks again by and by.
func (g *group) readSettings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if c, _, err := g.m.readConfig(ctx, g.name); err == nil {
		g.setConfig(c)
	}
}

func (g *group) assigned() *discovery.Assignment {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.assignment
}

func (g *group) setPlanning(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.planning = on
}

// run is a member of the group under one session after another until it is time
// to leave.
func (g *group) run(ctx context.Context) {
	defer close(g.done)
	defer g.m.forget(g)
	for ctx.Err() == nil {
		sess := g.m.awaitSession(ctx, g.quit)
		if sess == nil {
			return
		}
		if g.member(ctx, sess) {
			return
		}
	}
}
