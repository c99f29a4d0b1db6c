package consume

import (
	"context"
	"slices"
	"strings"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// allTopics in place of topics' names pauses a whole group. No topic is called
// so.
const allTopics = "*"

// pausedTopics reads what of a group is paused: all, or some topics, sorted.
func pausedTopics(c discovery.GroupConfig) (all bool, topics []string) {
	switch c.Paused {
	case "":
		return false, nil
	case allTopics:
		return true, nil
	}
	return false, strings.Split(c.Paused, ",")
}

// isPaused says whether nothing of a topic is to be handed out.
func isPaused(c discovery.GroupConfig, topic string) bool {
	if c.Paused == "" {
		return false
	}
	all, topics := pausedTopics(c)
	return all || slices.Contains(topics, topic)
}

// withPause pauses a topic, or all with "". A group that is paused as a whole
// stays so.
func withPause(c discovery.GroupConfig, topic string) discovery.GroupConfig {
	all, topics := pausedTopics(c)
	switch {
	case all || topic == "":
		c.Paused = allTopics
	case !slices.Contains(topics, topic):
		topics = append(topics, topic)
		slices.Sort(topics)
		c.Paused = strings.Join(topics, ",")
	}
	return c
}

// withoutPause resumes a topic, or with "" all that is paused.
func withoutPause(c discovery.GroupConfig, topic string) (discovery.GroupConfig, error) {
	all, topics := pausedTopics(c)
	switch {
	case topic == "":
		c.Paused = ""
	case all:
		return c, apiError(api.CodeGroupConfig, "the group is paused as a whole: resume it without a topic")
	default:
		c.Paused = strings.Join(slices.DeleteFunc(topics, func(t string) bool { return t == topic }), ",")
	}
	return c, nil
}

// Pause makes a group hand out nothing of a topic (of all with ""), on all
// sidecars, until it is resumed. What is out may be acknowledged, positions and
// ownership stay. It holds here at once, on the others as soon as the group's
// planner tells them, at the latest when they look again by themselves.
//
// Errors: group_not_found, store_unavailable.
func (m *Manager) Pause(ctx context.Context, group, topic string) (api.Group, error) {
	return m.setPause(ctx, group, topic, func(c discovery.GroupConfig) (discovery.GroupConfig, error) {
		return withPause(c, topic), nil
	})
}

// Resume ends a pause; group_config when a topic is named and the whole group is
// paused. One that is not paused stays as it is.
func (m *Manager) Resume(ctx context.Context, group, topic string) (api.Group, error) {
	return m.setPause(ctx, group, topic, func(c discovery.GroupConfig) (discovery.GroupConfig, error) {
		return withoutPause(c, topic)
	})
}

func (m *Manager) setPause(ctx context.Context, group, topic string, change func(discovery.GroupConfig) (discovery.GroupConfig, error)) (api.Group, error) {
	if err := checkGroup(group); err != nil {
		return api.Group{}, err
	}
	if topic != "" {
		if err := checkNames(group, topic); err != nil {
			return api.Group{}, err
		}
	}
	c, err := m.changeConfig(ctx, group, func(c discovery.GroupConfig, exists bool) (discovery.GroupConfig, error) {
		if !exists {
			return c, errNoGroup(group)
		}
		return change(c)
	})
	if err != nil {
		return api.Group{}, err
	}
	if g := m.lookup(group); g != nil {
		g.setConfig(c)
	}
	return m.Group(ctx, group)
}
