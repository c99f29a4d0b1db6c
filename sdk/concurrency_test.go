package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// consuming runs Consume until the group has acknowledged everything, or
// something has gone wrong for an hour.
func consuming(t *testing.T, f *fakeGroup, o sdk.ConsumeOptions, handle sdk.Handler) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	go func() {
		for f.left() > 0 && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
		cancel()
	}()
	if err := f.client(t).Consume(ctx, "g", "t", o, handle); err != nil {
		t.Error(err)
	}
	if n := f.left(); n > 0 {
		t.Errorf("%d messages are not acknowledged", n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.out(time.Now()); n > 0 {
		t.Errorf("%d messages are still out", n)
	}
}

// How many handlers work at once follows from the group's order.
func TestConcurrencyFollowsTheOrderOfTheGroup(t *testing.T) {
	for order, want := range map[string]int{"partition": 3, "key": 6, "none": 8} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeGroup(order, 3)
				for i := range 60 {
					f.put(i%3, fmt.Sprint("k", i/3%2), "v")
				}
				w := newWitness(t, f)
				w.unordered = order == "none"
				consuming(t, f, sdk.ConsumeOptions{Concurrency: 8, Max: 20, InFlight: 20}, w.handler(func(context.Context, api.Message) error {
					time.Sleep(time.Second)
					return nil
				}))
				if w.most != want || f.most > 20 {
					t.Errorf("%d handlers at once, want %d; %d held at once", w.most, want, f.most)
				}
				for id, n := range w.done {
					if n != 1 {
						t.Errorf("%s was handled %d times", id, n)
					}
				}
			})
		})
	}
}

// A slow key delays nobody else; messages without a key wait for nobody.
func TestSlowKeyDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 1)
		for i := range 20 {
			f.put(0, []string{"slow", "a", "b", ""}[i%4], "v")
		}
		w := newWitness(t, f)
		start := time.Now()
		var others atomic.Int64 // when the last of the others was handled
		consuming(t, f, sdk.ConsumeOptions{Concurrency: 3}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Key != nil && *m.Key == "slow" {
				time.Sleep(time.Minute) // the lease is 30 s
				return nil
			}
			time.Sleep(10 * time.Millisecond)
			others.Store(int64(time.Since(start)))
			return nil
		}))
		if others := time.Duration(others.Load()); others > time.Second || time.Since(start) < 5*time.Minute {
			t.Errorf("the others took %v, all %v", others, time.Since(start))
		}
	})
}

// A slow key of which more came than may be held does not keep the others away,
// and what is given back for them spends no attempts.
func TestHotSlowKeyMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 1)
		for i := range 50 {
			f.put(0, map[bool]string{true: "slow", false: "other"}[i < 30], "v")
		}
		w := newWitness(t, f)
		start := time.Now()
		var others atomic.Int64 // when the last of the others was handled
		consuming(t, f, sdk.ConsumeOptions{Concurrency: 2, Max: 10}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			if *m.Key == "slow" {
				time.Sleep(10 * time.Second)
			} else {
				others.Store(int64(time.Since(start)))
			}
			return nil
		}))
		if others := time.Duration(others.Load()); others > 5*time.Second {
			t.Errorf("the others took %v", others)
		}
	})
}

// What follows a failed message in its key waits for it, others do not, and
// its delays grow.
func TestFailedKeyComesAgainInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 1)
		for i := range 12 {
			f.put(0, []string{"bad", "good"}[i%2], "v")
		}
		w := newWitness(t, f)
		var tries []time.Duration
		start := time.Now()
		good := time.Duration(0)
		consuming(t, f, sdk.ConsumeOptions{MaxRetryDelay: 3 * time.Second}, w.handler(func(_ context.Context, m api.Message) error {
			switch {
			case *m.Key == "good":
				good = time.Since(start)
			case m.Offset == 2:
				tries = append(tries, time.Since(start).Round(time.Second))
				if len(tries) == 4 {
					return sdk.Later(time.Minute, errors.New("much later"))
				} else if len(tries) < 6 {
					return errors.New("not today")
				}
			}
			return nil
		}))
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 6 * time.Second, 66 * time.Second, 69 * time.Second}
		if !slices.Equal(tries, want) || good > time.Second {
			t.Errorf("tries after %v, want %v; the other key was done after %v", tries, want, good)
		}
		if n := w.done["t/0/4"]; n != 1 {
			t.Errorf("what follows was handled %d times", n)
		}
	})
}

// A stop lets handlers finish, acknowledges what they did and gives back the
// rest at once.
func TestStopDrainsHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("none", 2)
		for i := range 50 {
			f.put(i%2, "", "v")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var finished atomic.Int32
		time.AfterFunc(time.Second, cancel)
		time.AfterFunc(1100*time.Millisecond, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if n := f.out(time.Now()); n != 5 {
				t.Errorf("%d messages are out right after the stop, want those in handlers", n)
			}
		})
		start := time.Now()
		err := f.client(t).Consume(ctx, "g", "t", sdk.ConsumeOptions{Concurrency: 5}, func(ctx context.Context, _ api.Message) error {
			time.Sleep(10 * time.Second)
			if ctx.Err() == nil {
				finished.Add(1)
			}
			return nil
		})
		if err != nil || finished.Load() != 5 || f.left() != 45 || time.Since(start) != 10*time.Second {
			t.Errorf("%v: %d finished, %d left, after %v", err, finished.Load(), f.left(), time.Since(start))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.out(time.Now()); n != 0 {
			t.Errorf("%d messages are still out", n)
		}
	})
}

// A handler that does not finish is told so, and its message goes back.
func TestStopTimeoutEndsTheContextOfHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		f.put(0, "", "v")
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		err := f.client(t).Consume(ctx, "g", "t", sdk.ConsumeOptions{StopTimeout: 3 * time.Second}, func(ctx context.Context, _ api.Message) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		if err != nil || time.Since(start) != 3*time.Second || f.out(time.Now()) != 0 || len(f.nacks) != 1 || f.nacks[0].Delay != "" {
			t.Errorf("%v after %v, nacks %+v", err, time.Since(start), f.nacks)
		}
	})
}

// A message that comes again while its handler works is not handled twice: the
// result counts for the new delivery.
func TestRedeliveryWhileTheHandlerWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		for range 3 {
			f.put(0, "", "v")
		}
		w := newWitness(t, f)
		var heard []error
		consuming(t, f, sdk.ConsumeOptions{OnError: func(err error) { heard = append(heard, err) }}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Offset == 0 {
				f.restart() // the sidecar begins anew
			}
			time.Sleep(time.Minute)
			return nil
		}))
		if !maps.Equal(w.done, map[string]int{"t/0/0": 1, "t/0/1": 1, "t/0/2": 1}) || len(heard) != 0 {
			t.Errorf("handled %v, heard %v", w.done, heard)
		}
	})
}

// After a seek back, what a handler had meanwhile is handled anew.
func TestSeekWhileTheHandlerWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		for range 3 {
			f.put(0, "", "v")
		}
		w := newWitness(t, f)
		sought := false
		consuming(t, f, sdk.ConsumeOptions{}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Offset == 1 && !sought {
				sought = true
				time.Sleep(time.Second)
				f.seek()
			}
			time.Sleep(time.Second)
			return nil
		}))
		if !maps.Equal(w.done, map[string]int{"t/0/0": 2, "t/0/1": 2, "t/0/2": 1}) {
			t.Errorf("handled %v", w.done)
		}
	})
}

// Acks whose answer is lost, and acks that were refused for a while, are said
// again; their messages are not handled again.
func TestAcksAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 2)
		for i := range 200 {
			f.put(i%2, fmt.Sprint("k", i%10), "v")
		}
		random := rand.New(rand.NewPCG(1, 2))
		f.fault = func(verb string) fault {
			if verb == "pull" || verb == "g" {
				return noFault
			}
			return []fault{noFault, refused, cut}[random.IntN(3)]
		}
		w := newWitness(t, f)
		consuming(t, f, sdk.ConsumeOptions{Concurrency: 4}, w.handler(func(context.Context, api.Message) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}))
		for id, n := range w.done {
			if n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
	})
}

// Answers of pulls that are lost are asked for again, while the consumer runs
// and when it stops: no message waits for its lease to end.
func TestLostAnswersOfPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		for range 10 {
			f.put(0, "", "v")
		}
		pulls := 0
		f.fault = func(verb string) fault {
			if verb == "pull" {
				pulls++
			}
			if verb == "pull" && pulls%2 == 1 {
				return cut
			}
			return noFault
		}
		w := newWitness(t, f)
		start := time.Now()
		consuming(t, f, sdk.ConsumeOptions{Max: 5}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			return nil
		}))
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		f.put(0, "", "v")
		ctx, cancel := context.WithCancel(t.Context())
		f.fault = func(verb string) fault {
			if ctx.Err() == nil && verb == "pull" {
				cancel() // while the answer is on its way
				return cut
			}
			return noFault
		}
		if err := f.client(t).Consume(ctx, "g", "t", sdk.ConsumeOptions{}, func(context.Context, api.Message) error {
			t.Error("it was handled after the stop")
			return nil
		}); err != nil {
			t.Error(err)
		}
		if n := f.out(time.Now()); n != 0 {
			t.Errorf("%d messages are still out", n)
		}
	})
}

// Two applications share a group; one stops in the middle. Nothing is handled
// twice and nothing waits for a lease to end.
func TestTwoConsumersShareAndOneStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("key", 2)
		for i := range 300 {
			f.put(i%2, fmt.Sprint("k", i%20), "v")
		}
		w := newWitness(t, f)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(4*time.Second, cancel)
		handle := w.handler(func(context.Context, api.Message) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		o := sdk.ConsumeOptions{Concurrency: 2, Max: 20}
		var first sync.WaitGroup
		first.Go(func() {
			if err := f.client(t).Consume(ctx, "g", "t", o, handle); err != nil {
				t.Error(err)
			}
		})
		consuming(t, f, o, handle)
		first.Wait()
		for id, n := range w.done {
			if n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
		if took := time.Since(start); len(w.done) != 300 || took > 14*time.Second {
			t.Errorf("%d messages in %v", len(w.done), took)
		}
	})
}

// Whatever goes wrong with requests, sidecars and handlers: nothing is skipped,
// nothing of one key is handled at once or out of order.
func TestNothingIsSkippedWhateverHappens(t *testing.T) {
	for seed := range uint64(12) {
		order := []string{"partition", "key", "none"}[seed%3]
		t.Run(fmt.Sprint(order, " ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 7))
				var mu sync.Mutex // guards random
				chance := func(n int) bool {
					mu.Lock()
					defer mu.Unlock()
					return random.IntN(n) == 0
				}
				f := newFakeGroup(order, 3)
				f.lease = 2 * time.Second
				for i := range 150 {
					f.put(i%3, []string{"a", "b", "c", ""}[random.IntN(4)], "v")
				}
				f.fault = func(string) fault {
					switch {
					case chance(8):
						return refused
					case chance(12):
						return cut
					}
					return noFault
				}
				w := newWitness(t, f)
				w.unordered = order == "none"
				handle := w.handler(func(ctx context.Context, _ api.Message) error {
					if chance(40) {
						time.Sleep(5 * time.Second)
					} else if chance(2) {
						time.Sleep(30 * time.Millisecond)
					}
					if chance(60) {
						f.restart()
					}
					if chance(15) {
						return errors.New("not today")
					}
					return nil
				})
				o := sdk.ConsumeOptions{Concurrency: 4, Max: 20, RetryDelay: 100 * time.Millisecond, MaxRetryDelay: time.Second}
				// Now and then the application stops and starts.
				for f.left() > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
					if err := f.client(t).Consume(ctx, "g", "t", o, handle); err != nil {
						t.Fatal(err)
					}
					cancel()
				}
				if len(w.done) != 150 {
					t.Errorf("%d of 150 were handled", len(w.done))
				}
			})
		})
	}
}

// The sidecar may be on a host whose clock is wrong.
func TestLeasesAreExtendedWhateverTheClocksSay(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, -20 * time.Second, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeGroup("partition", 1)
			f.skew = skew
			for range 3 {
				f.put(0, "", "v")
			}
			consuming(t, f, sdk.ConsumeOptions{}, func(_ context.Context, m api.Message) error {
				if m.Attempt != 1 {
					t.Errorf("%v: %s comes at attempt %d", skew, m.ID, m.Attempt)
				}
				time.Sleep(time.Minute) // the lease is 30 s
				return nil
			})
		})
	}
}

func TestHandlerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup("partition", 1)
		f.put(0, "", "v")
		tries := 0
		consuming(t, f, sdk.ConsumeOptions{HandlerTimeout: 45 * time.Second}, func(ctx context.Context, m api.Message) error {
			if tries++; tries == 1 {
				start := time.Now()
				<-ctx.Done()
				if time.Since(start) != 45*time.Second {
					t.Errorf("ended after %v", time.Since(start))
				}
				return ctx.Err()
			}
			return nil
		})
		if tries != 2 {
			t.Errorf("%d tries", tries)
		}
	})
}

func TestReasonsAreHeardWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		empty := func(reason api.Reason) func(w http.ResponseWriter) {
			return func(w http.ResponseWriter) { answer(w, 200, api.Pulled{Reason: &reason}) }
		}
		f.values["t"] = []string{"a"}
		f.fail = append(f.fail, empty(api.ReasonRebalancing), empty(api.ReasonRebalancing), empty(api.ReasonPaused))
		ctx, cancel := context.WithCancel(t.Context())
		var heard []string
		err := newClient(t, f).Consume(ctx, "g", "t", sdk.ConsumeOptions{OnReason: func(r api.Reason) {
			heard = append(heard, string(r))
			if r == api.ReasonAtEnd {
				cancel()
			}
		}}, func(context.Context, api.Message) error { return nil })
		if err != nil || !slices.Equal(heard, []string{"rebalancing", "paused", "", "at_end"}) {
			t.Errorf("%v, heard %q", err, heard)
		}
	})
}
