package consume

import (
	"context"
	"maps"
	"slices"

	"sidestream/sidecar/upstream"
)

// expand finds the topics that the members' patterns match. While the brokers
// are away those that were known stay.
func (p *planner) expand(ctx context.Context, members map[string]member) error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(members)), func(m member) bool { return slices.ContainsFunc(m.Topics, isPattern) }) {
		p.known = nil
	} else {
		all, err := p.g.m.topics.list(ctx, p.g.m.up, p.g.m.cfg.Recheck/2)
		switch {
		case err == nil:
			p.known = all
		case p.known == nil:
			return err
		}
	}
	dead := ownDead(p.g.name, p.g.settings())
	for id, m := range members {
		m.pulls = expand(m.Topics, p.known, dead)
		members[id] = m
	}
	return nil
}

// told are the topics that a member is told of, and its patterns: so that it
// knows they were looked at when they match nothing.
func (m member) told() []string {
	ts := slices.Concat(m.Topics, m.pulls)
	slices.Sort(ts)
	return slices.Compact(ts)
}

func countOf(t upstream.Topic) (n int32) {
	for _, part := range t.Partitions {
		n = max(n, part.ID+1)
	}
	return n
}

// countBefore is how many partitions a topic had, as far as the plan before
// tells.
func (p *planner) countBefore(topic string) (n int32, known bool) {
	if n, known = p.counts[topic]; known {
		return n, true
	}
	for tp := range p.planned {
		if tp.Topic == topic {
			n, known = max(n, tp.Partition+1), true
		}
	}
	return n, known
}

// cameAndWent says which topics patterns match that they did not, and which no
// more.
func (p *planner) cameAndWent(members map[string]member, counts map[string]int32) (why []string) {
	if len(p.counts) == 0 {
		return nil // nothing to compare with
	}
	matched := func(topic string) bool {
		for _, m := range members {
			if slices.ContainsFunc(m.Topics, func(item string) bool { return isPattern(item) && match(item, topic) }) {
				return true
			}
		}
		return false
	}
	for _, topic := range slices.Sorted(maps.Keys(counts)) {
		if _, known := p.counts[topic]; !known && matched(topic) {
			why = append(why, "topic "+topic+" appeared")
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(p.counts)) {
		if _, there := counts[topic]; !there && matched(topic) {
			why = append(why, "topic "+topic+" is gone")
		}
	}
	return why
}
