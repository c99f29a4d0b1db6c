package consume

import (
	"context"
	"slices"
	"sync"
	"time"

	"sidestream/discovery"
)

// judge is told which sidecars' services are critical, to end the sessions of
// those that it answers for.
type judge struct {
	f func(ctx context.Context, services []string)
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

// judging runs f with the critical sidecars until ctx ends. However many groups
// a sidecar plans, it watches the health of sidecars once.
func (m *Manager) judging(ctx context.Context, f func(ctx context.Context, services []string)) {
	if m.registration == nil {
		<-ctx.Done()
		return
	}
	j := &judge{f}
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
		_ = discovery.FollowSuspects(ctx, m.store, discovery.ServiceSidecar, own, func(ctx context.Context, services []string) {
			for _, j := range m.judgesNow() {
				j.f(ctx, services)
			}
		})
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
