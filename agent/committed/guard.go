package committed

import (
	"context"
	"errors"
	"fmt"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

// guard is the version of a topic's key at which the topic was live. Offsets are
// stored only while the key is as it was: a deletion changes it before it looks
// for offsets to delete, so that it finds them all. Without that, offsets that
// were on their way would be left behind for ever.
type guard struct {
	key     string
	version uint64
}

// errGone is told when a topic goes while its offsets are on their way. Who
// tries again is told by the brokers' view that there is no such topic.
var errGone = fmt.Errorf("%w: the topic is being deleted", cluster.ErrUnavailable)

// guard divides the keys into those whose topics are live and those whose are
// not. After an error all that are not gone are in live.
func (k *Keeper) guard(ctx context.Context, keys []keyOf) (live, gone []keyOf, err error) {
	if k.opt.Topic == nil {
		return keys, nil, nil
	}
	for i, key := range keys {
		if _, known := k.topics[key.topic]; !known {
			g, err := k.readTopic(ctx, key.topic)
			if errors.Is(err, errGone) {
				gone = append(gone, key)
				continue
			}
			if err != nil {
				return append(live, keys[i:]...), gone, err
			}
			if len(k.topics) >= cacheKeys {
				clear(k.topics) // it only costs reads
			}
			k.topics[key.topic] = g
		}
		live = append(live, key)
	}
	return live, gone, nil
}

// readTopic is the guard of a topic, or errGone.
func (k *Keeper) readTopic(ctx context.Context, id cluster.UUID) (guard, error) {
	name, known := k.opt.Topic(id)
	if !known {
		return guard{}, errGone
	}
	e, err := k.store.Get(ctx, discovery.KeyTopic(name))
	if errors.Is(err, discovery.ErrNotFound) {
		return guard{}, errGone
	}
	if err != nil {
		return guard{}, err
	}
	t, err := discovery.Decode[discovery.Topic](e)
	switch {
	case err != nil:
		return guard{}, fmt.Errorf("key %s is not readable: %w", e.Key, err)
	case t.UUID != id.String() || t.Phase == discovery.PhaseDeleting:
		return guard{}, errGone
	}
	return guard{key: e.Key, version: e.Version}, nil
}
