package consume

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// readSeek reads the latest seek of a group in a topic; nil when there is none.
func (m *Manager) readSeek(ctx context.Context, group, topic string) (*discovery.Seek, error) {
	s, _, err := m.readSeekEntry(ctx, group, topic)
	return s, err
}

func (m *Manager) readSeekEntry(ctx context.Context, group, topic string) (*discovery.Seek, uint64, error) {
	e, err := m.store.Get(ctx, discovery.KeySeek(group, topic))
	if errors.Is(err, discovery.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	s, err := discovery.Decode[discovery.Seek](e)
	if err != nil {
		return nil, 0, err
	}
	return &s, e.Version, nil
}

// Seek moves a group to other offsets of a topic, live or idle. With exact
// offsets the partitions that are not named stay where they are. It returns when
// the owners read from there, or after seek_wait: the target stands either way,
// and no owner hands out anything from before once it has applied it.
func (m *Manager) Seek(ctx context.Context, group, topic string, req api.SeekRequest) (api.Sought, error) {
	if c, err := checkChoice(group, topic); err == nil && !c.single() {
		return m.seekAll(ctx, group, c, req)
	}
	if err := checkNames(group, topic); err != nil {
		return api.Sought{}, err
	}
	if (req.To == "") == (len(req.Offsets) == 0) {
		return api.Sought{}, badRequest(`send either {"to":"earliest|latest|<time>"} or {"offsets":{"<partition>":<offset>}}`)
	}
	config, _, err := m.readConfig(ctx, group)
	if err != nil {
		return api.Sought{}, err
	}
	t, err := m.up.Refresh(ctx, topic)
	if err != nil {
		return api.Sought{}, brokerError("read the topic", err)
	}
	to, target, err := m.target(ctx, t, req)
	if err != nil {
		return api.Sought{}, err
	}
	var epoch uint64
	for {
		last, version, err := m.readSeekEntry(ctx, group, topic)
		if err != nil {
			return api.Sought{}, storeError("read the last seek", err)
		}
		all := map[int32]int64{}
		if req.To == "" {
			// What an earlier seek asked of the other partitions and nobody has
			// applied yet must not be lost.
			if all, err = m.pending(ctx, group, t, config.From, last); err != nil {
				return api.Sought{}, err
			}
		}
		for p, at := range target {
			all[p] = at
		}
		latest, err := m.latestEpoch(ctx, group, t, last)
		if err != nil {
			return api.Sought{}, err
		}
		seek := discovery.Seek{Epoch: latest + 1, UUID: t.UUID, To: to, Offsets: all, Writer: discovery.NewNonce()}
		_, err = m.store.Commit(ctx, discovery.CAS(discovery.KeySeek(group, topic), discovery.Encode(seek), version))
		if errors.Is(err, discovery.ErrConflict) {
			continue
		}
		if errors.Is(err, discovery.ErrUnknownOutcome) {
			now, rerr := m.readSeek(ctx, group, topic)
			if rerr == nil && (now == nil || now.Writer != seek.Writer) {
				continue
			}
			if rerr == nil {
				err = nil
			}
		}
		if err != nil {
			return api.Sought{}, storeError("write the seek", err)
		}
		epoch = seek.Epoch
		break
	}
	m.awaitSought(ctx, group, topic, epoch)
	return api.Sought{SeekEpoch: epoch, Offsets: target}, nil
}

// target resolves what is asked for to offsets.
func (m *Manager) target(ctx context.Context, t upstream.Topic, req api.SeekRequest) (to string, target map[int32]int64, err error) {
	if req.To != "" {
		to, _, err := parseFrom(req.To)
		if err != nil {
			return "", nil, badRequest("to=%q: use earliest, latest or a time such as 2026-01-31T08:00:00Z", req.To)
		}
		target, err := resolveFrom(ctx, m.up, t, to)
		if err != nil {
			return "", nil, brokerError("find the offsets", err)
		}
		return to, target, nil
	}
	starts, err := m.up.StartOffsets(ctx, t.Name)
	if len(starts) == 0 && err != nil {
		return "", nil, brokerError("read the log's start", err)
	}
	ends, err := m.up.EndOffsets(ctx, t.Name)
	if len(ends) == 0 && err != nil {
		return "", nil, brokerError("read the log's end", err)
	}
	target = map[int32]int64{}
	for name, at := range req.Offsets {
		n, perr := strconv.ParseInt(name, 10, 32)
		if perr == nil && strconv.FormatInt(n, 10) != name {
			return "", nil, badRequest("offsets: %q: write the partition as %d", name, n)
		}
		if _, ok := t.Partition(int32(n)); perr != nil || !ok {
			return "", nil, apiError(api.CodePartitionNotFound, "offsets: topic %s has no partition %q", t.Name, name)
		}
		p := int32(n)
		start, ok := starts[p]
		end, ok2 := ends[p]
		if !ok || !ok2 {
			return "", nil, apiError(api.CodeBrokersUnavailable, "the leader of partition %d does not answer", p)
		}
		if at < start || at > end {
			return "", nil, badRequest("offsets: partition %d holds %d to %d (the next one): %d is outside", p, start, end, at)
		}
		target[p] = at
	}
	return "", target, nil
}

// latestEpoch is the highest seek epoch that anything tells of. Positions may be
// ahead of the last seek where the store was wiped or restored from a backup,
// and a seek that is not above them would be passed over in silence.
func (m *Manager) latestEpoch(ctx context.Context, group string, t upstream.Topic, last *discovery.Seek) (uint64, error) {
	var latest uint64
	if last != nil {
		latest = last.Epoch
	}
	stored, err := m.stored(ctx, group, t.Name)
	if err != nil {
		return 0, storeError("read the positions", err)
	}
	for _, st := range stored {
		if offsets.SameTopic(st.Position.Topic, t.UUID) {
			latest = max(latest, st.Position.SeekEpoch)
		}
	}
	local, err := m.local.All(group, t.Name)
	if err != nil {
		return 0, apiError(api.CodeInternal, "read the local positions: %v", err)
	}
	for _, p := range local {
		if offsets.SameTopic(p.Topic, t.UUID) {
			latest = max(latest, p.SeekEpoch)
		}
	}
	return latest, nil
}

// pending are the targets of the last seek that nobody has applied.
func (m *Manager) pending(ctx context.Context, group string, t upstream.Topic, from string, last *discovery.Seek) (map[int32]int64, error) {
	all := map[int32]int64{}
	if last == nil || !offsets.SameTopic(last.UUID, t.UUID) {
		return all, nil
	}
	applied, err := m.stored(ctx, group, t.Name)
	if err != nil {
		return nil, storeError("read the positions", err)
	}
	var begin map[int32]int64
	if last.To == seekToBegin {
		if begin, err = resolveFrom(ctx, m.up, t, from); err != nil {
			return nil, brokerError("find where the group begins", err)
		}
	}
	for _, p := range t.Partitions {
		if st, ok := applied[p.ID]; ok && offsets.SameTopic(st.Position.Topic, t.UUID) && st.Position.SeekEpoch >= last.Epoch {
			continue
		}
		if at, ok := last.Offsets[p.ID]; ok {
			all[p.ID] = at
		} else if at, ok := begin[p.ID]; ok {
			all[p.ID] = at
		}
	}
	return all, nil
}

// stored are the checkpoints of a group's topic.
func (m *Manager) stored(ctx context.Context, group, topic string) (map[int32]offsets.Stored, error) {
	prefix := discovery.PrefixOffsets(group)
	es, err := m.store.List(ctx, prefix+topic+"/")
	if err != nil {
		return nil, err
	}
	all := make(map[int32]offsets.Stored, len(es))
	for _, e := range es {
		_, p, ok := discovery.SplitTopicPartition(e.Key[len(prefix):])
		if !ok {
			continue
		}
		st, err := offsets.DecodeStored(e)
		if err != nil {
			m.log.Error("a stored position cannot be read", zap.String("key", e.Key), zap.Error(err))
			continue
		}
		all[p] = st
	}
	return all, nil
}

// ownedBy are the owner locks of a group's topic.
func (m *Manager) ownedBy(ctx context.Context, group, topic string) (map[int32]string, error) {
	prefix := discovery.PrefixOwners(group)
	es, err := m.store.List(ctx, prefix+topic+"/")
	if err != nil {
		return nil, err
	}
	all := make(map[int32]string, len(es))
	for _, e := range es {
		_, p, ok := discovery.SplitTopicPartition(e.Key[len(prefix):])
		o, err := discovery.Decode[discovery.Owner](e)
		if ok && err == nil && e.Session != "" {
			all[p] = o.Sidecar
		}
	}
	return all, nil
}

// awaitSought waits until every owner has applied a seek.
func (m *Manager) awaitSought(ctx context.Context, group, topic string, epoch uint64) {
	deadline := time.Now().Add(m.cfg.SeekWait)
	for {
		owned, err := m.ownedBy(ctx, group, topic)
		var applied map[int32]offsets.Stored
		if err == nil {
			applied, err = m.stored(ctx, group, topic)
		}
		waiting := []int32{}
		for p := range owned {
			if applied[p].Position.SeekEpoch < epoch {
				waiting = append(waiting, p)
			}
		}
		if err == nil && len(waiting) == 0 {
			return
		}
		if !time.Now().Before(deadline) || pause(ctx, 20*time.Millisecond) != nil {
			slices.Sort(waiting)
			m.log.Warn("seek is written, but not all owners have applied it yet", zap.String("group", group),
				zap.String("topic", topic), zap.Int32s("partitions", waiting), zap.Error(err))
			return
		}
	}
}
