package consume

import (
	"context"
	"errors"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

// Offsets tells where a group stands in a topic: live for the partitions that
// this sidecar owns, as of the last checkpoint for all others.
func (m *Manager) Offsets(ctx context.Context, group, topic string) (api.Offsets, error) {
	if c, err := checkChoice(group, topic); err == nil && !c.single() {
		return m.offsetsOfAll(ctx, group, c)
	}
	out := api.Offsets{Group: group, Topic: topic, Partitions: []api.PartitionOffset{}}
	if err := checkNames(group, topic); err != nil {
		return out, err
	}
	c, _, err := m.readConfig(ctx, group)
	if err != nil {
		return out, err
	}
	out.Paused = isPaused(c, topic)
	t, err := m.up.Topic(ctx, topic)
	if err != nil {
		return out, brokerError("read the topic", err)
	}
	stored, err := m.stored(ctx, group, topic)
	if err != nil {
		return out, storeError("read the positions", err)
	}
	owners, err := m.ownedBy(ctx, group, topic)
	if err != nil {
		return out, storeError("read the owners", err)
	}
	begin, err := m.begun(ctx, group, topic, t.UUID)
	if err != nil {
		return out, storeError("read where the group begins", err)
	}
	seek, err := m.readSeek(ctx, group, topic)
	if err != nil {
		return out, storeError("read the last seek", err)
	}
	if seek != nil {
		out.SeekEpoch = seek.Epoch
	}
	// Partitions whose leader is away are left out: -1 says so. It is no lag of 0.
	starts, _ := m.up.StartOffsets(ctx, topic)
	ends, _ := m.up.EndOffsets(ctx, topic)
	var s *share
	if g := m.lookup(group); g != nil {
		s = g.share(topic)
	}
	now := time.Now()
	var look []unackedAt
	out.Partitions = make([]api.PartitionOffset, 0, len(t.Partitions)) // look points into it
	for _, p := range t.Partitions {
		po := api.PartitionOffset{Partition: p.ID, Owner: owners[p.ID], Start: -1, End: -1, LagSeconds: -1, Source: "checkpoint"}
		if po.Owner != "" && po.Owner != m.id {
			po.OldestUnackedSeconds = -1
		}
		if at, ok := starts[p.ID]; ok {
			po.Start = at
		}
		if at, ok := ends[p.ID]; ok {
			po.End = at
		}
		var known []offsets.Position
		if st, ok := stored[p.ID]; ok {
			po.Generation = st.Generation
			known = append(known, st.Position)
		}
		pos, needBegin := startAt(t.UUID, p.ID, seek, known)
		if needBegin {
			pos.Low = max(0, po.Start)
			if at, ok := begin[p.ID]; ok {
				pos.Low = at
			}
		}
		if s != nil {
			if o := s.owner(p.ID); o != nil {
				o.describe(now, &po, &pos)
			}
		}
		po.Position = pos.Low
		po.Acked = pos.AckedBetween(pos.Low, 1<<63-1)
		po.Lag = -1
		if po.End >= 0 {
			po.Lag = max(0, po.End-max(pos.Low, po.Start)-pos.AckedBetween(max(pos.Low, po.Start), po.End))
			out.Lag += po.Lag
		} else {
			out.Partial = true
		}
		out.Partitions = append(out.Partitions, po)
		switch it := &out.Partitions[len(out.Partitions)-1]; {
		case it.Lag == 0:
			it.LagSeconds = 0
		case it.Lag > 0 && it.LagSeconds < 0:
			look = append(look, unackedAt{it, firstUnacked(pos, po.Start)})
		}
	}
	m.lookUp(ctx, topic, look, now)
	for _, po := range out.Partitions {
		out.LagSeconds = max(out.LagSeconds, po.LagSeconds)
		out.OldestUnackedSeconds = max(out.OldestUnackedSeconds, po.OldestUnackedSeconds)
	}
	return out, nil
}

// describe fills in what only the owner knows.
func (o *owner) describe(now time.Time, po *api.PartitionOffset, pos *offsets.Position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.win == nil || o.state != stateOwned && o.state != stateReleasing {
		return
	}
	*pos = o.win.Position()
	po.Source, po.Owner, po.Generation = "live", o.s.g.m.id, o.generation
	po.InFlight = o.win.InFlight()
	a := o.ages(now)
	po.OldestUnackedSeconds = a.unacked.Seconds()
	if a.behind != unknownAge {
		po.LagSeconds = a.behind.Seconds()
	}
}

// begun is where the group begins in a topic, if that was resolved.
func (m *Manager) begun(ctx context.Context, group, topic, uuid string) (map[int32]int64, error) {
	e, err := m.store.Get(ctx, discovery.KeyBegin(group, topic))
	if errors.Is(err, discovery.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := discovery.Decode[discovery.Begin](e)
	if err != nil || !offsets.SameTopic(b.UUID, uuid) {
		return nil, err
	}
	return b.Offsets, nil
}
