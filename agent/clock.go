package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/discovery/clock"
)

// alarmClock is the alarm that this machine's clock is not believed.
const alarmClock = "clock"

// openClock goes on with the data folder's own time. A folder without any
// partition has nothing whose age could matter.
func (a *Agent) openClock() *clock.Clock {
	c := clock.Open(clock.Options{
		Dir: a.cfg.DataDir, Logger: a.log.Named("clock"), Registerer: a.registry, Kernel: a.kernel,
		Fresh: func() bool {
			held, err := a.heldIn()
			return err == nil && len(held) == 0
		},
		Remotes: []clock.Remote{clock.Store(a.store), clock.Peers(a.store)},
		Tell:    func(alarm string) { a.alarms.put(alarmClock, alarm) },
	})
	a.mu.Lock()
	a.clock = c
	a.mu.Unlock()
	return c
}

// folderTime is the data folder's own time, nil before Run.
func (a *Agent) folderTime() *clock.Clock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clock
}

// tellTime tells other machines what the clock says, as long as it has a witness
// that they may lack.
func (a *Agent) tellTime(ctx context.Context) error {
	tick := time.NewTicker(clock.TellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.tellTimeOnce(ctx)
		}
	}
}

func (a *Agent) tellTimeOnce(ctx context.Context) {
	t, ok := a.folderTime().Told()
	if !ok || a.liveSession() == nil { // unregistered, the id may be another's
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	if _, err := a.store.Commit(ctx, discovery.Set(discovery.KeyClock(a.ID()), discovery.Encode(t))); err != nil {
		a.log.Debug("the time was not told to others", zap.Error(err))
	}
}
