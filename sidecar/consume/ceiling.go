package consume

import (
	"context"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// The ceiling on what all groups consume together. Each partition of each group
// costs a lock and a position in the coordination store, and while it is busy a
// share of the checkpoints that the store can take, about 6,000 a second.

// readCensus is what all groups consume, as last counted, and the version of
// the count.
func (m *Manager) readCensus(ctx context.Context) (partitions int, version uint64, err error) {
	e, err := m.store.Get(ctx, discovery.KeyCensus)
	if isNotFound(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	c, err := discovery.Decode[discovery.Census](e)
	if err != nil {
		return 0, e.Version, nil // counted anew by the keeper
	}
	return c.Partitions, e.Version, nil
}

// setCensus writes what was counted if it differs. Who began to consume
// meanwhile has changed it, and is counted the next time.
func (m *Manager) setCensus(ctx context.Context, partitions int) error {
	was, version, err := m.readCensus(ctx)
	if err != nil || was == partitions && version > 0 {
		return err
	}
	_, err = m.store.Commit(ctx, censusOp(partitions, version))
	return notConflict(err)
}

func censusOp(partitions int, version uint64) discovery.Op {
	c := discovery.Census{Partitions: partitions, Writer: discovery.NewNonce()}
	return discovery.CAS(discovery.KeyCensus, discovery.Encode(c), version)
}

// addToCensus is the operation that adds the partitions of a topic that a group
// begins to consume, or the error that says that they are too many.
func (m *Manager) addToCensus(ctx context.Context, group, topic string, partitions int) (discovery.Op, error) {
	now, version, err := m.readCensus(ctx)
	if err != nil {
		return discovery.Op{}, err
	}
	if now+partitions > m.cfg.MaxGroupPartitions {
		return discovery.Op{}, m.errCeiling(group, topic, partitions, now)
	}
	return censusOp(now+partitions, version), nil
}

func (m *Manager) errCeiling(group, topic string, partitions, now int) *api.Error {
	e := apiError(api.CodeGroupLimit, "group %s would add the %d partitions of topic %s to the %d that all groups consume already: at most %d are allowed (consume.max_group_partitions), since each costs a lock and a position in the coordination store. Delete groups that are not needed (sidestream group delete), and make short-lived ones ephemeral",
		group, partitions, topic, now, m.cfg.MaxGroupPartitions)
	e.RetryAfterMillis = m.cfg.GroupSweep.Milliseconds()
	return e
}

// admit says before a group begins to consume topics whether they fit under the
// ceiling, so that its first pull is refused and nothing is made. What counts is
// said when the beginning is written. Without the store there is nothing to say.
func (m *Manager) admit(ctx context.Context, group string, topics []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, topic := range topics {
		t, err := m.up.Topic(ctx, topic)
		if err != nil {
			continue
		}
		if begun, err := m.begun(ctx, group, topic, t.UUID); err != nil || begun != nil {
			continue
		}
		now, _, err := m.readCensus(ctx)
		if err == nil && now+len(t.Partitions) > m.cfg.MaxGroupPartitions {
			return m.errCeiling(group, topic, len(t.Partitions), now)
		}
	}
	return nil
}

// commitBegin writes the beginning of a group in a topic, and counts it.
func (s *share) commitBegin(ctx context.Context, topic upstream.Topic, begin discovery.Op, again bool) error {
	m := s.g.m
	if again { // the topic was made anew: its partitions are counted
		_, err := m.store.Commit(ctx, begin)
		return err
	}
	select { // a hundred groups that begin at once would only get into each other's way
	case m.counting <- struct{}{}:
		defer func() { <-m.counting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	count, err := m.addToCensus(ctx, s.g.name, s.topic, len(topic.Partitions))
	if err != nil {
		return err
	}
	_, err = m.store.Commit(ctx, begin, count)
	return err
}
