package limit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// taken counts what is let pass.
type taken struct{ messages, bytes atomic.Int64 }

func (n *taken) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	_, err := n.PublishBatch(ctx, topic, []publish.Message{m}, o)
	return api.Published{}, err
}

func (n *taken) PublishBatch(_ context.Context, _ string, ms []publish.Message, _ publish.Options) ([]api.BatchResult, error) {
	n.messages.Add(int64(len(ms)))
	for _, m := range ms {
		n.bytes.Add(size(m))
	}
	return nil, nil
}

func newPublisher(t *testing.T, cfg Config) (*Publisher, *taken) {
	t.Helper()
	n := &taken{}
	p, err := New(cfg, n, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p, n
}

func batchOf(n, bytes int) []publish.Message {
	ms := make([]publish.Message, n)
	for i := range ms {
		ms[i].Value = make([]byte, bytes)
	}
	return ms
}

func mustPass(t *testing.T, p *Publisher, topic string, ms []publish.Message, o publish.Options) {
	t.Helper()
	if _, err := p.PublishBatch(t.Context(), topic, ms, o); err != nil {
		t.Fatal(err)
	}
}

func refusal(t *testing.T, p *Publisher, topic string, ms []publish.Message, o publish.Options) *api.Error {
	t.Helper()
	_, err := p.PublishBatch(t.Context(), topic, ms, o)
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return e
}

// within tells that got is want, with 2 % more or less.
func within(got, want int64) bool { return got*100 >= want*98 && got*100 <= want*102 }

// The promise: within 2 % over ten seconds, with one caller or many, single
// messages or batches.
func TestRateHoldsWithinTwoPercent(t *testing.T) {
	for _, c := range []struct {
		rate           int64
		callers, batch int
	}{
		{100, 1, 1}, {100, 16, 1}, {100, 3, 7},
		{10_000, 1, 1}, {10_000, 64, 1}, {10_000, 4, 100},
		{100_000, 1, 1}, {100_000, 4, 10}, {333_333, 2, 1000},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, n := newPublisher(t, Config{MessagesPerSecond: c.rate, MaxWait: time.Minute})
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				ms := batchOf(c.batch, 0)
				begun := time.Now()
				for range c.callers {
					wg.Go(func() {
						for time.Since(begun) < 10*time.Second {
							if _, err := p.PublishBatch(ctx, "t", ms, publish.Options{}); err != nil {
								return
							}
						}
					})
				}
				time.Sleep(10 * time.Second)
				got := n.messages.Load()
				cancel()
				wg.Wait()
				if want := c.rate * 10; !within(got, want) {
					t.Errorf("%d messages in 10 s, want %d", got, want)
				}
			})
		})
	}
}

func TestBytesHoldWithinTwoPercent(t *testing.T) {
	for _, c := range []struct {
		rate        int64
		size, batch int
	}{
		{10_000, 200, 1}, {1_000_000, 200, 1}, {1_000_000, 7, 1000}, {5 << 20, 100_000, 1}, {50 << 20, 7777, 50},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, n := newPublisher(t, Config{Topics: map[string]string{"t": fmt.Sprintf("%dB", c.rate)}, MaxWait: time.Minute})
				ms := batchOf(c.batch, c.size)
				begun := time.Now()
				for time.Since(begun) < 10*time.Second {
					mustPass(t, p, "t", ms, publish.Options{})
				}
				if want := c.rate * 10; !within(n.bytes.Load(), want) {
					t.Errorf("%d bytes in 10 s, want %d", n.bytes.Load(), want)
				}
			})
		})
	}
}

// Over any time the rate is passed by no more than the slack, a slot and one
// request, whatever the requests are and whenever they come.
func TestRateIsNeverPassed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.Int64Range(1, 2_000_000).Draw(rt, "rate")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) [2]int {
			return [2]int{rapid.IntRange(1, 300).Draw(rt, "messages"), rapid.IntRange(0, 100_000).Draw(rt, "pause µs")}
		}), 1, 60).Draw(rt, "requests")
		why := ""
		synctest.Test(t, func(t *testing.T) {
			p, _ := newPublisher(t, Config{MessagesPerSecond: rate, MaxWait: maxMaxWait})
			begun, passed := time.Now(), int64(0)
			for _, s := range steps {
				time.Sleep(time.Duration(s[1]) * time.Microsecond)
				if _, err := p.PublishBatch(t.Context(), "t", batchOf(s[0], 0), publish.Options{}); err != nil {
					continue // a batch that would use the rate up for too long
				}
				most := (time.Since(begun)+slackTime+tolerance+2*minSlot).Seconds()*float64(rate) + 2
				if float64(passed) > most {
					why = fmt.Sprintf("%d messages had passed before another request after %s at %d/s", passed, time.Since(begun), rate)
				}
				passed += int64(s[0])
			}
		})
		if why != "" {
			rt.Fatal(why)
		}
	})
}

// What would wait too long is refused at once, with the true wait, and takes
// nothing from those who come later.
func TestRefusalTellsTheWaitAndTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := newPublisher(t, Config{MessagesPerSecond: 1, MaxWait: 100 * time.Millisecond})
		one := batchOf(1, 1)
		mustPass(t, p, "t", one, publish.Options{})
		for range 20 {
			begun := time.Now()
			e := refusal(t, p, "t", one, publish.Options{})
			if e.Code != api.CodeRateLimited || e.RetryAfterMillis < 999 || e.RetryAfterMillis > 1000 {
				t.Fatalf("%v, retry after %d ms: want %s and a second", e, e.RetryAfterMillis, api.CodeRateLimited)
			}
			if time.Since(begun) != 0 {
				t.Fatal("a refusal waited")
			}
		}
		time.Sleep(time.Second)
		begun := time.Now()
		mustPass(t, p, "t", one, publish.Options{})
		if time.Since(begun) != 0 || n.messages.Load() != 2 {
			t.Errorf("after the wait that was told it waited %s more; %d passed", time.Since(begun), n.messages.Load())
		}
	})
}

// Whoever waits for as long as a refusal says passes without a wait.
func TestRetryAfterIsTrue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{
			MessagesPerSecond: rapid.Int64Range(0, 50_000).Draw(rt, "messages/s"),
			Topics:            map[string]string{"t": fmt.Sprintf("%dB", rapid.Int64Range(1, 5_000_000).Draw(rt, "bytes/s"))},
			Callers:           map[string]string{"*": fmt.Sprint(rapid.Int64Range(1, 1000).Draw(rt, "caller's messages/s"))},
			MaxWait:           time.Duration(rapid.IntRange(0, 100).Draw(rt, "max_wait ms")) * time.Millisecond,
		}
		sizes := rapid.SliceOfN(rapid.IntRange(0, 2000), 1, 40).Draw(rt, "sizes")
		why := ""
		synctest.Test(t, func(t *testing.T) {
			p, _ := newPublisher(t, cfg)
			for _, size := range sizes {
				ms := batchOf(1+size%7, size)
				_, err := p.PublishBatch(t.Context(), "t", ms, publish.Options{Caller: "a"})
				e, refused := errors.AsType[*api.Error](err)
				if !refused || e.Code != api.CodeRateLimited {
					continue
				}
				time.Sleep(time.Duration(e.RetryAfterMillis) * time.Millisecond)
				begun := time.Now()
				if _, err := p.PublishBatch(t.Context(), "t", ms, publish.Options{Caller: "a"}); err != nil || time.Since(begun) > 0 {
					why = fmt.Sprintf("told to come back in %d ms, and then %v after %s", e.RetryAfterMillis, err, time.Since(begun))
					return
				}
			}
		})
		if why != "" {
			rt.Fatal(why)
		}
	})
}

// A batch passes when its first message may, and those who come later wait for
// all of it; one that could never be made up for is refused for good.
func TestBatchIsPaidForAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPublisher(t, Config{MessagesPerSecond: 100, MaxWait: time.Second})
		begun := time.Now()
		mustPass(t, p, "t", batchOf(500, 0), publish.Options{})
		if time.Since(begun) != 0 {
			t.Errorf("the batch waited %s", time.Since(begun))
		}
		e := refusal(t, p, "t", batchOf(1, 0), publish.Options{})
		if e.RetryAfterMillis < 4900 || e.RetryAfterMillis > 5100 {
			t.Errorf("retry after %d ms, want 5 s", e.RetryAfterMillis)
		}
		time.Sleep(time.Duration(e.RetryAfterMillis) * time.Millisecond)
		mustPass(t, p, "t", batchOf(1000, 0), publish.Options{})
		e = refusal(t, p, "t", batchOf(1001, 0), publish.Options{})
		if e.Code != api.CodeRequestTooLarge || e.Retryable || !strings.Contains(e.Message, "at most 1000") {
			t.Errorf("got %v", e)
		}
	})
}

// One message cannot be sent in parts, so it passes however slow the rate is.
func TestOneLargeMessagePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPublisher(t, Config{BytesPerSecond: 1000, MaxWait: time.Second})
		mustPass(t, p, "t", batchOf(1, 100_000), publish.Options{})
		if e := refusal(t, p, "t", batchOf(1, 1), publish.Options{}); e.RetryAfterMillis < 99_000 || e.RetryAfterMillis > 101_000 {
			t.Errorf("retry after %d ms, want 100 s", e.RetryAfterMillis)
		}
	})
}

func TestScopesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPublisher(t, Config{
			MaxWait: 0,
			Topics:  map[string]string{"slow": "1", "both": "1000 10B"},
			Callers: map[string]string{"billing": "2", "*": "1"},
		})
		one := batchOf(1, 1)
		as := func(caller string) publish.Options { return publish.Options{Caller: caller} }
		mustPass(t, p, "slow", one, as("a"))
		if e := refusal(t, p, "slow", one, as("b")); !strings.HasPrefix(e.Message, "topic slow is limited to 1 messages/s") {
			t.Errorf("%v", e)
		}
		mustPass(t, p, "fast", one, as("b")) // the refusal took nothing of b's
		if e := refusal(t, p, "fast", one, as("b")); !strings.HasPrefix(e.Message, "caller b is") {
			t.Errorf("%v", e)
		}
		mustPass(t, p, "fast", one, as(""))
		if e := refusal(t, p, "fast", one, as("")); !strings.HasPrefix(e.Message, "a caller without a name is") {
			t.Errorf("%v", e)
		}
		mustPass(t, p, "both", batchOf(1, 40), as("billing"))
		if e := refusal(t, p, "both", one, as("c")); !strings.Contains(e.Message, "10 bytes/s") {
			t.Errorf("%v", e)
		}
	})
}

func TestALimitedTopicDoesNotSlowAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPublisher(t, Config{Topics: map[string]string{"slow": "10"}, MaxWait: time.Minute})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { mustPass(t, p, "slow", batchOf(1, 1), publish.Options{}) })
		}
		synctest.Wait()
		begun := time.Now()
		for range 10_000 {
			mustPass(t, p, "fast", batchOf(1, 1), publish.Options{})
		}
		if time.Since(begun) != 0 {
			t.Errorf("it was slowed by %s", time.Since(begun))
		}
		wg.Wait()
		if took := time.Since(begun); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("50 messages at 10/s took %s", took)
		}
	})
}

// The time of the request and the caller's context bound the wait too.
func TestWaitEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &taken{}
		p, err := New(Config{MessagesPerSecond: 1, MaxWait: time.Minute}, n, Options{Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		one := batchOf(1, 1)
		mustPass(t, p, "t", one, publish.Options{})
		refusal(t, p, "t", one, publish.Options{Timeout: 500 * time.Millisecond})
		refusal(t, p, "t", one, publish.Options{Begun: time.Now().Add(-1500 * time.Millisecond)})
		mustPass(t, p, "t", one, publish.Options{})

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := p.Publish(ctx, "t", one[0], publish.Options{}); !errors.Is(err, &api.Error{Code: api.CodeRateLimited}) {
			t.Errorf("got %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := p.Publish(ctx, "t", one[0], publish.Options{}); !errors.Is(err, &api.Error{Code: api.CodeDraining}) {
			t.Errorf("got %v", err)
		}
		if n.messages.Load() != 2 {
			t.Errorf("%d passed, want 2", n.messages.Load())
		}
	})
}

func TestChangeIsInForceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Topics: map[string]string{"a": "1", "b": "1", "*": "1"}}
		p, _ := newPublisher(t, cfg)
		one := batchOf(1, 1)
		for _, topic := range []string{"a", "b", "c"} {
			mustPass(t, p, topic, one, publish.Options{})
		}
		if err := p.Change(Config{Topics: map[string]string{"a": "1", "b": "1000", "*": "1"}}); err != nil {
			t.Fatal(err)
		}
		refusal(t, p, "a", one, publish.Options{}) // the same limit remembers
		refusal(t, p, "c", one, publish.Options{})
		for range 10 {
			time.Sleep(time.Millisecond)
			mustPass(t, p, "b", one, publish.Options{})
		}
		if err := p.Change(Config{Topics: map[string]string{"a": "none"}}); err == nil {
			t.Fatal("a wrong limit was taken")
		}
		refusal(t, p, "a", one, publish.Options{})
		if err := p.Change(Config{}); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			mustPass(t, p, "a", one, publish.Options{})
		}
	})
}

// Limits change while many publish: nothing waits for ever, and nothing that is
// let pass under the last ones exceeds them for long.
func TestChangeWhileOthersPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := newPublisher(t, Config{MaxWait: 100 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		one := batchOf(1, 10)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				o := publish.Options{Caller: fmt.Sprint(i % 4)}
				for ctx.Err() == nil {
					if _, err := p.PublishBatch(ctx, fmt.Sprint("t", i%3), one, o); err != nil {
						time.Sleep(time.Millisecond)
					}
					time.Sleep(10 * time.Microsecond) // the brokers
				}
			})
		}
		for i := range 200 {
			time.Sleep(time.Duration(i%5) * time.Millisecond)
			cfg := Config{
				MaxWait: 100 * time.Millisecond, MessagesPerSecond: int64(i % 3 * 1000),
				Topics:  map[string]string{"t1": fmt.Sprint(1 + i%7*100), "*": "5000"},
				Callers: map[string]string{"*": fmt.Sprintf("%dkB", 1+i%4)},
			}
			if err := p.Change(cfg); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Change(Config{MaxWait: 100 * time.Millisecond, MessagesPerSecond: 500}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // those that wait by earlier limits
		before := n.messages.Load()
		time.Sleep(10 * time.Second)
		if got := n.messages.Load() - before; !within(got, 5000) {
			t.Errorf("%d messages in 10 s at 500/s", got)
		}
		cancel()
		wg.Wait()
	})
}

// Names cost their inventor nothing, so they must not cost us memory.
func TestInventedNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPublisher(t, Config{Callers: map[string]string{"*": "1"}})
		one := batchOf(1, 1)
		for i := range maxOthers {
			mustPass(t, p, "t", one, publish.Options{Caller: fmt.Sprint(i)})
		}
		mustPass(t, p, "t", one, publish.Options{Caller: "x"})
		refusal(t, p, "t", one, publish.Options{Caller: "y"}) // shares with x
		time.Sleep(5 * time.Second)
		mustPass(t, p, "t", one, publish.Options{Caller: "z"})
		mustPass(t, p, "t", one, publish.Options{Caller: "y"}) // the others were forgotten
		if n := len(p.limits.Load().callers.others); n > 2 {
			t.Errorf("%d names are remembered", n)
		}
	})
}

func TestMetricsNameTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		p, err := New(Config{MaxWait: 2 * time.Second, Topics: map[string]string{"t": "1"}, Callers: map[string]string{"*": "1B"}}, &taken{}, Options{Registerer: reg})
		if err != nil {
			t.Fatal(err)
		}
		mustPass(t, p, "t", batchOf(1, 0), publish.Options{})
		mustPass(t, p, "t", batchOf(7, 0), publish.Options{}) // a second later
		refusal(t, p, "t", batchOf(3, 0), publish.Options{})
		mustPass(t, p, "u", batchOf(1, 9), publish.Options{Caller: "x"})
		refusal(t, p, "u", batchOf(1, 9), publish.Options{Caller: "x"})
		for series, want := range map[string]float64{
			"sidestream_limit_delayed_messages_total t topic messages":  7,
			"sidestream_limit_wait_seconds_total t topic messages":      1,
			"sidestream_limit_refused_messages_total t topic messages":  3,
			"sidestream_limit_refused_messages_total * caller bytes":    1,
			"sidestream_limit_delayed_messages_total * caller messages": 0,
		} {
			if got := counted(t, reg)[series]; got != want {
				t.Errorf("%s is %v, want %v", series, got, want)
			}
		}
	})
}

// counted are the counters by name and values of labels.
func counted(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series := f.GetName()
			for _, l := range m.GetLabel() {
				series += " " + l.GetValue()
			}
			all[series] = m.GetCounter().GetValue()
		}
	}
	return all
}

func TestConfigIsChecked(t *testing.T) {
	for text, want := range map[string]rates{
		"500": {messages: 500}, "500/s": {messages: 500}, "5MiB": {bytes: 5 << 20}, "500 5MB/s": {500, 5_000_000},
		"1kB 1": {1, 1000}, "7B": {bytes: 7}, "1_000 1_000KB": {1000, 1_000_000}, "2GiB": {bytes: 2 << 30},
	} {
		if got, err := parseRates(text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "many", "0", "-1", "1 2", "5MiB 1B", "1.5", "B", "9999999999", "2000000GB", "99999999999999999999GiB", "5 MiB", "1/m"} {
		if r, err := parseRates(text); err == nil {
			t.Errorf("%q is taken as %+v", text, r)
		}
	}
	for want, c := range map[string]Config{
		"messages_per_second: got -1":     {MessagesPerSecond: -1},
		"bytes_per_second: got 10000000":  {BytesPerSecond: 10_000_000_000_000},
		`max_wait: got "1h0m0s"`:          {MaxWait: time.Hour},
		`topics.orders: got "many": use `: {Topics: map[string]string{"orders": "many"}},
		`callers.a: got "0": use `:        {Callers: map[string]string{"a": "0"}},
		`topics: got the name "orders.*"`: {Topics: map[string]string{"orders.*": "5"}},
	} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}
