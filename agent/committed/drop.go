package committed

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

// dropTries bounds how often one Drop begins again because a commit came between
// its reading and its writing.
const dropTries = 8

// Drop forgets the offsets of those partitions, or with nil all of the group.
// A commit that is on its way is stored after it.
func (k *Keeper) Drop(ctx context.Context, group string, which []cluster.PartitionID) error {
	for lost := 0; ; lost++ {
		entries, err := k.list(ctx, discovery.PrefixCommittedBy(group))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("%w: %q has no stored offsets", cluster.ErrUnknownGroup, group)
		}
		ops, err := without(entries, which)
		if err != nil {
			return err
		}
		err = k.commitAll(ctx, ops)
		if err == nil || lost >= dropTries || !errors.Is(err, discovery.ErrConflict) || !standBack(ctx, lost) {
			return err
		}
	}
}

func (k *Keeper) commitAll(ctx context.Context, ops []discovery.Op) error {
	for len(ops) > 0 {
		n, size := 0, 0
		for n < len(ops) && n < discovery.MaxCommitOps && (n == 0 || size+len(ops[n].Value) < discovery.MaxCommitBytes) {
			size += len(ops[n].Key) + len(ops[n].Value)
			n++
		}
		call, cancel := context.WithTimeout(ctx, k.opt.Timeout)
		_, err := k.store.Commit(call, ops[:n]...)
		cancel()
		switch {
		case errors.Is(err, discovery.ErrConflict):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		ops = ops[n:]
	}
	return nil
}

// without is what takes partitions out of the entries of a group.
func without(entries []discovery.Entry, which []cluster.PartitionID) ([]discovery.Op, error) {
	var ops []discovery.Op
	for _, e := range entries {
		if which == nil {
			ops = append(ops, discovery.DeleteCAS(e.Key, e.Version))
			continue
		}
		value, err := discovery.Decode[discovery.Committed](e)
		if err != nil {
			return nil, fmt.Errorf("%w: key %s is not readable: %w", cluster.ErrUnavailable, e.Key, err)
		}
		changed := false
		for _, id := range which {
			_, uuid, shard, _ := discovery.SplitCommitted(e.Key)
			if uuid != id.Topic.String() || shard != int(id.Partition)/discovery.ShardPartitions {
				continue
			}
			if _, there := value.Offsets[id.Partition]; there {
				delete(value.Offsets, id.Partition)
				changed = true
			}
		}
		switch {
		case !changed:
		case len(value.Offsets) == 0:
			ops = append(ops, discovery.DeleteCAS(e.Key, e.Version))
		default:
			value.Writer = discovery.NewNonce()
			ops = append(ops, discovery.CAS(e.Key, discovery.Encode(value), e.Version))
		}
	}
	return ops, nil
}

// Of lists the keys that hold offsets of a topic, to be deleted with it.
func Of(entries []discovery.Entry, uuid string) []string {
	var keys []string
	for _, e := range entries {
		if _, id, _, ok := discovery.SplitCommitted(e.Key); ok && strings.EqualFold(id, uuid) {
			keys = append(keys, e.Key)
		}
	}
	return keys
}
