package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/plan"
)

// runPlanner makes this sidecar plan the group, or stand by for it, while it is
// one of the two oldest members.
func (g *group) runPlanner(ctx context.Context, sess discovery.Session) {
	for ctx.Err() == nil {
		if !g.nearPlanner(ctx) {
			if pause(ctx, g.m.cfg.Recheck) != nil {
				return
			}
			continue
		}
		if !g.standBy(ctx, sess) {
			return
		}
		g.setPlanning(true)
		newPlanner(g, sess).run(ctx)
		g.setPlanning(false)
	}
}

// nearPlanner says whether this sidecar is one of the two oldest members.
func (g *group) nearPlanner(ctx context.Context) bool {
	es, err := g.m.store.List(ctx, discovery.PrefixMembers(g.name))
	if err != nil {
		return false
	}
	slices.SortFunc(es, func(a, b discovery.Entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Key, b.Key))
	})
	mine := discovery.KeyMember(g.name, g.m.id)
	at := slices.IndexFunc(es, func(e discovery.Entry) bool { return e.Key == mine })
	return at == 0 || at == 1
}

// standBy watches the planner's lock and takes it as soon as it is free. The
// planner's own failure is suspected from here.
func (g *group) standBy(ctx context.Context, sess discovery.Session) (planning bool) {
	wctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	key := discovery.KeyPlanner(g.name)
	var mu sync.Mutex // guards current
	var current discovery.Planner
	wg.Go(func() {
		g.m.judging(wctx, func(ctx context.Context, services []string) {
			mu.Lock()
			p := current
			mu.Unlock()
			if p.Service != "" && p.Sidecar != g.m.id && slices.Contains(services, p.Service) {
				g.m.endSession(ctx, p.Sidecar, p.Session, g.name)
			}
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
			return false
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
			return true
		}
		if !errors.Is(err, discovery.ErrConflict) {
			if pause(ctx, 200*time.Millisecond) != nil {
				return false
			}
			kick(free)
		}
	}
}

// endSession ends the session of a sidecar that is suspected to be dead.
func (m *Manager) endSession(ctx context.Context, sidecar, session, group string) {
	if session == "" || sidecar == m.id {
		return
	}
	if err := m.store.DestroySession(ctx, session); err != nil {
		m.log.Warn("the session of a sidecar that does not answer cannot be ended yet",
			zap.String("sidecar", sidecar), zap.String("group", group), zap.Error(err))
		return
	}
	m.metrics.suspected.Inc()
	m.log.Warn("a sidecar does not answer: its session is ended and its partitions move",
		zap.String("sidecar", sidecar), zap.String("group", group))
}

// planner plans one group for as long as it holds the lock.
type planner struct {
	g    *group
	sess discovery.Session
	poke chan struct{}

	mu      sync.Mutex // guards members, seeks and the listed flags
	members map[string]member
	seeks   map[string]uint64
	listed  [2]bool // members, seeks

	// Of run alone.
	loaded  bool
	number  uint64 // of the last plan
	planned map[plan.TopicPartition]string
	counts  map[string]int32
	last    map[string]member  // members of the last plan
	written map[string]written // by member
}

type member struct {
	discovery.Member
	created uint64 // another life of the same sidecar has another
}

// written is the assignment that a member has.
type written struct {
	created    uint64
	assignment discovery.Assignment
}

func newPlanner(g *group, sess discovery.Session) *planner {
	return &planner{
		g: g, sess: sess, poke: make(chan struct{}, 1),
		members: map[string]member{}, seeks: map[string]uint64{},
		planned: map[plan.TopicPartition]string{}, counts: map[string]int32{},
		last: map[string]member{}, written: map[string]written{},
	}
}

var errPlannerLost = errors.New("the planner's lock is lost")

func (p *planner) run(ctx context.Context) {
	log := p.g.m.log.With(zap.String("group", p.g.name))
	log.Info("planning the group")
	wctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = discovery.Follow(wctx, p.g.m.store, discovery.PrefixMembers(p.g.name), p.setMembers) })
	wg.Go(func() { _ = discovery.Follow(wctx, p.g.m.store, discovery.PrefixSeeks(p.g.name), p.setSeeks) })
	wg.Go(func() { p.g.m.judging(wctx, p.judge) })

	timer := time.NewTimer(p.g.m.cfg.Recheck)
	defer timer.Stop()
	failures := 0
	for {
		wait := p.g.m.cfg.Recheck
		err := p.plan(ctx)
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPlannerLost):
			log.Warn("another sidecar plans the group now")
			return
		default:
			failures++
			wait = min(wait, backOff(failures, 50*time.Millisecond, 2*time.Second))
			log.Warn("the group cannot be planned yet, trying again", zap.Error(err))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.poke:
		case <-timer.C:
		}
	}
}

func (p *planner) setMembers(es []discovery.Entry) {
	now := make(map[string]member, len(es))
	for _, e := range es {
		m, err := discovery.Decode[discovery.Member](e)
		if err != nil || e.Session == "" {
			continue
		}
		now[m.Sidecar] = member{m, e.Created}
	}
	p.mu.Lock()
	p.members, p.listed[0] = now, true
	p.mu.Unlock()
	kick(p.poke)
}

func (p *planner) setSeeks(es []discovery.Entry) {
	prefix := discovery.PrefixSeeks(p.g.name)
	now := make(map[string]uint64, len(es))
	for _, e := range es {
		if s, err := discovery.Decode[discovery.Seek](e); err == nil {
			now[strings.TrimPrefix(e.Key, prefix)] = s.Epoch
		}
	}
	p.mu.Lock()
	p.seeks, p.listed[1] = now, true
	p.mu.Unlock()
	kick(p.poke)
}

// judge ends the sessions of members whose health check is critical.
func (p *planner) judge(ctx context.Context, services []string) {
	p.mu.Lock()
	members := maps.Clone(p.members)
	p.mu.Unlock()
	for _, m := range members {
		if m.Service != "" && slices.Contains(services, m.Service) {
			p.g.m.endSession(ctx, m.Sidecar, m.Session, p.g.name)
		}
	}
}

// plan makes a plan from what is known and writes what of it is new.
func (p *planner) plan(ctx context.Context) error {
	p.mu.Lock()
	members, seeks, ready := maps.Clone(p.members), p.seeks, p.listed[0] && p.listed[1]
	p.mu.Unlock()
	if !ready {
		return nil
	}
	if !p.loaded {
		if err := p.load(ctx, members); err != nil {
			return fmt.Errorf("read the present plan: %w", err)
		}
		p.loaded = true
	}
	counts, err := p.count(ctx, members)
	if err != nil {
		return err
	}
	in := plan.Input{Partitions: counts, Owners: p.planned}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		in.Members = append(in.Members, plan.Member{ID: id, Topics: members[id].Topics})
	}
	assignments := plan.Plan(in)
	cause := p.cause(ctx, members, counts, seeks)
	number := p.number + 1
	var ops []discovery.Op
	fresh := map[string]written{}
	for id, m := range members {
		a := discovery.Assignment{Plan: number, Partitions: map[string][]int32{}, Cause: cause, Writer: p.g.m.nonce + "/" + p.sess.ID()}
		for _, topic := range m.Topics {
			// A topic of which there is nothing for the member is named all the
			// same: it is told so, and need not wonder whether a plan is due.
			a.Partitions[topic] = append([]int32{}, assignments[id][topic]...)
			if epoch := seeks[topic]; epoch > 0 {
				if a.Seeks == nil {
					a.Seeks = map[string]uint64{}
				}
				a.Seeks[topic] = epoch
			}
		}
		if w, ok := p.written[id]; ok && w.created == m.created && sameAssignment(w.assignment, a) {
			continue
		}
		fresh[id] = written{m.created, a}
		ops = append(ops, discovery.Set(discovery.KeyAssign(id, p.g.name), discovery.Encode(a)))
	}
	for id := range p.written {
		if _, ok := members[id]; !ok {
			ops = append(ops, discovery.Delete(discovery.KeyAssign(id, p.g.name)))
		}
	}
	if len(ops) == 0 {
		p.last, p.counts = members, counts
		return nil
	}
	held := discovery.Held(discovery.KeyPlanner(p.g.name), p.sess.ID())
	for chunk := range slices.Chunk(ops, discovery.MaxCommitOps-1) {
		_, err := p.g.m.store.Commit(ctx, append([]discovery.Op{held}, chunk...)...)
		if errors.Is(err, discovery.ErrConflict) {
			return errPlannerLost
		}
		if err != nil {
			return fmt.Errorf("write the plan: %w", err)
		}
	}
	p.g.m.metrics.plans.WithLabelValues(p.g.name).Inc()
	p.record(assignments, cause)
	for id := range p.written {
		if _, ok := members[id]; !ok {
			delete(p.written, id)
		}
	}
	maps.Copy(p.written, fresh)
	p.number, p.last, p.counts = number, members, counts
	return nil
}

func sameAssignment(a, b discovery.Assignment) bool {
	return maps.EqualFunc(a.Partitions, b.Partitions, slices.Equal[[]int32]) && maps.Equal(a.Seeks, b.Seeks)
}

// record takes the plan as the present one and remembers what it moved.
func (p *planner) record(as plan.Assignments, cause string) {
	now := time.Now()
	var moves []api.Move
	for _, mv := range plan.Moves(p.planned, as) {
		moves = append(moves, api.Move{At: now, Topic: mv.Topic, Partition: mv.Partition, From: mv.From, To: mv.To, Cause: cause})
	}
	p.planned = as.Owners()
	p.g.remember(moves...)
	p.g.m.log.Info("group planned", zap.String("group", p.g.name), zap.Int("moves", len(moves)), zap.String("cause", cause))
}

// load reads what an earlier planner left: the members' assignments, and the
// owners of what is in none.
func (p *planner) load(ctx context.Context, members map[string]member) error {
	es, err := p.g.m.store.List(ctx, discovery.PrefixOwners(p.g.name))
	if err != nil {
		return err
	}
	for _, e := range es {
		topic, n, ok := discovery.SplitTopicPartition(strings.TrimPrefix(e.Key, discovery.PrefixOwners(p.g.name)))
		o, err := discovery.Decode[discovery.Owner](e)
		if !ok || err != nil {
			continue
		}
		p.planned[plan.TopicPartition{Topic: topic, Partition: n}] = o.Sidecar
		p.number = max(p.number, o.Plan)
	}
	for id, m := range members {
		e, err := p.g.m.store.Get(ctx, discovery.KeyAssign(id, p.g.name))
		if errors.Is(err, discovery.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		a, err := discovery.Decode[discovery.Assignment](e)
		if err != nil {
			continue
		}
		p.number = max(p.number, a.Plan)
		p.written[id] = written{m.created, a}
		for topic, ns := range a.Partitions {
			for _, n := range ns {
				p.planned[plan.TopicPartition{Topic: topic, Partition: n}] = id
			}
		}
	}
	// Who had partitions was a member: that tells who is missing now.
	for _, id := range p.planned {
		p.last[id] = members[id]
	}
	return nil
}

// count asks how many partitions the members' topics have. While the brokers
// are away what is known stays.
func (p *planner) count(ctx context.Context, members map[string]member) (map[string]int32, error) {
	counts := map[string]int32{}
	for _, m := range members {
		for _, topic := range m.Topics {
			if _, done := counts[topic]; done {
				continue
			}
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			t, err := p.g.m.up.Topic(call, topic)
			cancel()
			switch {
			case err == nil:
				for _, part := range t.Partitions {
					counts[topic] = max(counts[topic], part.ID+1)
				}
			case isCode(err, api.CodeTopicNotFound):
				counts[topic] = 0
			default:
				n, known := p.counts[topic]
				if !known {
					return nil, fmt.Errorf("topic %s: %w", topic, err)
				}
				counts[topic] = n
			}
		}
	}
	return counts, nil
}

// cause says for people why this plan differs from the last.
func (p *planner) cause(ctx context.Context, members map[string]member, counts map[string]int32, seeks map[string]uint64) string {
	var why []string
	for _, id := range slices.Sorted(maps.Keys(members)) {
		was, known := p.last[id]
		switch {
		case !known && len(p.last) == 0 && id != p.g.m.id:
		case !known:
			why = append(why, id+" joined")
		case was.created != members[id].created:
			why = append(why, id+" joined again")
		case !slices.Equal(was.Topics, members[id].Topics):
			why = append(why, id+" pulls "+strings.Join(members[id].Topics, ", "))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.last)) {
		if _, still := members[id]; still {
			continue
		}
		// One that leaves in order takes its assignment along.
		_, err := p.g.m.store.Get(ctx, discovery.KeyAssign(id, p.g.name))
		if errors.Is(err, discovery.ErrNotFound) {
			why = append(why, id+" left")
		} else {
			why = append(why, id+"'s session ended")
		}
	}
	if len(p.last) > 0 {
		for _, topic := range slices.Sorted(maps.Keys(counts)) {
			if was, known := p.counts[topic]; known && was != counts[topic] {
				why = append(why, fmt.Sprintf("topic %s has %d partitions instead of %d", topic, counts[topic], was))
			}
		}
	}
	if len(why) == 0 {
		for topic, epoch := range seeks {
			for _, w := range p.written {
				if w.assignment.Seeks[topic] < epoch {
					return "topic " + topic + " was sought"
				}
			}
		}
		return p.g.m.id + " plans the group"
	}
	return strings.Join(why, "; ")
}
