package agent

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

// standbys is how many agents watch over the controller. One is enough; the
// second is there because both may die at once.
const standbys = 2

// suspect ends the sessions of brokers whose check has been critical for a
// while: sooner than the session would end by itself, so that clients learn at
// once that those partitions have no leader. The controller answers for all
// other brokers, and its stand-bys for the controller.
func (a *Agent) suspect(ctx context.Context) error {
	var stop func()
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for {
		f, changed := a.mirror.Latest()
		own := a.registration()
		wanted := own != nil && (a.elected() || standsBy(f, a.ID()))
		switch {
		case wanted && stop == nil:
			watch, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = discovery.FollowSuspects(watch, a.store, discovery.ServiceBroker, own, a.judged, a.endSuspects)
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
		case <-changed:
		}
	}
}

func (a *Agent) elected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.electedNow
}

// standsBy says whether a broker watches over the controller: it is one of the
// lowest ids of those that serve.
func standsBy(f *facts.Facts, self int32) bool {
	if f.Cluster != facts.Same || f.Controller == -1 || f.Controller == self {
		return false
	}
	ids := slices.DeleteFunc(f.ServingIDs(), func(id int32) bool { return id == f.Controller })
	return slices.Contains(ids[:min(len(ids), standbys)], self)
}

// judges lists the brokers that this one answers for.
func judges(f *facts.Facts, self int32, elected bool) []discovery.Broker {
	var list []discovery.Broker
	for _, b := range f.Brokers {
		// One without a port is starting: the check is that of its earlier life.
		if b.ID == self || b.Port == 0 || b.Session == "" {
			continue
		}
		if elected || b.ID == f.Controller {
			list = append(list, b)
		}
	}
	return list
}

func holderOf(b discovery.Broker) discovery.Holder {
	return discovery.Holder{Service: b.Service, Session: b.Session}
}

func (a *Agent) judged() []discovery.Holder {
	f, _ := a.mirror.Latest()
	var holders []discovery.Holder
	for _, b := range judges(f, a.ID(), a.elected()) {
		holders = append(holders, holderOf(b))
	}
	return holders
}

// endSuspects destroys the sessions of the suspects, as far as the controller
// lock says that this agent answers for them: it holds the lock, or they do.
func (a *Agent) endSuspects(ctx context.Context, suspects []discovery.Holder) {
	f, _ := a.mirror.Latest()
	guilty := slices.DeleteFunc(judges(f, a.ID(), a.elected()), func(b discovery.Broker) bool {
		return !slices.Contains(suspects, holderOf(b))
	})
	s := a.liveSession()
	if len(guilty) == 0 || s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	lock, err := a.store.Get(ctx, discovery.KeyController)
	if err != nil {
		return
	}
	for _, b := range guilty {
		if lock.Session != s.ID() && lock.Session != b.Session {
			continue
		}
		if err := a.store.DestroySession(ctx, b.Session); err != nil {
			a.log.Warn("the session of a silent broker could not be ended", zap.Int32("broker", b.ID), zap.Error(err))
			continue
		}
		a.log.Warn("a broker is silent: its session was ended", zap.Int32("broker", b.ID), zap.String("service", b.Service))
	}
}
