package controller

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.uber.org/zap"

	"sidestream/agent/committed"
	"sidestream/agent/facts"
	"sidestream/discovery"
)

// step does what the picture asks for. An error means that the rest waits for
// the next picture; what was committed stays, and whoever is controller then
// goes on from there.
func (c *Controller) step(ctx context.Context, f *facts.Facts, session string) error {
	names := make([]string, 0, len(f.Topics))
	for name := range f.Topics {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { // oldest topic first
		if d := f.Topics[a].Created.Compare(f.Topics[b].Created); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	candidates := Candidates(f)
	for _, name := range names {
		t := f.Topics[name]
		var err error
		switch t.Phase {
		case discovery.PhaseDeleting:
			err = c.finish(ctx, f, t, session)
		case discovery.PhaseCreating, discovery.PhaseLive:
			err = c.place(ctx, f, t, candidates, session)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// place gives every unplaced partition a broker and makes the topic live. The
// shards and the phase go in as few commits as possible; each holds only while
// the topic's key is as it was read, so that a deletion in between wins.
func (c *Controller) place(ctx context.Context, f *facts.Facts, t facts.Topic, candidates []Candidate, session string) error {
	missing := unplaced(f, t)
	if len(missing) == 0 && t.Phase == discovery.PhaseLive {
		return nil
	}
	if len(missing) > 0 && len(candidates) == 0 {
		return nil
	}
	chosen := Place(len(missing), placedOn(f, t.UUID), candidates)
	for _, id := range chosen {
		i := slices.IndexFunc(candidates, func(b Candidate) bool { return b.ID == id })
		candidates[i].Load++
	}
	key := discovery.KeyTopic(t.Name)
	var ops []discovery.Op
	shards := extend(f, t.UUID, missing, chosen)
	for _, n := range sortedKeys(shards) {
		s := shards[n]
		s.Writer = discovery.NewNonce()
		ops = append(ops, discovery.CAS(discovery.KeyShard(t.UUID, n), discovery.Encode(s), f.Shards[t.UUID][n].Version))
	}
	const room = facts.MaxOps - 2 // the lock and the topic
	guard := []discovery.Op{discovery.Held(discovery.KeyController, session), discovery.Unchanged(key, t.Version)}
	for len(ops) > room {
		if err := c.writer.Commit(ctx, append(slices.Clone(guard), ops[:room]...)...); err != nil {
			return err
		}
		ops = ops[room:]
	}
	if t.Phase == discovery.PhaseCreating {
		live := t.Topic
		live.Phase, live.Writer = discovery.PhaseLive, discovery.NewNonce()
		guard[1] = discovery.CAS(key, discovery.Encode(live), t.Version)
	}
	if err := c.writer.Commit(ctx, append(guard, ops...)...); err != nil {
		return err
	}
	c.log.Info("topic placed", zap.String("topic", t.Name), zap.String("uuid", t.UUID), zap.Int("partitions", len(missing)))
	return nil
}

// finish deletes the keys of a topic whose files are gone everywhere. Since the
// phase is deleting, no commit can place further partitions; so a reading of
// the shards made now is complete.
func (c *Controller) finish(ctx context.Context, f *facts.Facts, t facts.Topic, session string) error {
	for _, s := range f.Shards[t.UUID] {
		if !empty(s.Shard) {
			return nil // cheap look at the picture first
		}
	}
	read, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	entries, err := c.store.List(read, discovery.PrefixTopicState(t.UUID))
	if err != nil {
		return err
	}
	for _, e := range entries {
		s, err := discovery.Decode[discovery.Shard](e)
		if err != nil || !empty(s) {
			return nil
		}
	}
	if err := c.dropOffsets(read, t.UUID, session); err != nil {
		return err
	}
	err = c.writer.Commit(ctx,
		discovery.Held(discovery.KeyController, session),
		discovery.DeleteCAS(discovery.KeyTopic(t.Name), t.Version),
		discovery.DeletePrefix(discovery.PrefixTopicState(t.UUID)))
	if err == nil {
		c.log.Info("topic deleted", zap.String("topic", t.Name), zap.String("uuid", t.UUID))
	}
	return err
}

// dropOffsets deletes what Kafka groups committed of a topic that goes.
func (c *Controller) dropOffsets(ctx context.Context, uuid, session string) error {
	entries, err := c.store.List(ctx, discovery.PrefixCommitted)
	if err != nil {
		return err
	}
	for keys := range slices.Chunk(committed.Of(entries, uuid), discovery.MaxCommitOps-1) {
		ops := []discovery.Op{discovery.Held(discovery.KeyController, session)}
		for _, key := range keys {
			ops = append(ops, discovery.Delete(key))
		}
		if _, err := c.store.Commit(ctx, ops...); err != nil {
			return err
		}
	}
	return nil
}

func empty(s discovery.Shard) bool {
	return !slices.ContainsFunc(s.Partitions, func(p discovery.PartitionState) bool { return !facts.Hole(p) })
}

// lostLock says whether the error means that another took the controller lock.
func lostLock(err error) bool {
	var conflict *discovery.ConflictError
	return errors.As(err, &conflict) && (conflict.Op == 0 || conflict.Op == -1)
}
