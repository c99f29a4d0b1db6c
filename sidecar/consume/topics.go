package consume

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// watchTopics looks at the topics that are pulled here every now and then, and
// when the reader finds one missing: whether they are still there, and the same.
func (m *Manager) watchTopics(ctx context.Context) {
	t := time.NewTicker(m.cfg.Recheck)
	defer t.Stop()
	for {
		asked := false
		// A topic of a thousand partitions is missed a thousand times: one look
		// answers them all.
		if pause(ctx, 50*time.Millisecond) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-m.lookTopics:
			asked = true
		case <-t.C:
		}
		m.lookAtAll(ctx, asked)
	}
}

// lookAtAll looks at the topics that are pulled here: one by one, or where they
// are many at all that the brokers have.
func (m *Manager) lookAtAll(ctx context.Context, fresh bool) {
	seen := map[string]bool{}
	for _, g := range m.all() {
		for _, s := range g.all() {
			if s.isSubscribed() {
				seen[s.topic] = true
			}
		}
	}
	if len(seen) > listFrom {
		all, err := m.topics.list(ctx, m.up, 0)
		if err != nil {
			return // the brokers' silence says nothing
		}
		for topic := range seen {
			if t, ok := all[topic]; ok {
				m.tell(t, nil)
				delete(seen, topic)
			}
		}
		fresh = true // of those that are missing
	}
	for topic := range seen {
		m.lookAt(ctx, topic, fresh)
	}
}

// listFrom is how many topics it takes that all are listed in place of being
// asked for one by one.
const listFrom = 8

// catalogue remembers for a moment which topics the brokers have: all groups
// with patterns ask it.
type catalogue struct {
	slot chan struct{} // capacity 1: held while the brokers are asked

	mu    sync.Mutex // guards all below
	at    time.Time
	known map[string]upstream.Topic
}

func newCatalogue() *catalogue { return &catalogue{slot: make(chan struct{}, 1)} }

// list are the topics by name, as of so long ago at most. The caller must not
// change them. Errors are those of Upstream.
func (c *catalogue) list(ctx context.Context, up Upstream, age time.Duration) (map[string]upstream.Topic, error) {
	since := time.Now().Add(-age)
	select {
	case c.slot <- struct{}{}:
		defer func() { <-c.slot }()
	case <-ctx.Done():
		return nil, brokerError("list the topics", ctx.Err())
	}
	c.mu.Lock()
	at, known := c.at, c.known
	c.mu.Unlock()
	if known != nil && !at.Before(since) {
		return known, nil
	}
	asked := time.Now()
	ts, err := up.Topics(ctx)
	if err != nil {
		return nil, brokerError("list the topics", err)
	}
	known = make(map[string]upstream.Topic, len(ts))
	for _, t := range ts {
		known[t.Name] = t
	}
	c.mu.Lock()
	c.at, c.known = asked, known
	c.mu.Unlock()
	return known, nil
}

// expand are the topics of a list of names and patterns, sorted: the names, and
// what is there and matches. dead is where the group's dead letters go, which no
// pattern matches.
func expand(items []string, all map[string]upstream.Topic, dead string) []string {
	var ts, patterns []string
	for _, item := range items {
		if isPattern(item) {
			patterns = append(patterns, item)
		} else {
			ts = append(ts, item)
		}
	}
	if len(patterns) > 0 {
		for topic := range all {
			if topic != dead && matchAny(patterns, topic) {
				ts = append(ts, topic)
			}
		}
	}
	slices.Sort(ts)
	return slices.Compact(ts)
}

// lookAt tells every group what has become of a topic. The brokers' silence
// says nothing.
func (m *Manager) lookAt(ctx context.Context, topic string, fresh bool) {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	look := m.up.Topic
	if fresh {
		look = m.up.Refresh
	}
	t, err := look(call, topic)
	if !fresh && isCode(err, api.CodeTopicNotFound) {
		t, err = m.up.Refresh(call, topic)
	}
	var missing *api.Error
	switch {
	case err == nil:
	case isCode(err, api.CodeTopicNotFound) && errors.As(err, &missing):
	default:
		return
	}
	if missing != nil {
		t.Name = topic
	}
	m.tell(t, missing)
}

// tell tells every group of a topic, or that it is missing.
func (m *Manager) tell(t upstream.Topic, missing *api.Error) {
	for _, g := range m.all() {
		if s := g.share(t.Name); s != nil {
			s.topicIs(t, missing)
		}
	}
}

// topicIs acts on what the brokers say of the topic: one that is gone is given
// up, one that was deleted and made again is taken anew.
func (s *share) topicIs(t upstream.Topic, missing *api.Error) {
	was := s.goneError()
	s.setGone(missing)
	for _, o := range s.list() {
		if missing != nil {
			o.releaseNow("the topic is gone")
			continue
		}
		o.order(func() {
			if o.state == stateOwned && !offsets.SameTopic(o.uuid, t.UUID) {
				o.recreated = true
			}
		})
	}
	if was != nil && missing == nil {
		kick(s.g.poke)
	}
}

// find looks for the topics that a pull names, and whether the brokers answer
// where it has patterns. A topic of several that was there when it was joined
// keeps nobody from the others.
func (m *Manager) find(ctx context.Context, g *group, c choice) error {
	var gone error
	there := len(c.patterns)
	for _, name := range c.names {
		var s *share
		if g != nil {
			s = g.share(name)
		}
		if s != nil && s.goneError() == nil {
			there++
			continue
		}
		t, err := m.topic(ctx, name)
		switch {
		case err == nil:
			there++
			if s != nil {
				s.topicIs(t, nil)
			}
		case s != nil && isCode(err, api.CodeTopicNotFound):
			gone = err
		default:
			return err
		}
	}
	if there == 0 {
		return gone
	}
	if len(c.patterns) > 0 && (g == nil || g.subscription(c) == nil) {
		if _, err := m.topics.list(ctx, m.up, m.cfg.Recheck); err != nil {
			return err
		}
	}
	return nil
}

// topic finds a topic for a pull, and makes it where that is wanted.
func (m *Manager) topic(ctx context.Context, name string) (upstream.Topic, error) {
	t, err := m.up.Topic(ctx, name)
	if err == nil {
		return t, nil
	}
	if !isCode(err, api.CodeTopicNotFound) || !m.autoCreate || !upstream.MayAutoCreate(name) {
		return t, brokerError("read the topic", err)
	}
	t, err = m.up.CreateTopic(ctx, name, api.TopicSpec{})
	if isCode(err, api.CodeTopicExists) {
		t, err = m.up.Refresh(ctx, name)
	}
	if err != nil {
		return t, brokerError("create the topic", err)
	}
	return t, nil
}
