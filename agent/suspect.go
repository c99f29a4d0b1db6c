package agent

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// suspect, while this agent is controller, ends the sessions of brokers whose
// check has been critical for a while: sooner than the session would end by
// itself, so that clients learn at once that those partitions have no leader.
func (a *Agent) suspect(ctx context.Context) error {
	var stop func()
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for {
		own := a.registration()
		wanted := own != nil && a.elected()
		switch {
		case wanted && stop == nil:
			watch, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = discovery.FollowSuspects(watch, a.store, discovery.ServiceBroker, own, a.endSuspects)
			}()
			stop = func() { cancel(); <-done }
		case !wanted && stop != nil:
			stop()
			stop = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.suspects:
		}
	}
}

func (a *Agent) elected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.electedNow
}

// endSuspects destroys the sessions of the registered brokers among the
// services, if this agent still holds the controller lock.
func (a *Agent) endSuspects(ctx context.Context, services []string) {
	f, _ := a.mirror.Latest()
	var guilty []discovery.Broker
	for _, b := range f.Brokers {
		// One without a port is starting: the check is that of its earlier life.
		if b.ID != a.ID() && b.Port != 0 && b.Session != "" && slices.Contains(services, b.Service) {
			guilty = append(guilty, b)
		}
	}
	s := a.liveSession()
	if len(guilty) == 0 || s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	lock, err := a.store.Get(ctx, discovery.KeyController)
	if err != nil || lock.Session != s.ID() {
		return
	}
	for _, b := range guilty {
		if err := a.store.DestroySession(ctx, b.Session); err != nil {
			a.log.Warn("the session of a silent broker could not be ended", zap.Int32("broker", b.ID), zap.Error(err))
			continue
		}
		a.log.Warn("a broker is silent: its session was ended", zap.Int32("broker", b.ID), zap.String("service", b.Service))
	}
}
