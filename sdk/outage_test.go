package sdk_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// While the sidecar is away no handler begins, for what it handed out before is
// delivered again when it has started anew. A client that repeats its calls by
// itself knows of the outage all the same.
func TestNoHandlerBeginsWhileTheSidecarIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 2)
		for i := range 300 {
			f.put(i%2, fmt.Sprint("k", i%50), "v")
		}
		var away atomic.Bool
		f.fault = func(string) fault {
			if away.Load() {
				return down
			}
			return noFault
		}
		var begun atomic.Int32 // during the outage
		go func() {
			time.Sleep(1005 * time.Millisecond)
			away.Store(true)
			f.restart()
			time.Sleep(200 * time.Millisecond) // until it is noticed
			before := begun.Load()
			time.Sleep(5 * time.Second)
			if n := begun.Load() - before; n != 0 {
				t.Errorf("%d handlers began while the sidecar was away", n)
			}
			away.Store(false)
		}()
		c, err := sdk.New("", sdk.WithHTTPClient(&http.Client{Transport: f}), sdk.WithRetry(sdk.Retry{Attempts: 100}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		w := newWitness(t, f)
		if err := c.Consume(ctx, "g", "t", sdk.ConsumeOptions{Concurrency: 4}, w.handler(func(context.Context, api.Message) error {
			if away.Load() {
				begun.Add(1)
			}
			time.Sleep(20 * time.Millisecond)
			return nil
		})); err != nil {
			t.Error(err)
		}
		repeats := 0
		for _, n := range w.done {
			repeats += n - 1
		}
		// Those that were at work, and those whose acks were about to be sent.
		if f.left() != 0 || len(w.done) != 300 || repeats > 4+2*4 {
			t.Errorf("%d left, %d handled, %d again", f.left(), len(w.done), repeats)
		}
	})
}

// That the sidecar is back is noticed also when there is no room for a pull and
// nothing to acknowledge.
func TestHandlersGoOnSoonAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("none", 1)
		for range 10 {
			f.put(0, "", "v")
		}
		away := false
		f.fault = func(string) fault {
			if away {
				return down
			}
			return noFault
		}
		outage := func(is bool) func() {
			return func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				away = is
			}
		}
		time.AfterFunc(9*time.Second, outage(true)) // the first extension fails
		time.AfterFunc(11*time.Second, outage(false))
		var second atomic.Int64 // when the second worker went on
		start := time.Now()
		consuming(t, f, sdk.ConsumeOptions{Concurrency: 2, InFlight: 10}, func(_ context.Context, m api.Message) error {
			switch m.Offset {
			case 0:
				time.Sleep(25 * time.Second)
			case 1:
				time.Sleep(10100 * time.Millisecond) // into the outage
			case 2:
				second.Store(int64(time.Since(start)))
			}
			return nil
		})
		if at := time.Duration(second.Load()); at < 11*time.Second || at > 12*time.Second {
			t.Errorf("the next handler began after %v", at)
		}
	})
}

// A sidecar that drains gets back at once what waits, so it need wait only for
// the handlers at work.
func TestWhatWaitsGoesBackToASidecarThatDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("none", 1)
		for range 40 {
			f.put(0, "", "v")
		}
		var drains atomic.Bool
		f.fault = func(verb string) fault {
			if drains.Load() && verb == "pull" {
				return draining
			}
			return noFault
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, func() { drains.Store(true) })
		time.AfterFunc(25*time.Second, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if n := f.out(time.Now()); n != 2 {
				t.Errorf("%d messages are out, want those in handlers", n)
			}
			cancel()
		})
		if err := f.client(t).Consume(ctx, "g", "t", sdk.ConsumeOptions{Concurrency: 2, InFlight: 100, Wait: 5 * time.Second}, func(_ context.Context, m api.Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			time.Sleep(30 * time.Second)
			return nil
		}); err != nil {
			t.Error(err)
		}
		if n := f.left(); n != 38 {
			t.Errorf("%d are left", n)
		}
	})
}
