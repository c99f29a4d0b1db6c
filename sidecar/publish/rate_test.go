package publish

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk/api"
)

func TestLimitHoldsAndTellsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := newLimits(RateConfig{MaxWait: time.Second, Topics: map[string]string{"slow": "10"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		begun := time.Now()
		for range 51 {
			if e := l.admit(ctx, "slow", 1); e != nil {
				t.Fatal(e)
			}
		}
		if took := time.Since(begun); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
			t.Errorf("51 messages at 10/s took %s, want 5s", took)
		}
		begun = time.Now()
		for range 1000 {
			if e := l.admit(ctx, "other", 1); e != nil {
				t.Fatal(e)
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("a limited topic slowed another by %s", took)
		}
	})
}

// What would wait too long is refused at once, with the true wait, and takes
// no slot from those who come later.
func TestLimitRefusesWithoutTaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := newLimits(RateConfig{MessagesPerSecond: 1, MaxWait: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		if e := l.admit(ctx, "t", 1); e != nil {
			t.Fatalf("the first: %v", e)
		}
		for range 20 {
			begun := time.Now()
			e := l.admit(ctx, "t", 1)
			if e == nil || e.Code != api.CodeRateLimited {
				t.Fatalf("got %v, want %s", e, api.CodeRateLimited)
			}
			if time.Since(begun) != 0 {
				t.Fatal("a refusal waited")
			}
			if e.RetryAfterMillis < 999 || e.RetryAfterMillis > 1000 {
				t.Fatalf("retry after %d ms, want a second", e.RetryAfterMillis)
			}
		}
		time.Sleep(time.Second)
		if e := l.admit(ctx, "t", 1); e != nil {
			t.Errorf("after the wait that was told: %v", e)
		}
	})
}

// A batch counts as many; the caller's deadline bounds the wait too.
func TestLimitOfBatchesAndDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := newLimits(RateConfig{MessagesPerSecond: 100, MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 5 {
			if e := l.admit(context.Background(), "t", 100); e != nil {
				t.Fatal(e)
			}
		}
		if took := time.Since(begun); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
			t.Errorf("500 messages at 100/s took %s, want 5s", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		if e := l.admit(ctx, "t", 100); e == nil || e.Code != api.CodeRateLimited {
			t.Errorf("a batch of a second in half a second: %v, want %s", e, api.CodeRateLimited)
		}
	})
}

func TestLimitRate(t *testing.T) {
	for rate, window := range map[int]time.Duration{100: 10 * time.Second, 10_000: 2 * time.Second, 100_000: 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l, err := newLimits(RateConfig{MessagesPerSecond: rate, MaxWait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			begun, n := time.Now(), 0
			for time.Since(begun) < window {
				if e := l.admit(context.Background(), "t", 1); e != nil {
					t.Fatal(e)
				}
				n++
			}
			if want := int(window.Seconds() * float64(rate)); n < want*98/100 || n > want*102/100 {
				t.Errorf("%d messages in %s at %d/s", n, window, rate)
			}
		})
	}
}

func TestRateConfig(t *testing.T) {
	c := DefaultConfig()
	c.Rate.Topics = map[string]string{"orders": "many"}
	if err := c.Validate(); err == nil || err.Error() != `rate.topics.orders: got "many": use messages per second, 1 to 100000000` {
		t.Errorf("got %v", err)
	}
}
