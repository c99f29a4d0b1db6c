package consume

import (
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
	"sidestream/sidecar/upstream"
)

// planner plans one group for as long as it holds the lock.
type planner struct {
	g    *group
	sess discovery.Session
	poke chan struct{}

	mu       sync.Mutex // guards members, seeks, settings and the listed flags
	members  map[string]member
	seeks    map[string]uint64
	settings string  // version of the group's settings; "": as they were made
	listed   [2]bool // members, seeks

	// Of run alone.
	loaded  bool
	number  uint64 // of the last plan
	planned map[plan.TopicPartition]string
	counts  map[string]int32
	known   map[string]upstream.Topic // that the brokers have, as of the last plan; nil while nobody pulls a pattern
	history discovery.History
	last    map[string]member  // members of the last plan
	written map[string]written // by member
}

type member struct {
	discovery.Member
	created uint64   // another life of the same sidecar has another
	pulls   []string // Topics with the patterns expanded
}

// written is the assignment that a member has.
type written struct {
	created    uint64
	assignment discovery.Assignment
}

// newPlanner makes the group's planner; before is whoever planned it last.
func newPlanner(g *group, sess discovery.Session, before string) *planner {
	p := &planner{
		g: g, sess: sess, poke: make(chan struct{}, 1),
		members: map[string]member{}, seeks: map[string]uint64{},
		planned: map[plan.TopicPartition]string{}, counts: map[string]int32{},
		last: map[string]member{}, written: map[string]written{},
	}
	if before != "" && before != g.m.id {
		p.last[before] = member{}
	}
	return p
}

var errPlannerLost = errors.New("the planner's lock is lost")

func (p *planner) run(ctx context.Context) {
	log := p.g.m.log.With(zap.String("group", p.g.name))
	log.Info("planning the group")
	part := "the plan of group " + p.g.name
	defer p.g.m.outage.works(part)
	wctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = discovery.Follow(wctx, p.g.m.store, discovery.PrefixMembers(p.g.name), p.setMembers) })
	wg.Go(func() { _ = discovery.Follow(wctx, p.g.m.store, discovery.PrefixSeeks(p.g.name), p.setSeeks) })
	wg.Go(func() { p.g.m.judging(wctx, p.charges) })

	timer := time.NewTimer(p.g.m.cfg.Recheck)
	defer timer.Stop()
	failures := 0
	for {
		wait := p.g.m.cfg.Recheck
		err := p.plan(ctx)
		switch {
		case err == nil:
			failures = 0
			p.g.m.outage.works(part)
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPlannerLost):
			log.Warn("another sidecar plans the group now")
			return
		default:
			failures++
			wait = min(wait, backOff(failures, 50*time.Millisecond, 2*time.Second))
			p.g.m.outage.fails(part, "plan groups", err)
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
		now[m.Sidecar] = member{Member: m, created: e.Created}
	}
	p.mu.Lock()
	p.members, p.listed[0] = now, true
	p.mu.Unlock()
	kick(p.poke)
}

func (p *planner) setSeeks(es []discovery.Entry) {
	prefix := discovery.PrefixSeeks(p.g.name)
	now := make(map[string]uint64, len(es))
	settings := ""
	for _, e := range es {
		name := strings.TrimPrefix(e.Key, prefix)
		if name == discovery.NameSettings {
			if s, err := discovery.Decode[discovery.Settings](e); err == nil {
				settings = s.Writer
			}
		} else if s, err := discovery.Decode[discovery.Seek](e); err == nil {
			now[name] = s.Epoch
		}
	}
	p.mu.Lock()
	p.seeks, p.settings, p.listed[1] = now, settings, true
	p.mu.Unlock()
	kick(p.poke)
}

// charges are the members, which the planner judges.
func (p *planner) charges() []charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []charge
	for _, m := range p.members {
		list = append(list, charge{discovery.Holder{Service: m.Service, Session: m.Session}, m.Sidecar, p.g.name})
	}
	return list
}

// plan makes a plan from what is known and writes what of it is new.
func (p *planner) plan(ctx context.Context) error {
	p.mu.Lock()
	members, seeks, settings, ready := maps.Clone(p.members), p.seeks, p.settings, p.listed[0] && p.listed[1]
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
	if err := p.expand(ctx, members); err != nil {
		return err
	}
	counts, err := p.count(ctx, members)
	if err != nil {
		return err
	}
	in := plan.Input{Partitions: counts, Owners: p.planned}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		in.Members = append(in.Members, plan.Member{ID: id, Topics: members[id].pulls})
	}
	assignments := plan.Plan(in)
	cause := p.cause(ctx, members, counts, seeks, settings)
	number := p.number + 1
	var ops []discovery.Op
	fresh := map[string]written{}
	for id, m := range members {
		a := discovery.Assignment{Plan: number, Partitions: map[string][]int32{}, Settings: settings, Cause: cause, Writer: p.g.m.nonce + "/" + p.sess.ID()}
		for _, topic := range m.told() {
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
	moves := plan.Moves(p.planned, assignments)
	history := p.history
	if len(moves) > 0 {
		history = withPlan(history, discovery.HistoryPlan{
			Plan: number, At: time.Now().UTC().Truncate(time.Millisecond), Planner: p.g.m.id, Cause: cause, Moves: historyMoves(moves),
		}, p.g.m.cfg.History)
		ops = append(ops, discovery.Set(discovery.KeyHistory(p.g.name), discovery.Encode(history)))
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
	p.planned, p.history = assignments.Owners(), history
	p.g.m.log.Info("group planned", zap.String("group", p.g.name), zap.Int("moves", len(moves)), zap.String("cause", cause))
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
	return maps.EqualFunc(a.Partitions, b.Partitions, slices.Equal[[]int32]) && maps.Equal(a.Seeks, b.Seeks) && a.Settings == b.Settings
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
	if p.history, err = p.g.m.readHistory(ctx, p.g.name); err != nil {
		return err
	}
	if n := len(p.history.Plans); n > 0 {
		p.number = max(p.number, p.history.Plans[n-1].Plan)
	}
	// The planner before may be gone, and others with it whose end nobody has
	// planned: their assignments tell what they had. The members' own are newer.
	gone := lastOwners(p.history)
	for id := range p.last {
		gone[id] = true
	}
	var all []string
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		if _, still := members[id]; !still {
			all = append(all, id)
		}
	}
	for _, id := range append(all, slices.Sorted(maps.Keys(members))...) {
		m := members[id]
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
		p.last[id] = m
		for topic, ns := range a.Partitions {
			for _, n := range ns {
				p.planned[plan.TopicPartition{Topic: topic, Partition: n}] = id
			}
		}
	}
	// Who had partitions or planned was a member: that tells who is missing now.
	for _, id := range p.planned {
		p.last[id] = members[id]
	}
	for id := range p.last {
		p.last[id] = members[id]
	}
	return nil
}

// count asks how many partitions the members' topics have. While the brokers
// are away what is known stays.
func (p *planner) count(ctx context.Context, members map[string]member) (map[string]int32, error) {
	counts := map[string]int32{}
	for _, m := range members {
		for _, topic := range m.pulls {
			if _, done := counts[topic]; done {
				continue
			}
			if t, ok := p.known[topic]; ok && len(t.Partitions) > 0 {
				counts[topic] = countOf(t)
				continue
			}
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			t, err := p.g.m.up.Topic(call, topic)
			cancel()
			switch {
			case err == nil:
				counts[topic] = countOf(t)
			case isCode(err, api.CodeTopicNotFound):
				counts[topic] = 0
			default:
				n, known := p.countBefore(topic)
				if !known && slices.Contains(m.Topics, topic) {
					return nil, fmt.Errorf("topic %s: %w", topic, err)
				}
				counts[topic] = n // of one that a pattern matches: none yet, and the others go on
			}
		}
	}
	return counts, nil
}

// cause says for people why this plan differs from the last.
func (p *planner) cause(ctx context.Context, members map[string]member, counts map[string]int32, seeks map[string]uint64, settings string) string {
	var why []string
	for _, id := range slices.Sorted(maps.Keys(members)) {
		was, known := p.last[id]
		switch {
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
	why = append(why, p.cameAndWent(members, counts)...)
	if len(why) == 0 {
		for topic, epoch := range seeks {
			for _, w := range p.written {
				if w.assignment.Seeks[topic] < epoch {
					return "topic " + topic + " was sought"
				}
			}
		}
		for _, w := range p.written {
			if w.assignment.Settings != settings {
				return "the group's settings were changed"
			}
		}
		return p.g.m.id + " plans the group"
	}
	return strings.Join(why, "; ")
}
