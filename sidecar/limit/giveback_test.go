package limit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// fussy refuses what has a code for a key, after a while.
type fussy struct {
	after time.Duration
	sent  func(publish.Message)
}

func (f *fussy) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	results, err := f.PublishBatch(ctx, topic, []publish.Message{m}, o)
	if err == nil && results[0].Error != nil {
		return api.Published{}, results[0].Error
	}
	return api.Published{}, err
}

func (f *fussy) PublishBatch(_ context.Context, _ string, ms []publish.Message, _ publish.Options) ([]api.BatchResult, error) {
	refused := 0
	results := make([]api.BatchResult, len(ms))
	for i, m := range ms {
		switch {
		case m.Key != nil:
			refused++
			results[i].Error = api.NewError(api.Code(m.Key), "refused")
		case f.sent != nil:
			f.sent(m)
		}
	}
	if refused > 0 {
		time.Sleep(f.after)
	}
	if refused == len(ms) && refused > 1 {
		return nil, results[0].Error
	}
	return results, nil
}

func newFussy(t *testing.T, cfg Config, f *fussy) *Publisher {
	t.Helper()
	p, err := New(cfg, f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func refusedWith(code api.Code, n, bytes int) []publish.Message {
	ms := batchOf(n, bytes)
	for i := range ms {
		ms[i].Key = []byte(code)
	}
	return ms
}

// Someone posts what is refused, as large as it may be: the others do not notice.
// What may be written counts.
func TestRefusedMessagesTakeNothing(t *testing.T) {
	for code, free := range map[api.Code]bool{
		api.CodeMessageTooLarge: true, api.CodeTopicNotFound: true, api.CodePartitionNotFound: true, api.CodeBadRecord: true,
		api.CodeBrokersUnavailable: true, api.CodeSpoolFull: true, api.CodeIdempotencyConflict: true, api.CodeUnknownOutcome: false,
	} {
		for _, n := range []int{1, 9} {
			for scope, cfg := range map[string]Config{
				"all": {BytesPerSecond: 100_000}, "topic": {Topics: map[string]string{"t": "1 100kB"}}, "caller": {Callers: map[string]string{"*": "100kB 3"}},
			} {
				synctest.Test(t, func(t *testing.T) {
					p := newFussy(t, cfg, &fussy{after: 5 * time.Millisecond})
					o := publish.Options{Caller: "c"}
					bad := refusedWith(code, n, 900_000/n)
					for range 3 {
						if n == 1 {
							_, _ = p.Publish(t.Context(), "t", bad[0], o)
						} else {
							_, _ = p.PublishBatch(t.Context(), "t", bad, o)
						}
						if !free {
							break
						}
						time.Sleep(30 * time.Millisecond) // more than a slot of 20 ms
					}
					_, err := p.Publish(t.Context(), "t", batchOf(1, 10)[0], o)
					if passed := err == nil; passed != free {
						t.Errorf("%s, %d at once, limited by %s: the next one gets %v", code, n, scope, err)
					}
				})
			}
		}
	}
}

// Of a batch those count that were written, or may be.
func TestBatchPaysForWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFussy(t, Config{MessagesPerSecond: 100}, &fussy{})
		ms := append(batchOf(50, 0), refusedWith(api.CodeMessageTooLarge, 300, 0)...)
		ms = append(ms, refusedWith(api.CodeUnknownOutcome, 50, 0)...)
		mustPass(t, p, "t", ms, publish.Options{})
		if e := refusal(t, p, "t", batchOf(1, 0), publish.Options{}); e.RetryAfterMillis < 950 || e.RetryAfterMillis > 1000 {
			t.Errorf("retry after %d ms, want a second, for 100 of 400 messages", e.RetryAfterMillis)
		}
	})
}

// Who waits behind a message that is refused comes earlier, one after the other
// as the rate has it.
func TestThoseBehindARefusedMessageComeEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFussy(t, Config{MessagesPerSecond: 10, BytesPerSecond: 1000, MaxWait: time.Minute}, &fussy{after: 500 * time.Millisecond})
		begun := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = p.Publish(t.Context(), "t", refusedWith(api.CodeMessageTooLarge, 1, 20_000)[0], publish.Options{})
		})
		synctest.Wait()
		var mu sync.Mutex
		var passed []time.Duration
		for range 5 {
			wg.Go(func() {
				mustPass(t, p, "t", batchOf(1, 200), publish.Options{})
				mu.Lock()
				defer mu.Unlock()
				passed = append(passed, time.Since(begun))
			})
		}
		wg.Wait()
		for i, at := range passed {
			if want := 500*time.Millisecond + time.Duration(i)*200*time.Millisecond; at < want-slackTime || at > want+slackTime {
				t.Errorf("message %d passed after %s, want %s", i, at, want)
			}
		}
	})
}

// The rate is that of what is sent, however much is refused beside it: it is
// reached, and never passed by more than the slack and one request of each client.
func TestRateHoldsBesideRefusals(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.Int64Range(50, 20_000).Draw(rt, "rate")
		clients := rapid.IntRange(1, 8).Draw(rt, "clients")
		batch := rapid.IntRange(1, 5).Draw(rt, "batch")
		refuse := rapid.IntRange(0, 3).Draw(rt, "refused of 4")
		after := time.Duration(rapid.IntRange(0, 15_000).Draw(rt, "refused after µs")) * time.Microsecond
		why := ""
		synctest.Test(t, func(t *testing.T) {
			const length = 2 * time.Second
			begun, sent := time.Now(), int64(0)
			var mu sync.Mutex
			f := &fussy{after: after, sent: func(publish.Message) {
				mu.Lock()
				defer mu.Unlock()
				sent++
				most := (time.Since(begun)+2*slackTime+tolerance+2*minSlot).Seconds()*float64(rate) + float64(1+clients*batch)
				if float64(sent) > most && why == "" {
					why = fmt.Sprintf("%d messages after %s, at most %.0f", sent, time.Since(begun), most)
				}
			}}
			p := newFussy(t, Config{MessagesPerSecond: rate, MaxWait: time.Minute}, f)
			bad := refusedWith(api.CodeTopicNotFound, batch, 0)
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for i := 0; time.Since(begun) < length; i++ {
						if i%4 < refuse {
							_, _ = p.PublishBatch(t.Context(), "t", bad, publish.Options{})
						}
						_, _ = p.PublishBatch(t.Context(), "t", batchOf(batch, 0), publish.Options{})
					}
				})
			}
			wg.Wait()
			if least := length.Seconds()*float64(rate)*0.98 - float64(clients*batch); after == 0 && float64(sent) < least && why == "" {
				why = fmt.Sprintf("%d messages in %s, at least %.0f", sent, length, least)
			}
		})
		if why != "" {
			rt.Fatal(why)
		}
	})
}
