package chaos

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// kill -9 of an agent in mid-publish: what was answered 200 is there at its
// offset after the restart, no offset has two values, and the answers while
// the broker is away are 503 or 504, in time.
func TestAgentKilledInMidPublish(t *testing.T) {
	c := Start(t, 3, 1, Options{})
	s := c.Sidecars[0]
	c.CreateTopic("events", 12)
	l := NewLedger()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var answered, refused atomic.Int64
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				value := fmt.Sprintf("event %d of writer %d", i, w)
				began := time.Now()
				a, err := publish(s.HTTP, "events", fmt.Sprintf("k%d-%d", w, i%50), value, "&timeout=3s")
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("an answer took %v with timeout=3s", took)
				}
				if err == nil {
					answered.Add(1)
					if err := l.Published("events", a.Partition, a.Offset, value); err != nil {
						t.Error(err)
					}
					continue
				}
				l.Unknown(value)
				e, ok := err.(*api.Error)
				if !ok || (e.Code != api.CodeBrokersUnavailable && e.Code != api.CodeUnknownOutcome) {
					t.Errorf("answer while a broker is away: %v", err)
					return
				}
				refused.Add(1)
			}
		})
	}
	waitFor := func(n int64) {
		eventually(t, 90*time.Second, func() error {
			if answered.Load() < n {
				return fmt.Errorf("%d publishes answered, %d refused", answered.Load(), refused.Load())
			}
			return nil
		})
	}
	waitFor(200)
	victim := c.Agents[1]
	victim.Kill()
	eventually(t, 60*time.Second, func() error {
		if refused.Load() == 0 {
			return fmt.Errorf("no publish has been refused although a broker is away")
		}
		return nil
	})
	before := answered.Load()
	waitFor(before + 100) // the other brokers' partitions go on
	victim.Start()
	victim.WaitReady(60 * time.Second)
	waitFor(answered.Load() + 300)
	// All partitions are writable again.
	eventually(t, 60*time.Second, func() error {
		for p := range 12 {
			value := fmt.Sprintf("after, to %d at %d", p, time.Now().UnixNano())
			a, err := publish(s.HTTP, "events", "", value, fmt.Sprintf("&partition=%d&timeout=3s", p))
			if err != nil {
				return fmt.Errorf("partition %d: %w", p, err)
			}
			if err := l.Published("events", a.Partition, a.Offset, value); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	cancel()
	wg.Wait()
	c.checkLog(l, s, "events", 12)
}
