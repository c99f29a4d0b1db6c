package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// Two applications on two hosts share a topic; handlers fail now and then, and
// one application stops in the middle. Nothing is skipped or handled twice.
func TestTwoHostsShareAndOneStops(t *testing.T) {
	r := newRig(t)
	a, b := r.host(), r.host()
	const n = 600
	a.publish(n, 30)
	w := newWitness(t, byPartition)
	var mu sync.Mutex // guards random
	random := rand.New(rand.NewPCG(1, 2))
	handle := w.handler(func(context.Context, api.Message) error {
		mu.Lock()
		fails := random.IntN(30) == 0
		mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		if fails {
			return errors.New("not today")
		}
		return nil
	})
	o := sdk.ConsumeOptions{Concurrency: 4, Max: 40, RetryDelay: 20 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	short, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, x := range []struct {
		h   *host
		ctx context.Context
	}{{a, ctx}, {b, short}} {
		wg.Go(func() {
			if err := x.h.client.Consume(x.ctx, "g", "t", o, handle); err != nil {
				t.Error(err)
			}
		})
	}
	time.AfterFunc(time.Second, stop)
	a.settled(ctx, "g")
	cancel()
	wg.Wait()
	w.check(n, 1)
	if w.most < 2 {
		t.Error("no two handlers worked at once")
	}
}

// A sidecar that restarts while handlers work: what they do counts, and what
// was acknowledged does not come again.
func TestSidecarRestartsUnderHandlers(t *testing.T) {
	r := newRig(t)
	h := r.host()
	const n = 200
	h.publish(n, 10)
	w := newWitness(t, byPartition)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var once sync.Once
	working := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- h.client.Consume(ctx, "g", "t", sdk.ConsumeOptions{Concurrency: 4, Max: 20}, w.handler(func(context.Context, api.Message) error {
			once.Do(func() { close(working) })
			time.Sleep(10 * time.Millisecond)
			return nil
		}))
	}()
	<-working
	for range 2 {
		time.Sleep(150 * time.Millisecond)
		h.stop()
		h.start()
	}
	h.settled(ctx, "g")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Of what was in handlers at a restart the ack may come too late.
	w.check(n, 2)
	repeats := 0
	for _, times := range w.done {
		repeats += times - 1
	}
	if repeats > 2*4*2 {
		t.Errorf("%d messages were handled again", repeats)
	}
}

// The lease is shorter than the handler's work.
func TestLeaseIsExtendedAtARealSidecar(t *testing.T) {
	r := newRig(t)
	h := r.host()
	h.publish(3, 1)
	w := newWitness(t, byPartition)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- h.client.Consume(ctx, "g", "t", sdk.ConsumeOptions{Lease: 600 * time.Millisecond}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			time.Sleep(1500 * time.Millisecond)
			return nil
		}))
	}()
	h.settled(ctx, "g")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.check(3, 1)
}

// What waited when the application stopped is there for the next at once.
func TestStopGivesBackAtOnce(t *testing.T) {
	r := newRig(t)
	h := r.host()
	h.publish(100, 10)
	w := newWitness(t, byPartition)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, stop := context.WithCancel(ctx)
	start := time.Now()
	if err := h.client.Consume(first, "g", "t", sdk.ConsumeOptions{Concurrency: 2}, w.handler(func(context.Context, api.Message) error {
		stop()
		time.Sleep(100 * time.Millisecond)
		return nil
	})); err != nil {
		t.Error(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- h.client.ConsumeBatch(ctx, "g", "t", sdk.ConsumeOptions{BatchMax: 50}, func(ctx context.Context, messages []api.Message) error {
			for _, m := range messages {
				if err := w.handler(func(context.Context, api.Message) error { return nil })(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	h.settled(ctx, "g")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.check(100, 1)
	if took := time.Since(start); took > 15*time.Second { // the lease is 30 s
		t.Errorf("it took %v", took)
	}
}
