package limit

import (
	"context"
	"time"
)

// ticket is what one request has taken of the rates that it counts to. What is
// not sent after all is given back, so those who wait behind it come earlier.
type ticket struct {
	taken  request
	gates  [3]*gate // nil: no limit
	places [3]place
}

// wait waits for the request's turn; false when ctx ends before it. The place of
// one that is given up stays empty: those before it may not move, and ctx ends
// before a turn that is known only where the sidecar stops.
func (t *ticket) wait(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		longest, now := time.Duration(0), time.Now()
		var moved [len(t.gates)]<-chan struct{}
		for i, g := range t.gates {
			if g == nil {
				continue
			}
			var d time.Duration
			d, moved[i] = g.wait(t.places[i], now)
			longest = max(longest, d)
		}
		if longest <= 0 {
			return true
		}
		timer.Reset(longest)
		select {
		case <-timer.C:
		case <-moved[0]:
		case <-moved[1]:
		case <-moved[2]:
		case <-ctx.Done():
			return false
		}
	}
}

// giveBack returns what of the request was not sent after it had passed.
func (t *ticket) giveBack(unsent request) {
	now := time.Now()
	for i, g := range t.gates {
		if g != nil {
			g.giveBack(t.places[i], unsent, t.taken, now)
		}
	}
}
