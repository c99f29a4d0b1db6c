package agent

import (
	"context"
	"time"

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
		Remotes: []clock.Remote{{Name: "the coordination store's", Ask: func(ctx context.Context) (time.Time, bool) {
			at, err := a.store.Clock(ctx)
			return at, err == nil
		}}},
		Tell: func(alarm string) { a.alarms.put(alarmClock, alarm) },
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
