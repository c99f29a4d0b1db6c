package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"sidestream/discovery"
)

// runPlanner makes this sidecar plan the group, or stand by for it, while it is
// one of the two oldest members. The third guards both: they answer for each
// other, so nobody would if they died together.
func (g *group) runPlanner(ctx context.Context, sess discovery.Session) {
	w := &guard{g: g}
	defer w.end()
	for ctx.Err() == nil {
		at, elders := g.seniority(ctx)
		if at == 2 {
			w.watch(ctx, elders)
		} else {
			w.end()
		}
		if at != 0 && at != 1 {
			if pause(ctx, g.m.cfg.Recheck) != nil {
				return
			}
			continue
		}
		before, ok := g.standBy(ctx, sess)
		if !ok {
			return
		}
		g.setPlanning(true)
		newPlanner(g, sess, before).run(ctx)
		g.setPlanning(false)
	}
}

// seniority is this sidecar's place among the members by age, -1 when it is not
// known, and who plans the group or stands by for it: the two oldest.
func (g *group) seniority(ctx context.Context) (at int, elders []charge) {
	es, err := g.m.store.List(ctx, discovery.PrefixMembers(g.name))
	if err != nil {
		return -1, nil
	}
	slices.SortFunc(es, func(a, b discovery.Entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Key, b.Key))
	})
	for _, e := range es[:min(2, len(es))] {
		if m, err := discovery.Decode[discovery.Member](e); err == nil {
			elders = append(elders, charge{discovery.Holder{Service: m.Service, Session: m.Session}, m.Sidecar, g.name})
		}
	}
	mine := discovery.KeyMember(g.name, g.m.id)
	return slices.IndexFunc(es, func(e discovery.Entry) bool { return e.Key == mine }), elders
}

// guard judges those who judge the others. It is not safe for concurrent use.
type guard struct {
	g    *group
	stop context.CancelFunc // nil: it does not judge
	wg   sync.WaitGroup

	mu     sync.Mutex // guards elders
	elders []charge
}

// watch judges the elders from now on.
func (w *guard) watch(ctx context.Context, elders []charge) {
	w.mu.Lock()
	w.elders = elders
	w.mu.Unlock()
	if w.stop != nil {
		return
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.wg.Go(func() {
		w.g.m.judging(ctx, func() []charge {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.elders
		})
	})
}

// end stops judging, and waits for it.
func (w *guard) end() {
	if w.stop != nil {
		w.stop()
		w.wg.Wait()
		w.stop = nil
	}
}

// standBy watches the planner's lock and takes it as soon as it is free. The
// planner's own failure is suspected from here. It returns who planned before,
// as far as that was seen.
func (g *group) standBy(ctx context.Context, sess discovery.Session) (predecessor string, planning bool) {
	wctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	key := discovery.KeyPlanner(g.name)
	var mu sync.Mutex // guards current and before
	var current discovery.Planner
	var before string
	wg.Go(func() {
		g.m.judging(wctx, func() []charge {
			mu.Lock()
			defer mu.Unlock()
			return []charge{{discovery.Holder{Service: current.Service, Session: current.Session}, current.Sidecar, g.name}}
		})
	})
	free := make(chan struct{}, 1)
	wg.Go(func() {
		_ = discovery.Follow(wctx, g.m.store, key, func(es []discovery.Entry) {
			i := slices.IndexFunc(es, func(e discovery.Entry) bool { return e.Key == key && e.Session != "" })
			var p discovery.Planner
			if i >= 0 {
				p, _ = discovery.Decode[discovery.Planner](es[i])
			}
			mu.Lock()
			current = p
			if p.Sidecar != "" && p.Sidecar != g.m.id {
				before = p.Sidecar
			}
			mu.Unlock()
			if i < 0 || es[i].Session == sess.ID() {
				kick(free)
			}
		})
	})
	retry := time.NewTicker(g.m.cfg.Recheck)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return "", false
		case <-free:
		case <-retry.C:
			mu.Lock()
			taken := current.Session != ""
			mu.Unlock()
			if taken {
				continue
			}
		}
		value := discovery.Planner{Sidecar: g.m.id, Session: sess.ID(), Service: g.m.service, Writer: discovery.NewNonce()}
		_, err := g.m.store.Commit(ctx, discovery.Acquire(key, discovery.Encode(value), sess.ID()))
		if err == nil {
			mu.Lock()
			predecessor = before
			mu.Unlock()
			return predecessor, true
		}
		if !errors.Is(err, discovery.ErrConflict) {
			if pause(ctx, 200*time.Millisecond) != nil {
				return "", false
			}
			kick(free)
		}
	}
}
