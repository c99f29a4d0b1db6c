package consume

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// settleWait is how long even a pull that does not want to wait waits for
// messages that are known to be there and on their way from the brokers.
const settleWait = 200 * time.Millisecond

// leaveWait is how long a pull waits at least for the group to be left that it
// wants to join.
const leaveWait = 5 * time.Second

// Pull takes messages of a topic, or of several, for a group under a lease, after
// it has settled the receipts that came along. Where there is none it waits as
// asked, and says why it is empty. The first pull makes the group (and the topics
// that it names, where that is switched on) and joins it.
//
// Errors: bad_request, topic_not_found at once, group_config when the request
// contradicts the group's settings, draining, store_unavailable and
// brokers_unavailable (only while the group is not joined yet).
func (m *Manager) Pull(ctx context.Context, req PullRequest) (*Delivery, error) {
	if req.AttemptToken != "" {
		return m.pullOnce(ctx, req)
	}
	started := time.Now()
	c, err := m.checkPull(&req)
	if err != nil {
		return nil, err
	}
	g, sub, err := m.subscribe(ctx, req, c)
	if err != nil {
		return nil, err
	}
	defer func() { sub.leave(time.Now()) }()

	d := &Delivery{Return: func() {}}
	d.Messages = []api.Message{}
	if len(req.Ack)+len(req.Nack) > 0 {
		acks, err := m.settleBoth(ctx, g, c, req)
		if err != nil {
			return nil, err
		}
		d.Acks = &acks
	}
	lease := req.Lease
	if lease == 0 {
		lease = g.lease()
	}
	return d, m.fill(ctx, g, sub, req, lease, started, d)
}

// checkPull fills in the defaults.
func (m *Manager) checkPull(req *PullRequest) (choice, error) {
	c, err := checkChoice(req.Group, req.Topic)
	if err != nil {
		return c, err
	}
	switch {
	case req.Max == 0:
		req.Max = m.cfg.PullMax
	case req.Max < 0 || req.Max > MaxPull:
		return c, badRequest("max=%d: use 1 to %d", req.Max, MaxPull)
	}
	if req.Wait < 0 {
		return c, badRequest("wait=%s: use a duration such as 10s", req.Wait)
	}
	req.Wait = min(req.Wait, m.cfg.MaxPullWait)
	if req.Lease != 0 && (req.Lease < MinLease || req.Lease > MaxLease) {
		return c, badRequest("lease=%s: use a duration from %s to %s", req.Lease, MinLease, MaxLease)
	}
	if req.From != "" {
		from, _, err := parseFrom(req.From)
		if err != nil {
			return c, err
		}
		req.From = from
	}
	return c, nil
}

// subscribe finds or makes the group's part of the topics and counts the pull in.
func (m *Manager) subscribe(ctx context.Context, req PullRequest, c choice) (*group, *subscription, error) {
	for {
		g := m.lookup(req.Group)
		sub := (*subscription)(nil)
		if g != nil {
			sub = g.subscription(c)
		}
		if sub == nil || sub.missing() != nil {
			// An unknown topic is told at once, and makes no group.
			if err := m.find(ctx, g, c); err != nil {
				return nil, nil, err
			}
		}
		if sub == nil {
			if err := m.admit(ctx, req.Group, c.names); err != nil {
				return nil, nil, err
			}
		}
		if g == nil {
			config, err := m.changeConfig(ctx, req.Group, func(c discovery.GroupConfig, exists bool) (discovery.GroupConfig, error) {
				if !exists && req.From != "" {
					c.From = req.From
				}
				return c, nil
			})
			if err != nil {
				return nil, nil, err
			}
			if g, err = m.enter(req.Group, config); err != nil {
				return nil, nil, err
			}
		}
		if err := m.checkFrom(ctx, g, req.From); err != nil {
			return nil, nil, err
		}
		if sub == nil {
			if err := m.beginPatterns(ctx, g, c.patterns); err != nil {
				return nil, nil, err
			}
		}
		if sub, ok := g.enter(c); ok {
			if m.isDraining() {
				sub.leave(time.Now())
				return nil, nil, errDraining()
			}
			return g, sub, nil
		}
		if m.isDraining() {
			return nil, nil, errDraining()
		}
		// It is being left: join it anew when that is done. Leaving needs the
		// store, so a pull does not wait for it for ever.
		call, cancel := context.WithTimeout(ctx, max(req.Wait, leaveWait))
		select {
		case <-g.done:
			cancel()
		case <-call.Done():
			cancel()
			return nil, nil, storeError("leave the group to join it anew", call.Err())
		}
	}
}

func (m *Manager) isDraining() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.draining
}

// checkFrom refuses a pull that contradicts the group's settings, which another
// sidecar may have changed since they were read.
func (m *Manager) checkFrom(ctx context.Context, g *group, from string) error {
	if !contradicts(g.settings(), from) {
		return nil
	}
	c, _, err := m.readConfig(ctx, g.name)
	if err != nil && !isCode(err, api.CodeGroupNotFound) {
		return err
	}
	if err == nil {
		g.setConfig(c)
	}
	if c = g.settings(); contradicts(c, from) {
		return apiError(api.CodeGroupConfig, "group %s begins at from=%s, not at %s: leave from out, or change it with PUT /groups/%s", g.name, c.From, from, g.name)
	}
	return nil
}

// fill waits for messages and takes them.
func (m *Manager) fill(ctx context.Context, g *group, sub *subscription, req PullRequest, lease time.Duration, started time.Time, d *Delivery) error {
	deadline := started.Add(req.Wait)
	grace := started.Add(max(req.Wait, settleWait))
	var w *waiter
	var by *share // that this pull was last woken for
	defer func() {
		if w != nil {
			sub.unwait(w)
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if m.isDraining() {
			return errDraining()
		}
		unproven, hold := g.proof()
		d.Ownership, d.Away = "", sub.away()
		if unproven {
			d.Ownership = discovery.Unproven.String()
		}
		alive := req.Alive == nil || req.Alive()
		if alive && !hold {
			hungry := sub.waiting()
			if w != nil {
				hungry = max(0, hungry-1) // this one, unless it has just been woken
			}
			took, err := m.takeInto(ctx, sub, req, lease, hungry, d)
			if took || err != nil {
				return err
			}
		}
		if gone := sub.missing(); gone != nil {
			return gone
		}
		now := time.Now()
		reason, each, coming := sub.reason(now)
		if hold {
			reason, each, coming = api.ReasonUnproven, nil, false
		}
		until := deadline
		if coming {
			until = grace
		}
		if !alive && by != nil {
			by.wake() // what this pull was woken for goes to the next
		}
		if !alive || ctx.Err() != nil || !now.Before(until) {
			d.Reason, d.Reasons = &reason, each
			return nil
		}
		if w == nil {
			// Queue first and look once more, so that no message slips through
			// between looking and waiting.
			w = sub.wait()
			continue
		}
		timer.Reset(until.Sub(now))
		select {
		case <-w.woken:
			by, w = w.by, nil
		case <-req.stream.news():
		case <-timer.C:
		case <-ctx.Done():
		case <-m.drained:
		}
	}
}

// proof is how sure this sidecar is that its session lives, and whether it must
// stop handing out for want of it.
func (g *group) proof() (unproven, hold bool) {
	sess := g.session()
	if sess == nil {
		return false, false // nothing is owned
	}
	unproven = sess.Ownership() == discovery.Unproven
	if sess.Age() > g.m.cfg.UnprovenMax {
		return unproven, true
	}
	if g.settings().Exclusive == exclusiveStrict {
		hold = unproven
		if g.m.registration != nil {
			if r := g.m.registration(); r != nil && r.LongestGap(0) > g.m.cfg.StrictAfter {
				hold = true
			}
		}
	}
	return unproven, hold
}

// handed are messages of one partition under one lease.
type handed struct {
	o          *owner
	generation uint64
	epoch      uint64
	messages   []window.Handout[*kgo.Record]
}

// takeInto takes what is ready, of each topic from one partition after the
// other. hungry are the pulls that wait for the same.
func (m *Manager) takeInto(ctx context.Context, sub *subscription, req PullRequest, lease time.Duration, hungry int, d *Delivery) (took bool, err error) {
	var all []handed
	left, bytes := req.Max, m.cfg.PullBytes
	if req.stream != nil {
		bytes = min(bytes, streamBytes)
	}
	take := func(s *share, most, room int, again bool) error {
		for _, o := range s.turn() {
			if most <= 0 || room <= 0 {
				break
			}
			if again && slices.ContainsFunc(all, func(h handed) bool { return h.o == o }) {
				continue // a partition's messages stand together
			}
			h := o.handOut(time.Now(), most, room, lease)
			if len(h.messages) == 0 {
				h = req.stream.more(o, most, room)
			}
			if len(h.messages) == 0 {
				continue
			}
			if req.AutoAck {
				if err := o.ackHanded(ctx, h); err != nil {
					return err
				}
			}
			all = append(all, h)
			most -= len(h.messages)
			left -= len(h.messages)
			for _, x := range h.messages {
				room -= sizeOf(x.Ref)
				bytes -= sizeOf(x.Ref)
			}
			s.serve(o.key.Partition)
			sub.serve(s.topic)
		}
		return nil
	}
	topics := sub.turn()
	if len(topics) == 1 {
		err = take(topics[0], left, bytes, false)
		if len(all) > 0 {
			topics[0].wake() // there may be more for the next
		}
	} else {
		err = takeFairly(topics, &left, &bytes, hungry, take)
		if req.stream != nil && err == nil {
			// What only this stream may have is not among what is ready.
			for _, s := range topics {
				if err = take(s, left, bytes, true); err != nil {
					break
				}
			}
		}
	}
	if len(all) == 0 {
		return false, err // what could be settled is given
	}
	one := sub.choice.single()
	redelivered := map[string]int{}
	var show showing
	show.expect(req.Max-left, len(all[0].o.key.Topic))
	d.Messages = spare(req.Max - left)
	var until *time.Time // of most messages
	for _, h := range all {
		topic := h.o.key.Topic
		for _, x := range h.messages {
			msg := show.message(x.Ref)
			msg.Attempt = x.Attempt
			if !req.AutoAck {
				if until == nil || !until.Equal(x.LeaseUntil) {
					until = new(x.LeaseUntil.UTC())
				}
				msg.LeaseUntil = until
				r := receipt{h.generation, h.epoch, x.LeaseNo, msg.Partition, msg.Offset}
				msg.Receipt = show.bytes.cut(r.appendTo(show.bytes, req.Group, topic, !one))
			}
			if x.Attempt > 1 {
				redelivered[topic]++
			}
			d.Messages = append(d.Messages, msg)
		}
		m.metrics.delivered.WithLabelValues(req.Group, topic).Add(float64(len(h.messages)))
	}
	for topic, n := range redelivered {
		m.metrics.redelivered.WithLabelValues(req.Group, topic).Add(float64(n))
	}
	if !req.AutoAck {
		d.Return = func() {
			for _, h := range all {
				h.o.takeBack(h)
			}
		}
	}
	return true, nil
}

// takeFairly takes from several topics, of each its portion, and then what is
// left from those that were not asked for all they have.
func takeFairly(topics []*share, left, bytes *int, hungry int, take func(s *share, most, room int, again bool) error) error {
	ready := make([]int, len(topics))
	now := time.Now()
	for i, s := range topics {
		ready[i] = s.ready(now)
	}
	portions := divide(*left, ready, hungry)
	kept := slices.Clone(ready)
	served := 0
	for _, most := range portions {
		if most > 0 {
			served++
		}
	}
	for again := range 2 {
		for i, most := range portions {
			if most == 0 || *left <= 0 || *bytes <= 0 {
				continue
			}
			room := *bytes
			if again == 0 {
				room = max(1, room/served)
				served--
			} else {
				most = *left
			}
			before := *left
			if err := take(topics[i], most, room, again > 0); err != nil {
				return err
			}
			kept[i] -= before - *left
		}
	}
	for i, s := range topics {
		if kept[i] > 0 {
			s.wake() // there may be more for the next
		}
	}
	return nil
}

// handOut takes what the partition has ready.
func (o *owner) handOut(now time.Time, most, bytes int, lease time.Duration) handed {
	return o.hand(now, func() []window.Handout[*kgo.Record] { return o.win.Take(now, most, bytes, lease) })
}

// hand hands out what take gives, unless nothing may be handed out.
func (o *owner) hand(now time.Time, take func() []window.Handout[*kgo.Record]) handed {
	if o.s.g.isPaused(o.key.Topic) {
		return handed{}
	}
	o.mu.Lock()
	if o.state != stateOwned || o.win == nil || o.sess.Ownership() == discovery.Lost {
		o.mu.Unlock()
		return handed{}
	}
	h := handed{o: o, generation: o.generation, epoch: o.epoch}
	h.messages = take()
	if len(h.messages) == 0 {
		o.mu.Unlock()
		return h
	}
	o.out.add(h, now)
	p := o.win.Position()
	o.mu.Unlock()
	// The hand-out edge: whoever takes over after a crash counts an attempt for
	// what was out.
	o.s.g.m.checkpointer.Mark(o.key, h.generation, p)
	return h
}

// takeBack returns messages that the application never got.
func (o *owner) takeBack(h handed) {
	o.mu.Lock()
	var back []int64
	if o.win != nil && o.generation == h.generation && o.epoch == h.epoch {
		back = o.win.Return(h.messages[0].LeaseNo)
		o.out.back(h.messages[0].LeaseNo)
	}
	o.mu.Unlock()
	if len(back) == 0 {
		return
	}
	o.s.g.m.metrics.returned.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(len(back)))
	kick(o.poke)
	o.s.wake()
}
