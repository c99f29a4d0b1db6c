package consume

import (
	"context"
	"slices"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

// outs remembers when messages of a partition were handed out first, until they
// are acknowledged.
type outs []out

// out is one hand-out. Those below next are known to be acknowledged.
type out struct {
	lease   uint64
	at      time.Time
	offsets []int64
	next    int
}

func (u *outs) add(h handed, now time.Time) {
	o := out{lease: h.messages[0].LeaseNo, at: now, offsets: make([]int64, len(h.messages))}
	for i, x := range h.messages {
		o.offsets[i] = x.Offset
	}
	*u = append(*u, o)
}

// back forgets a hand-out that never reached its application.
func (u *outs) back(lease uint64) {
	*u = slices.DeleteFunc(*u, func(o out) bool { return o.lease == lease })
}

// oldest is when the oldest message that still waits for its acknowledgement
// was handed out first. waits says whether one does.
func (u *outs) oldest(waits func(offset int64) bool) (at time.Time, ok bool) {
	*u = slices.DeleteFunc(*u, func(o out) bool {
		for o.next < len(o.offsets) && !waits(o.offsets[o.next]) {
			o.next++
		}
		return o.next == len(o.offsets)
	})
	for i := range *u {
		o := &(*u)[i]
		for !waits(o.offsets[o.next]) {
			o.next++
		}
	}
	if len(*u) == 0 {
		return time.Time{}, false
	}
	return (*u)[0].at, true // they were added by time
}

// ages is how long messages of a partition wait: behind by the timestamp of the
// oldest that is not acknowledged (-1: it is not known here), unacked since the
// oldest that is out was handed out first. 0: there is none.
type ages struct{ behind, unacked time.Duration }

const unknownAge = time.Duration(-1)

// ages needs mu.
func (o *owner) ages(now time.Time) ages {
	if o.win == nil {
		return ages{behind: unknownAge}
	}
	var a ages
	if _, r, ok := o.win.Oldest(); ok {
		a.behind = max(0, now.Sub(r.Timestamp))
	} else if o.end < 0 || o.end > o.win.Next() {
		a.behind = unknownAge
	}
	at, ok := o.out.oldest(func(offset int64) bool {
		_, _, held := o.win.Message(offset)
		return held
	})
	if ok {
		a.unacked = max(0, now.Sub(at))
	}
	return a
}

// agesEvery is how old the gauges of ages may be.
const agesEvery = time.Second

// watchAges keeps the gauges of ages until ctx ends.
func (m *Manager) watchAges(ctx context.Context) {
	t := time.NewTicker(agesEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, g := range m.all() {
				for _, s := range g.all() {
					m.gaugeAges(g, s.topic, s.ages(now))
				}
			}
			m.removeSeries(now)
		}
	}
}

// gaugeAges sets the gauges of a group that is not left: of others they are
// gone, and must stay so.
func (m *Manager) gaugeAges(g *group, topic string, a ages) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[g.name] != g || g.share(topic) == nil {
		return
	}
	m.metrics.lagSeconds.WithLabelValues(g.name, topic).Set(a.behind.Seconds())
	m.metrics.unackedSeconds.WithLabelValues(g.name, topic).Set(a.unacked.Seconds())
}

// ages are the highest of the partitions that are owned here.
func (s *share) ages(now time.Time) (highest ages) {
	for _, o := range s.list() {
		o.mu.Lock()
		if o.state == stateOwned || o.state == stateReleasing {
			a := o.ages(now)
			highest.behind, highest.unacked = max(highest.behind, a.behind), max(highest.unacked, a.unacked)
		}
		o.mu.Unlock()
	}
	return highest
}

// Bounds of looking for the timestamps of what is not held here.
const (
	lookTime     = 2 * time.Second
	lookParallel = 8
)

// unackedAt is where a partition's oldest message that is not acknowledged is
// looked for.
type unackedAt struct {
	of     *api.PartitionOffset
	offset int64
}

// lookUp asks the brokers for the age of messages. What they do not tell in time
// stays as it is.
func (m *Manager) lookUp(ctx context.Context, topic string, at []unackedAt, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	slots := make(chan struct{}, lookParallel)
	var wg sync.WaitGroup
	for _, u := range at {
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				return
			}
			rs, _, _, err := m.up.Peek(ctx, topic, u.of.Partition, u.offset, 1, 1)
			if err == nil && len(rs) > 0 {
				u.of.LagSeconds = max(0, now.Sub(rs[0].Timestamp).Seconds())
			}
		})
	}
	wg.Wait()
}

// firstUnacked is the lowest offset that is not acknowledged and may hold a
// message.
func firstUnacked(p offsets.Position, start int64) int64 { return p.NextUnacked(max(p.Low, start)) }
