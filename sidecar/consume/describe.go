package consume

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

// Group describes a group: settings, members, owners with their generations,
// and the last moves that were planned, by whichever sidecar.
func (m *Manager) Group(ctx context.Context, group string) (api.Group, error) {
	if err := checkGroup(group); err != nil {
		return api.Group{}, err
	}
	c, _, err := m.readConfig(ctx, group)
	if err != nil {
		return api.Group{}, err
	}
	out := api.Group{
		Group: group, Config: showConfig(group, c, m.cfg.Lease),
		Members: []api.GroupMember{}, Owners: []api.OwnedBy{}, History: []api.Move{},
	}
	if e, err := m.store.Get(ctx, discovery.KeyPlanner(group)); err == nil {
		if p, err := discovery.Decode[discovery.Planner](e); err == nil {
			out.Planner = p.Sidecar
		}
	} else if !errors.Is(err, discovery.ErrNotFound) {
		return out, storeError("read the planner", err)
	}
	members, err := m.membersOf(ctx, group)
	if err != nil {
		return out, storeError("read the members", err)
	}
	for _, mem := range members {
		shown := api.GroupMember{Sidecar: mem.Sidecar, Topics: mem.Topics, Joined: mem.Joined}
		if e, err := m.store.Get(ctx, discovery.KeySidecar(mem.Sidecar)); err == nil {
			if s, err := discovery.Decode[discovery.Sidecar](e); err == nil {
				shown.Address = s.Address
			}
		}
		out.Members = append(out.Members, shown)
	}
	if out.Owners, err = m.ownersOf(ctx, group); err != nil {
		return out, storeError("read the owners", err)
	}
	h, err := m.readHistory(ctx, group)
	if err != nil {
		return out, storeError("read the history", err)
	}
	out.History = showHistory(h)
	out.Paused, out.PausedTopics = pausedTopics(c)
	return out, nil
}

// membersOf are a group's live members, by name.
func (m *Manager) membersOf(ctx context.Context, group string) ([]discovery.Member, error) {
	es, err := m.store.List(ctx, discovery.PrefixMembers(group))
	if err != nil {
		return nil, err
	}
	var all []discovery.Member
	for _, e := range es {
		if mem, err := discovery.Decode[discovery.Member](e); err == nil && e.Session != "" {
			all = append(all, mem)
		}
	}
	return all, nil
}

// ownersOf are all partitions that somebody of the group owns or owned.
func (m *Manager) ownersOf(ctx context.Context, group string) ([]api.OwnedBy, error) {
	type place struct {
		topic     string
		partition int32
	}
	all := map[place]api.OwnedBy{}
	es, err := m.store.List(ctx, discovery.PrefixOffsets(group))
	if err != nil {
		return nil, err
	}
	for _, e := range es {
		topic, p, ok := discovery.SplitTopicPartition(strings.TrimPrefix(e.Key, discovery.PrefixOffsets(group)))
		st, err := offsets.DecodeStored(e)
		if ok && err == nil {
			all[place{topic, p}] = api.OwnedBy{Topic: topic, Partition: p, Generation: st.Generation}
		}
	}
	if es, err = m.store.List(ctx, discovery.PrefixOwners(group)); err != nil {
		return nil, err
	}
	for _, e := range es {
		topic, p, ok := discovery.SplitTopicPartition(strings.TrimPrefix(e.Key, discovery.PrefixOwners(group)))
		o, err := discovery.Decode[discovery.Owner](e)
		if ok && err == nil && e.Session != "" {
			by := all[place{topic, p}]
			by.Topic, by.Partition, by.Owner = topic, p, o.Sidecar
			all[place{topic, p}] = by
		}
	}
	out := make([]api.OwnedBy, 0, len(all))
	for _, by := range all {
		out = append(out, by)
	}
	slices.SortFunc(out, func(a, b api.OwnedBy) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
	return out, nil
}

// Groups lists the groups of the cluster.
func (m *Manager) Groups(ctx context.Context) (api.GroupList, error) {
	es, err := m.store.List(ctx, discovery.PrefixGroups)
	if err != nil {
		return api.GroupList{}, storeError("list the groups", err)
	}
	out := api.GroupList{Groups: []string{}}
	for _, e := range es {
		name, rest, _ := strings.Cut(strings.TrimPrefix(e.Key, discovery.PrefixGroups), "/")
		if rest == "config" {
			out.Groups = append(out.Groups, name)
		}
	}
	slices.Sort(out.Groups)
	return out, nil
}

// DeleteGroup forgets a group: its settings and positions. It is refused while
// the group has members, this sidecar among them: one that nobody pulls at now may
// be between two pulls of a consumer that lives. What stays is a seek for each topic: a sidecar that is away may hold a
// position on its disk, and must not skip with it what a new group of the same
// name has not seen.
func (m *Manager) DeleteGroup(ctx context.Context, group string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	_, version, err := m.readConfig(ctx, group)
	if err != nil {
		return err
	}
	members, err := m.membersOf(ctx, group)
	if err != nil {
		return storeError("read the members", err)
	}
	var who []string
	for _, mem := range members {
		who = append(who, mem.Sidecar)
	}
	if m.lookup(group) != nil && !slices.Contains(who, m.id) {
		who = append(who, m.id) // it is joining, or the store has lost its membership
	}
	if len(who) > 0 {
		return apiError(api.CodeGroupConfig, "group %s is in use by %s: stop pulling there, and delete it when they have left (%s after the last pull, once nothing is out)",
			group, strings.Join(who, ", "), m.cfg.LeaveAfter)
	}
	es, err := m.store.List(ctx, discovery.PrefixGroups+group+"/")
	if err != nil {
		return storeError("read the group", err)
	}
	keys := readGroupKeys(group, es)
	if keys.config == nil || keys.config.Version != version {
		return errGroupChanged(group)
	}
	c, _ := discovery.Decode[discovery.GroupConfig](*keys.config)
	mark := discovery.Set(discovery.KeyIdle(group), removedMark(c.Ephemeral, time.Now()))
	for _, ops := range keys.forgetOps(nil, mark) {
		_, err = m.store.Commit(ctx, ops...)
		if errors.Is(err, discovery.ErrConflict) {
			return errGroupChanged(group)
		}
		if err != nil {
			return storeError("delete the group", err)
		}
	}
	m.deleteSeries(group)
	m.forgetHere(keys.keys)
	if err := m.local.DeleteGroup(ctx, group); err != nil {
		return apiError(api.CodeInternal, "the group is deleted, but not its positions on this host's disk: %v", err)
	}
	return nil
}

func errGroupChanged(group string) *api.Error {
	return apiError(api.CodeGroupConfig, "group %s was changed meanwhile: delete it again if that is still wanted", group)
}

// forgetHere drops what this sidecar would write of positions.
func (m *Manager) forgetHere(keys []offsets.Key) {
	for _, k := range keys {
		m.checkpointer.Forget(k)
	}
}
