package consume

import (
	"context"
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

// Pull takes messages of a topic for a group under a lease, after it has settled
// the receipts that came along. Where there is none it waits as asked, and says
// why it is empty. The first pull makes the group (and the topic, where that is
// switched on) and joins it.
//
// Errors: bad_request, topic_not_found at once, group_config when the request
// contradicts the group's settings, draining, store_unavailable and
// brokers_unavailable (only while the group is not joined yet).
func (m *Manager) Pull(ctx context.Context, req PullRequest) (*Delivery, error) {
	started := time.Now()
	if err := m.checkPull(&req); err != nil {
		return nil, err
	}
	g, s, err := m.subscribe(ctx, req)
	if err != nil {
		return nil, err
	}
	defer func() { s.leave(time.Now()) }()

	d := &Delivery{Return: func() {}}
	d.Messages = []api.Message{}
	if len(req.Ack)+len(req.Nack) > 0 {
		acks, err := m.settleBoth(ctx, g, s, req.Ack, req.Nack)
		if err != nil {
			return nil, err
		}
		d.Acks = &acks
	}
	lease := req.Lease
	if lease == 0 {
		lease = g.lease()
	}
	return d, m.fill(ctx, g, s, req, lease, started, d)
}

// checkPull fills in the defaults.
func (m *Manager) checkPull(req *PullRequest) error {
	if err := checkNames(req.Group, req.Topic); err != nil {
		return err
	}
	switch {
	case req.Max == 0:
		req.Max = m.cfg.PullMax
	case req.Max < 0 || req.Max > MaxPull:
		return badRequest("max=%d: use 1 to %d", req.Max, MaxPull)
	}
	if req.Wait < 0 {
		return badRequest("wait=%s: use a duration such as 10s", req.Wait)
	}
	req.Wait = min(req.Wait, m.cfg.MaxPullWait)
	if req.Lease != 0 && (req.Lease < MinLease || req.Lease > MaxLease) {
		return badRequest("lease=%s: use a duration from %s to %s", req.Lease, MinLease, MaxLease)
	}
	if req.From != "" {
		from, _, err := parseFrom(req.From)
		if err != nil {
			return err
		}
		req.From = from
	}
	return nil
}

// subscribe finds or makes the group's part of the topic and counts the pull in.
func (m *Manager) subscribe(ctx context.Context, req PullRequest) (*group, *share, error) {
	for {
		g := m.lookup(req.Group)
		s := (*share)(nil)
		if g != nil {
			s = g.share(req.Topic)
		}
		if s == nil || s.goneError() != nil {
			// An unknown topic is told at once, and makes no group.
			t, err := m.topic(ctx, req.Topic)
			if err != nil {
				return nil, nil, err
			}
			if s == nil {
				if err := m.admit(ctx, req.Group, []string{req.Topic}); err != nil {
					return nil, nil, err
				}
			}
			if s != nil {
				s.topicIs(t, nil)
			}
		}
		if g == nil {
			c, err := m.changeConfig(ctx, req.Group, func(c discovery.GroupConfig, exists bool) (discovery.GroupConfig, error) {
				if !exists && req.From != "" {
					c.From = req.From
				}
				return c, nil
			})
			if err != nil {
				return nil, nil, err
			}
			if g, err = m.enter(req.Group, c); err != nil {
				return nil, nil, err
			}
		}
		if err := m.checkFrom(ctx, g, req.From); err != nil {
			return nil, nil, err
		}
		if s, ok := g.enter(req.Topic); ok {
			if m.isDraining() {
				s.leave(time.Now())
				return nil, nil, errDraining()
			}
			return g, s, nil
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
func (m *Manager) fill(ctx context.Context, g *group, s *share, req PullRequest, lease time.Duration, started time.Time, d *Delivery) error {
	deadline := started.Add(req.Wait)
	grace := started.Add(max(req.Wait, settleWait))
	var w *waiter
	defer func() {
		if w != nil {
			s.unwait(w)
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if m.isDraining() {
			return errDraining()
		}
		unproven, hold := g.proof()
		d.Ownership = ""
		if unproven {
			d.Ownership = discovery.Unproven.String()
		}
		alive := req.Alive == nil || req.Alive()
		if alive && !hold {
			took, err := m.takeInto(ctx, s, req, lease, d)
			if took || err != nil {
				return err
			}
		}
		if gone := s.goneError(); gone != nil {
			return gone
		}
		now := time.Now()
		reason, coming := s.reason(now)
		if hold {
			reason, coming = api.ReasonUnproven, false
		}
		until := deadline
		if coming {
			until = grace
		}
		if !alive {
			s.wake() // what this pull may have been woken for goes to the next
		}
		if !alive || ctx.Err() != nil || !now.Before(until) {
			d.Reason = &reason
			return nil
		}
		if w == nil {
			// Queue first and look once more, so that no message slips through
			// between looking and waiting.
			w = s.wait()
			continue
		}
		timer.Reset(until.Sub(now))
		select {
		case <-w.woken:
			w = nil
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

// takeInto takes what is ready, from one partition after the other.
func (m *Manager) takeInto(ctx context.Context, s *share, req PullRequest, lease time.Duration, d *Delivery) (took bool, err error) {
	var all []handed
	left, bytes := req.Max, m.cfg.PullBytes
	for _, o := range s.rotation() {
		if left == 0 || bytes <= 0 {
			break
		}
		h := o.handOut(time.Now(), left, bytes, lease)
		if len(h.messages) == 0 {
			continue
		}
		if req.AutoAck {
			if err := o.ackHanded(ctx, h); err != nil {
				if len(all) > 0 {
					break // what could be settled is given
				}
				return false, err
			}
		}
		all = append(all, h)
		left -= len(h.messages)
		for _, x := range h.messages {
			bytes -= sizeOf(x.Ref)
		}
	}
	if len(all) == 0 {
		return false, nil
	}
	redelivered := 0
	for _, h := range all {
		for _, x := range h.messages {
			msg := MessageOf(x.Ref)
			msg.Attempt = x.Attempt
			if !req.AutoAck {
				until := x.LeaseUntil.UTC()
				msg.LeaseUntil = &until
				msg.Receipt = receipt{h.generation, h.epoch, x.LeaseNo, msg.Partition, msg.Offset}.encode(req.Group, req.Topic)
			}
			if x.Attempt > 1 {
				redelivered++
			}
			d.Messages = append(d.Messages, msg)
		}
	}
	m.metrics.delivered.WithLabelValues(req.Group, req.Topic).Add(float64(len(d.Messages)))
	m.metrics.redelivered.WithLabelValues(req.Group, req.Topic).Add(float64(redelivered))
	if !req.AutoAck {
		d.Return = func() {
			for _, h := range all {
				h.o.takeBack(h)
			}
		}
	}
	s.wake() // there may be more for the next
	return true, nil
}

// handOut takes what the partition has ready.
func (o *owner) handOut(now time.Time, most, bytes int, lease time.Duration) handed {
	if o.s.g.isPaused(o.key.Topic) {
		return handed{}
	}
	o.mu.Lock()
	if o.state != stateOwned || o.win == nil || o.sess.Ownership() == discovery.Lost {
		o.mu.Unlock()
		return handed{}
	}
	h := handed{o: o, generation: o.generation, epoch: o.epoch}
	h.messages = o.win.Take(now, most, bytes, lease)
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

// reason says why there is nothing to take. coming says that there will be in a
// moment: messages that the brokers have are being fetched.
func (s *share) reason(now time.Time) (reason api.Reason, coming bool) {
	if s.g.isPaused(s.topic) {
		return api.ReasonPaused, false
	}
	a := s.g.assigned()
	var assigned []int32
	told := false
	if a != nil {
		assigned, told = a.Partitions[s.topic]
	}
	var owned, full, down, corrupt, unread, behind int
	os := s.list()
	for _, o := range os {
		v := o.tick(now)
		switch {
		case v.trouble == "":
		case v.unreadable:
			corrupt++
		default:
			down++
		}
		if v.state != stateOwned {
			continue
		}
		owned++
		switch {
		case v.why == window.InFlightFull && (v.waiting > 0 || v.behind), v.why == window.Delayed:
			full++
		case v.trouble != "":
		case !v.started:
			unread++
		case v.behind && v.why == window.AtEnd, v.why == window.Ready:
			behind++
		}
	}
	switch {
	case !told:
		return api.ReasonRebalancing, false
	case owned == 0 && down > 0:
		return api.ReasonBrokersDown, false
	case owned == 0 && len(assigned)+len(os) == 0:
		return api.ReasonNoPartition, false
	case owned == 0:
		return api.ReasonRebalancing, false
	case behind > 0 && s.g.m.reader.buffered.Load() >= s.g.m.cfg.ProcessBytes:
		return api.ReasonInFlightFull, false
	case full > 0:
		return api.ReasonInFlightFull, behind+unread > 0
	case corrupt > 0: // before brokers_down: it does not pass by itself
		return api.ReasonCorruptRecord, behind+unread > 0
	case down > 0:
		return api.ReasonBrokersDown, behind+unread > 0
	case unread+behind > 0 || len(os) > owned:
		return api.ReasonRebalancing, unread+behind > 0
	}
	return api.ReasonAtEnd, false
}
