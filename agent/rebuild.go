package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// Rebuilt is what a rebuild wrote, in the words of the HTTP answer.
type Rebuilt struct {
	ClusterID        string   `json:"cluster_id"`
	ClusterIDWritten bool     `json:"cluster_id_written"` // false: it was there
	Topics           []string `json:"topics"`             // whose key was written or changed
	Partitions       []string `json:"partitions"`         // whose state was written, as <topic>-<number>
	Unchanged        int      `json:"unchanged"`          // partitions that the store had already
	Conflicts        []string `json:"conflicts"`          // what was left as it is, and why
}

// rebuildTries bounds the rounds of one topic: each lost round means that
// another agent wrote its part in between.
const rebuildTries = 20

// ErrRebuild marks a rebuild that must not be done as asked.
var ErrRebuild = errors.New("metadata rebuild refused")

// Rebuild writes the store's keys again from what this host's folder holds:
// the cluster-id when it has none, and topics and state where they are absent
// or where another agent's rebuild left gaps. It deletes nothing and changes
// nothing that is there. clusterID names the cluster to keep, so that nobody
// revives the wrong one; it must be the folder's. Run it on every storage host.
func (a *Agent) Rebuild(ctx context.Context, clusterID string) (Rebuilt, error) {
	var r Rebuilt
	if a.theBroker() == nil || a.ID() == 0 {
		return r, fmt.Errorf("%w: this agent has not started its broker yet: nothing is known of what it holds", broker.ErrUnavailable)
	}
	select {
	case <-a.rebuilds:
		defer func() { a.rebuilds <- struct{}{} }()
	case <-ctx.Done():
		return r, ctx.Err()
	}
	if folder := a.folderCluster(); folder != "" && folder != clusterID {
		return r, fmt.Errorf("%w: this host's folder belongs to cluster %s, not to %s", ErrRebuild, folder, clusterID)
	}
	if err := a.writeCluster(ctx, clusterID, &r); err != nil {
		return r, err
	}
	if a.folderCluster() == "" {
		if err := a.keepCluster(ctx, clusterID); err != nil {
			return r, err
		}
	}
	groups, conflicts := groupHeld(a.theBroker().Held())
	r.Conflicts = append(r.Conflicts, conflicts...)
	for _, g := range groups {
		if err := a.rebuildTopic(ctx, g, &r); err != nil {
			return r, fmt.Errorf("topic %q: %w", g.topic, err)
		}
	}
	a.mirror.Resync()
	nudge(a.wake)
	a.log.Warn("metadata rebuilt", zap.String("cluster", clusterID), zap.Strings("topics", r.Topics),
		zap.Int("partitions", len(r.Partitions)), zap.Strings("conflicts", r.Conflicts))
	return r, nil
}

// writeCluster makes the store belong to the cluster, unless it belongs to
// another.
func (a *Agent) writeCluster(ctx context.Context, clusterID string, r *Rebuilt) error {
	r.ClusterID = clusterID
	for {
		there, err := a.storeCluster(ctx)
		if err != nil {
			return a.unavailable(err)
		}
		switch there {
		case clusterID:
			return nil
		case "":
			if err := a.refuseOther(ctx, clusterID); err != nil {
				return err
			}
		default:
			return a.notOurs(ctx, there, clusterID)
		}
		err = a.writer.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(discovery.ClusterID{ID: clusterID})))
		if err == nil {
			r.ClusterIDWritten = true
			return nil
		}
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// notOurs refuses a rebuild in another cluster's store. How to take the store
// from it is told only when none of its brokers lives.
func (a *Agent) notOurs(ctx context.Context, there, clusterID string) error {
	alive, err := a.servedBy(ctx, there)
	if err != nil {
		return err
	}
	if alive {
		return fmt.Errorf("%w: the store belongs to cluster %s, whose brokers are alive, not to %s: point this agent at its own store", ErrRebuild, there, clusterID)
	}
	return fmt.Errorf("%w: the store belongs to cluster %s, not to %s: if that one is to go, delete the key cluster-id and rebuild again", ErrRebuild, there, clusterID)
}

// heldTopic is what the folder holds of one topic.
type heldTopic struct {
	topic string
	id    broker.UUID
	parts []broker.Held // sorted by number
}

// groupHeld groups partitions by topic. A name under which the folder holds
// two topics is a conflict, and left out.
func groupHeld(held []broker.Held) (groups []heldTopic, conflicts []string) {
	byName := map[string]map[broker.UUID][]broker.Held{}
	for _, h := range held {
		if byName[h.Topic] == nil {
			byName[h.Topic] = map[broker.UUID][]broker.Held{}
		}
		byName[h.Topic][h.ID] = append(byName[h.Topic][h.ID], h)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if len(byName[name]) > 1 {
			conflicts = append(conflicts, fmt.Sprintf("topic %q: this host holds partitions of %d different topics of that name: none was written", name, len(byName[name])))
			continue
		}
		for id, parts := range byName[name] {
			slices.SortFunc(parts, func(a, b broker.Held) int { return cmp.Compare(a.Partition, b.Partition) })
			groups = append(groups, heldTopic{topic: name, id: id, parts: parts})
		}
	}
	return groups, conflicts
}

// stored is what the store has of one topic.
type stored struct {
	topic  *facts.Topic // nil: no key of that name
	shards map[int]facts.Shard
}

// merged is what a rebuild makes of it.
type merged struct {
	topic     *discovery.Topic // nil: stays as it is
	shards    map[int]discovery.Shard
	written   []int32 // partitions that were filled in
	unchanged int
	conflicts []string
}

// merge fills what the store lacks of a topic with what the broker holds. It
// is pure and changes nothing that the store has: a partition that the store
// gives to others, another UUID under the name and a topic that is being
// deleted are conflicts. Every partition below the topic's count gets a place,
// so that the controller does not take one that another host holds for new.
// Merging the parts of all brokers gives the same in any order, and merging
// twice the same as once.
func merge(self int32, g heldTopic, s stored, now time.Time) merged {
	m := merged{shards: map[int]discovery.Shard{}}
	count := int32(1)
	var configs map[string]string
	newest := int32(-1)
	for _, h := range g.parts {
		count = max(count, h.Count, h.Partition+1)
		if h.LeaderEpoch > newest { // the latest description wins
			newest, configs = h.LeaderEpoch, h.Configs
		}
	}
	if s.topic == nil {
		m.topic = &discovery.Topic{Name: g.topic, UUID: g.id.String(), Phase: discovery.PhaseLive, Partitions: count,
			Replication: 1, Configs: maps.Clone(configs), Created: now}
	} else {
		switch {
		case s.topic.UUID != g.id.String():
			m.conflicts = append(m.conflicts, fmt.Sprintf("topic %q: the store has another topic of that name (%s; this host holds %s): left as it is", g.topic, s.topic.UUID, g.id))
			return m
		case s.topic.Phase == discovery.PhaseDeleting:
			m.conflicts = append(m.conflicts, fmt.Sprintf("topic %q: it is being deleted: left as it is", g.topic))
			return m
		case s.topic.Phase == discovery.PhaseCreating:
			m.conflicts = append(m.conflicts, fmt.Sprintf("topic %q: it is being created: left as it is", g.topic))
			return m
		case s.topic.Partitions < count:
			t := s.topic.Topic
			t.Partitions = count
			m.topic = &t
		}
		count = max(count, s.topic.Partitions)
	}
	for n := range facts.ShardsOf(count) {
		m.mergeShard(self, g, n, s.shards[n].Shard, facts.SlotsOf(count, n))
	}
	return m
}

func (m *merged) mergeShard(self int32, g heldTopic, n int, old discovery.Shard, slots int) {
	next := facts.CloneShard(old)
	for len(next.Partitions) < slots {
		next.Partitions = append(next.Partitions, discovery.PartitionState{Leader: -1})
	}
	changed := len(next.Partitions) > len(old.Partitions)
	for _, h := range g.parts {
		part := facts.Part{Partition: h.Partition}
		if part.Shard() != n {
			continue
		}
		p := &next.Partitions[part.Slot()]
		switch {
		case facts.Hole(*p):
			// The epoch is above what is held; taking the lead raises it again.
			*p = discovery.PartitionState{Replicas: []int32{self}, Leader: -1, Epoch: max(p.Epoch, h.LeaderEpoch) + 1, ISR: []int32{self}}
			m.written = append(m.written, h.Partition)
			changed = true
		case slices.Contains(p.Replicas, self):
			m.unchanged++
		default:
			m.conflicts = append(m.conflicts, fmt.Sprintf("partition %s-%d: the store gives it to broker %v: left as it is", g.topic, h.Partition, p.Replicas))
		}
	}
	if changed {
		m.shards[n] = next
	}
}

// rebuildTopic merges one topic into the store by compare and swap.
func (a *Agent) rebuildTopic(ctx context.Context, g heldTopic, r *Rebuilt) error {
	for range rebuildTries {
		s, err := a.readTopic(ctx, g)
		if err != nil {
			return err
		}
		m := merge(a.ID(), g, s, time.Now().UTC())
		err = a.writeMerged(ctx, g, s, m)
		if errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrUnknownOutcome) {
			if !sleep(ctx, backoff(1)) {
				return ctx.Err()
			}
			continue
		}
		if err != nil {
			return a.unavailable(err)
		}
		if m.topic != nil {
			r.Topics = append(r.Topics, g.topic)
		}
		for _, p := range m.written {
			r.Partitions = append(r.Partitions, fmt.Sprintf("%s-%d", g.topic, p))
		}
		r.Unchanged += m.unchanged
		r.Conflicts = append(r.Conflicts, m.conflicts...)
		return nil
	}
	return fmt.Errorf("%w: other agents change it all the time", broker.ErrUnavailable)
}

func (a *Agent) readTopic(ctx context.Context, g heldTopic) (stored, error) {
	s := stored{shards: map[int]facts.Shard{}}
	e, t, err := a.topic(ctx, g.topic)
	switch {
	case err == nil:
		s.topic = &facts.Topic{Topic: t, Version: e.Version}
	case !errors.Is(err, broker.ErrUnknownTopic):
		return s, err
	}
	call, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	entries, err := a.store.List(call, discovery.PrefixTopicState(g.id.String()))
	if err != nil {
		return s, a.unavailable(err)
	}
	for _, e := range entries {
		_, n, ok := facts.ParseShardKey(e.Key)
		shard, err := discovery.Decode[discovery.Shard](e)
		if !ok || err != nil {
			return s, fmt.Errorf("%w: key %s is not readable: remove it, then rebuild again", broker.ErrUnavailable, e.Key)
		}
		s.shards[n] = facts.Shard{Shard: shard, Version: e.Version}
	}
	return s, nil
}

// writeMerged writes the shards first and the topic's key with the last of
// them: a topic key without the places of its partitions would have the
// controller place them anew.
func (a *Agent) writeMerged(ctx context.Context, g heldTopic, s stored, m merged) error {
	var ops []discovery.Op
	for _, n := range slices.Sorted(maps.Keys(m.shards)) {
		shard := m.shards[n]
		shard.Writer = discovery.NewNonce()
		ops = append(ops, discovery.CAS(discovery.KeyShard(g.id.String(), n), discovery.Encode(shard), s.shards[n].Version))
	}
	key := discovery.KeyTopic(g.topic)
	version := uint64(0)
	if s.topic != nil {
		version = s.topic.Version
	}
	guard := discovery.Unchanged(key, version)
	if version == 0 {
		guard = discovery.Absent(key)
	}
	const room = facts.MaxOps - 1
	for len(ops) > room {
		if err := a.writer.Commit(ctx, append([]discovery.Op{guard}, ops[:room]...)...); err != nil {
			return err
		}
		ops = ops[room:]
	}
	if m.topic != nil {
		t := *m.topic
		t.Writer = discovery.NewNonce()
		guard = discovery.CAS(key, discovery.Encode(t), version)
	}
	if len(ops) == 0 && m.topic == nil {
		return nil
	}
	return a.writer.Commit(ctx, append([]discovery.Op{guard}, ops...)...)
}
