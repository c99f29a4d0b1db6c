package consume

import (
	"context"
	"fmt"
	"sync"

	"sidestream/sdk/api"
)

// atOnce is how many topics of a request are asked about at the same time.
const atOnce = 8

// offsetsOfAll tells where a group stands in several topics.
func (m *Manager) offsetsOfAll(ctx context.Context, group string, c choice) (api.Offsets, error) {
	out := api.Offsets{Group: group, Topic: c.text, Partitions: []api.PartitionOffset{}, Topics: []api.Offsets{}}
	topics, err := m.chosen(ctx, group, c)
	if err != nil {
		return out, err
	}
	out.Topics = make([]api.Offsets, len(topics))
	err = forEach(topics, func(i int, topic string) error {
		its, err := m.Offsets(ctx, group, topic)
		out.Topics[i] = its
		return err
	})
	if err != nil {
		return api.Offsets{}, err
	}
	out.Paused = len(topics) > 0
	for _, its := range out.Topics {
		out.Paused = out.Paused && its.Paused
		out.Lag += its.Lag
		out.Partial = out.Partial || its.Partial
		out.LagSeconds = max(out.LagSeconds, its.LagSeconds)
		out.OldestUnackedSeconds = max(out.OldestUnackedSeconds, its.OldestUnackedSeconds)
	}
	return out, nil
}

// seekAll moves a group in several topics to the same moment.
func (m *Manager) seekAll(ctx context.Context, group string, c choice, req api.SeekRequest) (api.Sought, error) {
	if req.To == "" {
		return api.Sought{}, badRequest(`several topics can be sought by {"to":"earliest|latest|<time>"} only: name one topic to seek to offsets`)
	}
	topics, err := m.chosen(ctx, group, c)
	if err != nil {
		return api.Sought{}, err
	}
	all := make([]api.Sought, len(topics))
	err = forEach(topics, func(i int, topic string) (err error) {
		all[i], err = m.Seek(ctx, group, topic, req)
		return err
	})
	if err != nil {
		return api.Sought{}, err
	}
	out := api.Sought{Offsets: map[int32]int64{}, Topics: map[string]api.Sought{}}
	for i, topic := range topics {
		out.Topics[topic] = all[i]
		out.SeekEpoch = max(out.SeekEpoch, all[i].SeekEpoch)
	}
	return out, nil
}

// chosen are the topics that are chosen now, sorted.
func (m *Manager) chosen(ctx context.Context, group string, c choice) ([]string, error) {
	config, _, err := m.readConfig(ctx, group)
	if err != nil {
		return nil, err
	}
	if len(c.patterns) == 0 {
		return c.names, nil
	}
	all, err := m.topics.list(ctx, m.up, 0)
	if err != nil {
		return nil, err
	}
	return expand(c.items(), all, ownDead(group, config)), nil
}

// forEach calls f for each topic, some at a time; its error is that of the first
// topic that failed, and names it.
func forEach(topics []string, f func(i int, topic string) error) error {
	errs := make([]error, len(topics))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, topic := range topics {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i, topic)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			e := *brokerError("", err)
			e.Message = fmt.Sprintf("topic %s: %s", topics[i], e.Message)
			return &e
		}
	}
	return nil
}
