package sim

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var simFor = flag.Duration("sim.for", 40*time.Second, "how long schedules are played, of each plan half as long")

// Schedules of the state machines that the brokers and the controller run, as
// many as there is time for: "make sim" plays more, and puts known mistakes back.
func TestSchedules(t *testing.T) {
	for name, plan := range map[string]Plan{"small": Small, "wide": Wide} {
		t.Run(name, func(t *testing.T) {
			seeds, acks := play(t, plan, *simFor/2)
			t.Logf("%d schedules, %d records acknowledged", seeds, acks)
			if seeds < 20 || acks < 20*seeds/10 {
				t.Errorf("%d schedules with %d acknowledgements say nothing", seeds, acks)
			}
		})
	}
}

func play(t *testing.T, plan Plan, limit time.Duration) (seeds, acks int) {
	deadline := time.Now().Add(limit)
	var next atomic.Uint64
	var mu sync.Mutex // guards seeds and acks
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Now().Before(deadline) && !t.Failed() {
				r := Run(next.Add(1)-1, plan, nil)
				mu.Lock()
				seeds++
				acks += r.Acks
				mu.Unlock()
				if r.Bad != "" {
					t.Errorf("seed %d: %s", r.Seed, r.Bad)
				}
			}
		})
	}
	wg.Wait()
	return seeds, acks
}

// The same seed is the same run, to the letter.
func TestSeedIsARun(t *testing.T) {
	for seed := range uint64(20) {
		var traces [2]strings.Builder
		var results [2]Result
		for i := range traces {
			results[i] = Run(seed, Wide, func(format string, args ...any) { fmt.Fprintf(&traces[i], format, args...) })
		}
		if traces[0].String() != traces[1].String() || results[0] != results[1] {
			t.Fatalf("seed %d is not the same run twice", seed)
		}
		if traces[0].Len() < 1000 {
			t.Errorf("seed %d tells nothing: %q", seed, traces[0].String())
		}
	}
}
