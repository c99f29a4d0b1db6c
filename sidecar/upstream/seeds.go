package upstream

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
)

// noBroker stands for "no broker is known": kgo needs a seed and would take
// 127.0.0.1:9092 by itself, which may be somebody else. The dialler refuses it.
// RFC 2606 keeps .invalid from ever being a real host.
const noBroker = "no-broker.invalid:9092"

// errNoBroker is what dialling noBroker gives.
var errNoBroker = errors.New("no broker is registered yet")

func seedsOrNone(seeds []string) []string {
	if len(seeds) == 0 {
		return []string{noBroker}
	}
	return seeds
}

// Seeds are the addresses from which brokers are looked for now; none when
// the service has no instance.
func (u *Upstream) Seeds() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seeds)
}

// followBrokers keeps the seeds as the registry has them, until Close. While
// the registry is away the last known addresses stay.
func (u *Upstream) followBrokers() {
	look := &lookUps{Store: u.store, log: u.log.With(zap.String("service", u.cfg.Service))}
	// It returns only when Close ends the context.
	_ = discovery.FollowServices(u.ctx, look, u.cfg.Service, func(instances []discovery.Instance) {
		hidden := 0
		if u.cfg.Ours() {
			u.learnCluster(instances)
			instances, hidden = admitted(instances, u.ClusterID())
		}
		u.mu.Lock()
		u.hidden = hidden
		u.mu.Unlock()
		u.setSeeds(seedsOf(instances))
	})
}

// lookUps logs an outage of the registry once when it begins and once when it
// ends, however often it is asked meanwhile. One goroutine uses it.
type lookUps struct {
	discovery.Store
	log      *zap.Logger
	failures int // since the last answer
}

// WatchServices is the store's.
func (l *lookUps) WatchServices(ctx context.Context, name string, index uint64) ([]discovery.Instance, uint64, error) {
	instances, next, err := l.Store.WatchServices(ctx, name, index)
	switch {
	case err == nil && l.failures > 0:
		l.log.Info("the brokers can be looked up again", zap.Int("failures", l.failures))
		l.failures = 0
	case err != nil && ctx.Err() == nil:
		if l.failures++; l.failures == 1 {
			l.log.Warn("cannot look up the brokers; going on with those known", zap.Error(err))
		}
	}
	return instances, next, err
}

// seedsOf are the addresses of the passing instances, of all when none passes:
// an address that may be dead beats none.
func seedsOf(instances []discovery.Instance) []string {
	var passing, all []string
	for _, in := range instances {
		if in.Address == "" || in.Port == 0 {
			continue
		}
		addr := net.JoinHostPort(in.Address, strconv.Itoa(in.Port))
		all = append(all, addr)
		if in.Passing {
			passing = append(passing, addr)
		}
	}
	if len(passing) == 0 {
		passing = all
	}
	slices.Sort(passing)
	return slices.Compact(passing)
}

func (u *Upstream) setSeeds(seeds []string) {
	u.mu.Lock()
	if slices.Equal(u.seeds, seeds) {
		u.mu.Unlock()
		return
	}
	u.seeds = seeds
	u.clients = slices.DeleteFunc(u.clients, closed)
	clients := slices.Clone(u.clients)
	for name, c := range u.topics { // failures to reach the old ones say nothing of the new ones
		if c.err != nil {
			delete(u.topics, name)
		}
	}
	u.mu.Unlock()
	u.log.Info("brokers", zap.Strings("seeds", seeds))
	for _, cl := range clients {
		u.giveSeeds(cl, seeds)
	}
}

func (u *Upstream) giveSeeds(cl *kgo.Client, seeds []string) {
	if err := cl.UpdateSeedBrokers(seedsOrNone(seeds)...); err != nil {
		u.log.Warn("a broker's registered address is unusable", zap.Strings("seeds", seeds), zap.Error(err))
	}
}
