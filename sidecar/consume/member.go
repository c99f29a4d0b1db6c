package consume

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// awaitSession waits for a session that lives; nil when ctx or quit came first.
func (m *Manager) awaitSession(ctx context.Context, quit <-chan struct{}) discovery.Session {
	for {
		if s := m.session(); s != nil && s.Ownership() != discovery.Lost {
			return s
		}
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-quit:
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// part names the membership in the log of an outage.
func (g *group) part() string { return "the membership in group " + g.name }

// member is a member of the group under one session. It returns true when the
// group was left, false when the session was lost (or ctx is over): then
// everything that was owned under it is gone already.
func (g *group) member(ctx context.Context, sess discovery.Session) (left bool) {
	sctx, cancel := context.WithCancel(ctx)
	var owners, planner sync.WaitGroup
	defer func() {
		cancel()
		owners.Wait()
		planner.Wait()
		g.setSession(nil, 0)
	}()
	defer g.m.outage.works(g.part())
	owners.Go(func() {
		select {
		case <-sess.Lost():
			cancel()
		case <-sctx.Done():
		}
	})

	joined, ok := g.join(sctx, sess)
	if !ok {
		return sctx.Err() == nil
	}
	g.setSession(sess, joined.version)
	g.m.reassign(g)
	pctx, stopPlanning := context.WithCancel(sctx)
	defer stopPlanning()
	planner.Go(func() { g.runPlanner(pctx, sess) })

	every := min(g.m.cfg.Recheck, max(g.m.cfg.LeaveAfter/4, 10*time.Millisecond))
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	checked := time.Now()
	for {
		g.announce(sctx, sess, &joined)
		g.reconcile(sctx, sess, &owners)
		select {
		case <-sctx.Done():
			if ctx.Err() == nil {
				g.m.log.Warn("the session is lost: partitions are handed over", zap.String("group", g.name))
				g.m.metrics.membershipsLost.Inc()
			}
			return false
		case <-g.quit:
		case <-g.poke:
			continue
		case <-ticker.C:
			since := time.Now().Add(-g.m.cfg.LeaveAfter)
			// Without the store nothing is left: leaving would not come to an end,
			// and coming back is not possible before it has, nor without the store,
			// while what is still owned can be served.
			leaving := g.anyIdle(since) && g.storeAnswers(sctx, sess)
			if leaving {
				g.dropIdle(since)
			}
			if time.Since(checked) >= g.m.cfg.Recheck {
				checked = time.Now()
				g.recheck(sctx, sess, &joined)
				g.forgetSince()
				g.m.reassign(g)
			}
			if !leaving || !g.closeIfIdle(since) {
				continue
			}
		}
		break
	}
	g.depart(sctx, sess, stopPlanning, &planner)
	return true
}

// probeTime bounds the question whether the store answers.
const probeTime = time.Second

// storeAnswers asks the store: that a session is proven says only that the
// store answered less than a TTL ago.
func (g *group) storeAnswers(ctx context.Context, sess discovery.Session) bool {
	if sess.Ownership() != discovery.Proven {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	_, err := g.m.store.Get(ctx, discovery.KeyMember(g.name, g.m.id))
	return err == nil || errors.Is(err, discovery.ErrNotFound)
}

// membership is what was written of us.
type membership struct {
	topics  []string
	since   time.Time
	version uint64 // of the first write
}

// firstChoice is how long a group that was just made waits for what is pulled of
// it. The pull that made it has only to look whether it may begin there.
const firstChoice = time.Second

// awaitChoice waits until something is pulled, or for a while. Who joined before
// with no topics made two plans of one, and the second told as the cause of its
// moves that somebody pulls, not that it joined.
func (g *group) awaitChoice(ctx context.Context) {
	if len(g.topics()) > 0 {
		return
	}
	t := time.NewTimer(firstChoice)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-g.quit:
	case <-g.poke: // somebody pulls
	case <-t.C:
	}
}

// join waits until our member key is written; false when it is not to be.
func (g *group) join(ctx context.Context, sess discovery.Session) (membership, bool) {
	g.awaitChoice(ctx)
	ms := membership{since: time.Now().UTC()}
	for failures := 1; ; failures++ {
		// An assignment from an earlier life is not ours to follow.
		// Nor is the group idle any more.
		err := g.write(ctx, sess, &ms, discovery.Delete(discovery.KeyAssign(g.m.id, g.name)), discovery.Delete(discovery.KeyIdle(g.name)))
		if err == nil {
			g.m.outage.works(g.part())
			g.m.log.Info("joined the group", zap.String("group", g.name), zap.Strings("topics", ms.topics))
			return ms, true
		}
		g.outcome(ctx, "join groups", err)
		t := time.NewTimer(backOff(failures, 50*time.Millisecond, 2*time.Second))
		select {
		case <-ctx.Done():
		case <-g.quit:
		case <-t.C:
		}
		t.Stop()
		select {
		case <-g.quit:
			return ms, false
		default:
		}
		if ctx.Err() != nil {
			return ms, false
		}
	}
}

// announce writes our membership again when the topics have changed.
func (g *group) announce(ctx context.Context, sess discovery.Session, ms *membership) {
	if !slices.Equal(ms.topics, g.topics()) {
		g.outcome(ctx, "write memberships", g.write(ctx, sess, ms))
	}
}

// outcome logs what became of a write about the membership.
func (g *group) outcome(ctx context.Context, doing string, err error) {
	switch {
	case err == nil:
		g.m.outage.works(g.part())
	case ctx.Err() == nil:
		g.m.outage.fails(g.part(), doing, err)
	}
}

func (g *group) write(ctx context.Context, sess discovery.Session, ms *membership, also ...discovery.Op) error {
	topics := g.topics()
	value := discovery.Member{Sidecar: g.m.id, Topics: topics, Joined: ms.since, Nonce: g.m.nonce, Session: sess.ID(), Service: g.m.service}
	ops := append([]discovery.Op{discovery.Acquire(discovery.KeyMember(g.name, g.m.id), discovery.Encode(value), sess.ID())}, also...)
	es, err := g.m.store.Commit(ctx, ops...)
	if err != nil {
		if errors.Is(err, discovery.ErrConflict) {
			return errors.New("another session of this sidecar is a member still")
		}
		return err
	}
	ms.topics = topics
	if ms.version == 0 && len(es) > 0 {
		ms.version = es[0].Version
	}
	return nil
}

// recheck reads again what is not watched: the group's settings, which another
// sidecar may have changed, and our own member key, which a deletion of the
// group by someone else may have taken along.
func (g *group) recheck(ctx context.Context, sess discovery.Session, ms *membership) {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, _, err := g.m.readConfig(call, g.name)
	switch {
	case err == nil:
		g.setConfig(c)
	case isCode(err, api.CodeGroupNotFound):
		// The store was wiped, or the group deleted, under a running consumer:
		// it goes on as it was.
		mine := g.settings()
		_, err := g.m.changeConfig(call, g.name, func(c discovery.GroupConfig, exists bool) (discovery.GroupConfig, error) {
			if exists {
				return c, nil
			}
			return mine, nil
		})
		g.outcome(ctx, "write the settings of groups again", err)
	}
	e, err := g.m.store.Get(call, discovery.KeyMember(g.name, g.m.id))
	if errors.Is(err, discovery.ErrNotFound) || err == nil && e.Session != sess.ID() {
		g.outcome(ctx, "write memberships again", g.write(call, sess, ms))
	}
}

// depart leaves the group: partitions first, then the planner's lock, and the
// member key last, so that the next plan finds everything released.
func (g *group) depart(ctx context.Context, sess discovery.Session, stopPlanning context.CancelFunc, planner *sync.WaitGroup) {
	for _, s := range g.all() {
		for _, o := range s.list() {
			o.releaseNow("the sidecar left the group")
		}
	}
	g.wakeAll()
	for g.owns() {
		select {
		case <-ctx.Done():
			return
		case <-g.poke:
		}
	}
	stopPlanning()
	planner.Wait()
	id := sess.ID()
	member, plannerKey := discovery.KeyMember(g.name, g.m.id), discovery.KeyPlanner(g.name)
	for failures := 1; failures <= 5; failures++ {
		_, err := g.m.store.Commit(ctx, discovery.Held(plannerKey, id), discovery.Delete(plannerKey))
		if err == nil || errors.Is(err, discovery.ErrConflict) {
			_, err = g.m.store.Commit(ctx,
				discovery.Held(member, id), discovery.Delete(member), discovery.Delete(discovery.KeyAssign(g.m.id, g.name)))
		}
		if err == nil || errors.Is(err, discovery.ErrConflict) {
			g.m.log.Info("left the group", zap.String("group", g.name))
			return
		}
		g.m.outage.fails(g.part(), "leave groups", err)
		if pause(ctx, backOff(failures, 50*time.Millisecond, time.Second)) != nil {
			return
		}
	}
}

// owns says whether a partition is here, on its way here, or on its way off.
func (g *group) owns() bool {
	for _, s := range g.all() {
		if len(s.list()) > 0 {
			return true
		}
	}
	return false
}
