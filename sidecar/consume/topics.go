package consume

import (
	"context"
	"errors"
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
		seen := map[string]bool{}
		for _, g := range m.all() {
			for _, s := range g.all() {
				if s.isSubscribed() && !seen[s.topic] {
					seen[s.topic] = true
					m.lookAt(ctx, s.topic, asked)
				}
			}
		}
	}
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
	for _, g := range m.all() {
		if s := g.share(topic); s != nil {
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

// topic finds a topic for a pull, and makes it where that is wanted.
func (m *Manager) topic(ctx context.Context, name string) (upstream.Topic, error) {
	t, err := m.up.Topic(ctx, name)
	if err == nil {
		return t, nil
	}
	if !isCode(err, api.CodeTopicNotFound) || !m.autoCreate {
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
