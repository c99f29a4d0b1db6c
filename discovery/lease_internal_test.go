package discovery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// leaseOf makes a lease whose renewals do what renew says.
func leaseOf(t *testing.T, renew func(context.Context) error) *lease {
	t.Helper()
	k := newKeepers()
	t.Cleanup(k.close)
	l, err := newLease(k, "id", 10*time.Second, time.Now(), zap.NewNop(), renew, func(context.Context) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLeaseAgeCountsFromTheSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leaseOf(t, func(context.Context) error {
			time.Sleep(2 * time.Second) // the reply takes long
			return nil
		})
		time.Sleep(5*time.Second + 1) // sent at 3 s, answered at 5 s
		synctest.Wait()
		if got := l.Age(); got != 2*time.Second+1 {
			t.Fatalf("age %s, want that of the send", got)
		}
		time.Sleep(time.Second) // the next one leaves 3 s after the last
		synctest.Wait()
		if got := l.Age(); got != 3*time.Second+1 {
			t.Fatalf("age %s", got)
		}
	})
}

// A store that hangs, as a paused agent does, or that answers with errors
// never makes a session lost.
func TestLeaseErrorsAreNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		var calls atomic.Int32
		l := leaseOf(t, func(ctx context.Context) error {
			n := calls.Add(1)
			switch {
			case answers.Load():
				return nil
			case n%2 == 0:
				return errors.New("Consul answered 500: no")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if l.Ownership() != Unproven || l.Age() != time.Minute {
			t.Fatalf("ownership %s, age %s", l.Ownership(), l.Age())
		}
		if n := calls.Load(); n < 15 {
			t.Fatalf("%d renewals were tried in a minute", n)
		}
		answers.Store(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if l.Ownership() != Proven {
			t.Fatalf("ownership %s after the store is back", l.Ownership())
		}
	})
}

// A Consul that wakes from a pause answers renewals of sessions whose time is
// over, and ends them in the same moment: one such answer proves nothing.
func TestLeaseIsUnprovenUntilConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answer := ErrUnavailable
		say := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			answer = err
		}
		l := leaseOf(t, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if answer == ErrConflict { // once
				answer = ErrSessionLost
				return nil
			}
			return answer
		})
		ownership := func(after time.Duration) Ownership {
			time.Sleep(after)
			synctest.Wait()
			return l.Ownership()
		}
		if o := ownership(30 * time.Second); o != Unproven {
			t.Fatalf("ownership %s in an outage", o)
		}
		say(nil)
		for range 4 {
			if o := ownership(250 * time.Millisecond); o != Unproven {
				t.Fatalf("ownership %s within a second of the first answer", o)
			}
		}
		if o := ownership(2 * time.Second); o != Proven || l.Age() > 4*time.Second {
			t.Fatalf("ownership %s, age %s after the outage", o, l.Age())
		}
		say(ErrUnavailable)
		ownership(30 * time.Second)
		say(ErrConflict)
		for l.Ownership() != Lost {
			if o := ownership(10 * time.Millisecond); o == Proven {
				t.Fatal("a session that ends at once is called proven")
			}
		}
	})
}

func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := leaseOf(t, func(context.Context) error {
			calls++
			return ErrSessionLost
		})
		<-l.Lost()
		time.Sleep(time.Minute)
		if l.Ownership() != Lost || calls != 1 {
			t.Fatalf("ownership %s after %d renewals", l.Ownership(), calls)
		}
		if err := l.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// Destroy does not wait for a renewal that hangs, and can be tried again.
func TestLeaseDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeepers()
		defer k.close()
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		away := true
		l, err := newLease(k, "id", 10*time.Second, time.Now(), zap.NewNop(), hang, func(context.Context) error {
			if away {
				return ErrUnavailable
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // a renewal is under way
		start := time.Now()
		if err := l.Destroy(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Fatalf("Destroy waited %s", took)
		}
		if l.Ownership() == Lost {
			t.Fatal("lost though nobody said so")
		}
		away = false
		if err := l.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-l.Lost()
	})
}
