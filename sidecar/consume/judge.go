package consume

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// judge answers for some sidecars: it tells who they are, and ends the session
// of one whose service has been critical for a while.
type judge struct {
	who func() []charge
}

// charge is a sidecar, in the life that the session stands for.
type charge struct {
	holder         discovery.Holder
	sidecar, group string
}

// gaps is the sidecar's registration of the moment.
type gaps struct {
	discovery.Registration
	now func() discovery.Registration
}

// LongestGap is for ever where there is no registration: one who does not beat
// must not judge.
func (g gaps) LongestGap(window time.Duration) time.Duration {
	if r := g.now(); r != nil {
		return r.LongestGap(window)
	}
	return time.Duration(1<<63 - 1)
}

// judging judges until ctx ends the sidecars that who tells; who must not block.
// However many groups a sidecar plans, it watches the health of sidecars once.
func (m *Manager) judging(ctx context.Context, who func() []charge) {
	if m.registration == nil {
		<-ctx.Done()
		return
	}
	j := &judge{who}
	m.mu.Lock()
	m.judges = append(m.judges, j)
	if len(m.judges) == 1 {
		kick(m.judgePoke)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judges = slices.DeleteFunc(m.judges, func(x *judge) bool { return x == j })
	if len(m.judges) == 0 {
		kick(m.judgePoke)
	}
}

// runJudges watches the sidecars' health while anybody judges.
func (m *Manager) runJudges(ctx context.Context) {
	for {
		for len(m.judgesNow()) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-m.judgePoke:
			}
		}
		m.watchHealth(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

func (m *Manager) judgesNow() []*judge {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.judges)
}

// watchHealth returns when nobody judges any more.
func (m *Manager) watchHealth(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		own := gaps{now: m.registration}
		_ = discovery.FollowSuspects(ctx, m.store, discovery.ServiceSidecar, own, m.judged, m.endSuspects)
	})
	defer cancel()
	for len(m.judgesNow()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-m.judgePoke:
		}
	}
}

// charges are the sidecars that this one answers for now, each once: a session
// is ended in the name of the first group that it was found in.
func (m *Manager) charges() []charge {
	var all []charge
	seen := map[discovery.Holder]bool{}
	for _, j := range m.judgesNow() {
		for _, c := range j.who() {
			if c.holder.Service == "" || c.holder.Session == "" || c.sidecar == m.id || seen[c.holder] {
				continue
			}
			seen[c.holder] = true
			all = append(all, c)
		}
	}
	return all
}

func (m *Manager) judged() []discovery.Holder {
	var holders []discovery.Holder
	for _, c := range m.charges() {
		holders = append(holders, c.holder)
	}
	return holders
}

func (m *Manager) endSuspects(ctx context.Context, suspects []discovery.Holder) {
	for _, c := range m.charges() {
		if slices.Contains(suspects, c.holder) {
			m.endSession(ctx, c)
		}
	}
}

// endSession ends the session of a sidecar that is suspected to be dead.
func (m *Manager) endSession(ctx context.Context, c charge) {
	log := m.log.With(zap.String("sidecar", c.sidecar), zap.String("group", c.group))
	if err := m.store.DestroySession(ctx, c.holder.Session); err != nil {
		log.Warn("the session of a sidecar that does not answer cannot be ended yet", zap.Error(err))
		return
	}
	m.metrics.suspected.Inc()
	log.Warn("a sidecar does not answer: its session is ended and its partitions move")
}
