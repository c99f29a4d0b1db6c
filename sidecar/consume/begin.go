package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sidestream/discovery"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// seekToBegin is the target of the seek that a deleted group leaves behind:
// whoever still holds a position from before (a sidecar that was away) must
// not skip what a new group of that name has not seen.
const seekToBegin = "begin"

// startAt is the position at which a partition is taken. known are positions
// that may be of it (the local store's, the coordination store's). needBegin
// says that nothing tells where to start but the group's beginning, and base is
// then to be completed by it.
func startAt(uuid string, partition int32, seek *discovery.Seek, known []offsets.Position) (base offsets.Position, needBegin bool) {
	epoch := uint64(0)
	if seek != nil {
		epoch = seek.Epoch
	}
	var best offsets.Position
	have := false
	for _, q := range known {
		switch {
		case !offsets.SameTopic(q.Topic, uuid):
		case !have:
			best, have = q.Clone(), true
		default:
			// The higher seek epoch wins, even over the seek's own: a store that
			// was restored from a backup does not rewind a group.
			best, _ = best.Merge(q)
		}
	}
	if have {
		best.Topic = uuid
	}
	if have && best.SeekEpoch >= epoch {
		return best, false
	}
	if seek != nil && offsets.SameTopic(seek.UUID, uuid) {
		if at, ok := seek.Offsets[partition]; ok {
			return offsets.Position{Topic: uuid, SeekEpoch: epoch, Low: at, HandOut: at, LeaderEpoch: -1}, false
		}
	}
	if have && seek.To != seekToBegin {
		// The seek was of other partitions: this one stays where it is.
		best.SeekEpoch = epoch
		return best, false
	}
	return offsets.Position{Topic: uuid, SeekEpoch: epoch, LeaderEpoch: -1}, true
}

// resolveFrom asks the brokers where a group that begins at from starts, for
// every partition of a topic.
func resolveFrom(ctx context.Context, up Upstream, topic upstream.Topic, from string) (map[int32]int64, error) {
	from, at, err := parseFrom(from)
	if err != nil {
		return nil, err
	}
	var found map[int32]int64
	switch from {
	case fromEarliest:
		found, err = up.StartOffsets(ctx, topic.Name)
	case fromLatest:
		found, err = up.EndOffsets(ctx, topic.Name)
	default:
		found, err = up.OffsetsAt(ctx, topic.Name, at)
	}
	if err != nil {
		return nil, err
	}
	for _, p := range topic.Partitions {
		if _, ok := found[p.ID]; !ok {
			return nil, fmt.Errorf("topic %s: no offset was told of partition %d", topic.Name, p.ID)
		}
	}
	return found, nil
}

// begin is where the group begins in a topic: resolved once for all partitions
// and written before anything is handed out, so that whoever comes later, and a
// partition that nobody read yet, begins at the same moment.
func (s *share) begin(ctx context.Context, topic upstream.Topic) (discovery.Begin, error) {
	select { // one at a time; the others find what the first has written
	case s.beginSlot <- struct{}{}:
		defer func() { <-s.beginSlot }()
	case <-ctx.Done():
		return discovery.Begin{}, ctx.Err()
	}
	store, key := s.g.m.store, discovery.KeyBegin(s.g.name, s.topic)
	for failures := 1; ; failures++ {
		var version uint64
		from := s.g.settings().From
		e, err := store.Get(ctx, key)
		switch {
		case err == nil:
			b, err := discovery.Decode[discovery.Begin](e)
			if err != nil {
				return b, fmt.Errorf("the beginning of group %s in topic %s cannot be read: %w", s.g.name, s.topic, err)
			}
			if offsets.SameTopic(b.UUID, topic.UUID) {
				return b, nil
			}
			// The topic was deleted and made again: all of the new one came later
			// than the group.
			version, from = e.Version, fromEarliest
		case !errors.Is(err, discovery.ErrNotFound):
			return discovery.Begin{}, err
		case from != fromEarliest && from != "":
			later, err := s.cameLater(ctx, topic)
			if err != nil {
				return discovery.Begin{}, err
			}
			if later {
				from = fromEarliest
			}
		}
		found, err := resolveFrom(ctx, s.g.m.up, topic, from)
		if err != nil {
			return discovery.Begin{}, err
		}
		b := discovery.Begin{UUID: topic.UUID, From: from, Offsets: found, Writer: discovery.NewNonce()}
		err = s.commitBegin(ctx, topic, discovery.CAS(key, discovery.Encode(b), version), version > 0)
		switch {
		case err == nil:
			return b, nil
		case errors.Is(err, discovery.ErrConflict), errors.Is(err, discovery.ErrUnknownOutcome):
			if err := pause(ctx, backOff(failures, 10*time.Millisecond, 500*time.Millisecond)); err != nil {
				return discovery.Begin{}, err
			}
		default:
			return discovery.Begin{}, err
		}
	}
}

// cameLater says whether a topic that only patterns match here appeared after
// the group had begun to pull them: then all of it came later than the group.
func (s *share) cameLater(ctx context.Context, topic upstream.Topic) (bool, error) {
	s.g.mu.Lock()
	named := s.g.named(s.topic)
	s.g.mu.Unlock()
	if named {
		return false, nil
	}
	later, matched := false, false
	for _, pattern := range s.g.patterns() {
		if !match(pattern, s.topic) {
			continue
		}
		matched = true
		e, err := s.g.m.store.Get(ctx, discovery.KeyPattern(s.g.name, pattern))
		if errors.Is(err, discovery.ErrNotFound) {
			continue
		}
		if err != nil {
			return false, err
		}
		p, err := discovery.Decode[discovery.Pattern](e)
		if err != nil {
			return false, fmt.Errorf("what pattern %s of group %s began with cannot be read: %w", pattern, s.g.name, err)
		}
		if uuid, there := p.Topics[s.topic]; there && offsets.SameTopic(uuid, topic.UUID) {
			return false, nil
		}
		later = true
	}
	if !matched {
		return false, fmt.Errorf("topic %s: nobody pulls it here any more", s.topic)
	}
	return later, nil
}

// maxPatternTopics bounds what a pattern may match when a group begins to pull
// it with a from: the store's values are bounded.
const maxPatternTopics = 4000

// beginPatterns writes down which topics there are when the group begins to pull
// patterns, so that those which appear later can be told from them. Where the
// group begins at the logs' start that makes no difference.
func (m *Manager) beginPatterns(ctx context.Context, g *group, patterns []string) error {
	if from := g.settings().From; from == fromEarliest || from == "" {
		return nil
	}
	for _, pattern := range patterns {
		key := discovery.KeyPattern(g.name, pattern)
		_, err := m.store.Get(ctx, key)
		if err == nil {
			continue
		}
		if !errors.Is(err, discovery.ErrNotFound) {
			return storeError("read what the pattern began with", err)
		}
		all, err := m.topics.list(ctx, m.up, 0)
		if err != nil {
			return err
		}
		p := discovery.Pattern{Topics: map[string]string{}, Writer: discovery.NewNonce()}
		for name, t := range all {
			if match(pattern, name) {
				p.Topics[name] = t.UUID
			}
		}
		if len(p.Topics) > maxPatternTopics {
			return badRequest("pattern %s matches %d topics: at most %d are possible for a group that does not begin at from=%s", pattern, len(p.Topics), maxPatternTopics, fromEarliest)
		}
		_, err = m.store.Commit(ctx, discovery.CAS(key, discovery.Encode(p), 0))
		if err != nil && !errors.Is(err, discovery.ErrConflict) {
			return storeError("write what the pattern begins with", err)
		}
	}
	return nil
}

// beginOffset is where one partition begins: as resolved, or at its log's start
// when it came later.
func (s *share) beginOffset(ctx context.Context, topic upstream.Topic, partition int32) (int64, error) {
	b, err := s.begin(ctx, topic)
	if err != nil {
		return 0, err
	}
	if at, ok := b.Offsets[partition]; ok {
		return at, nil
	}
	starts, err := s.g.m.up.StartOffsets(ctx, s.topic)
	if err := missingPartition(starts, partition, err); err != nil {
		return 0, err
	}
	return starts[partition], nil
}

// pause waits, or returns the context's error when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
