package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sidestream/sdk"
)

// measured is what a step did.
type measured struct {
	messages int
	requests []time.Duration // of each request, where they are of interest
}

// latencies shows the middle and the slow end of the requests.
func (m measured) latencies() string {
	if len(m.requests) == 0 {
		return ""
	}
	slices.Sort(m.requests)
	at := func(share float64) time.Duration {
		return m.requests[min(int(share*float64(len(m.requests))), len(m.requests)-1)].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("  p50 %v p99 %v p99.9 %v", at(0.5), at(0.99), at(0.999))
}

// message has a few repeated words, as events do: neither random nor constant.
func message(size int) []byte {
	return bytes.Repeat([]byte(`{"event":"view","path":"/a/b/c","visitor":4711}`), size/47+1)[:size]
}

func publishBatches(ctx context.Context, client *sdk.Client, o options) (measured, error) {
	var left atomic.Int64
	left.Store(int64(o.messages))
	group, ctx := errgroup.WithContext(ctx)
	line := append(message(o.size), '\n')
	for range o.clients {
		group.Go(func() error {
			for {
				n := min(int64(o.batch), left.Add(-int64(o.batch))+int64(o.batch))
				if n <= 0 {
					return nil
				}
				result, err := client.PublishLines(ctx, "batches", bytes.Repeat(line, int(n)))
				if err == nil && result.Failed > 0 {
					err = fmt.Errorf("%d of %d were not written", result.Failed, n)
				}
				if err != nil {
					return err
				}
			}
		})
	}
	return measured{messages: o.messages}, group.Wait()
}

func publishSingles(ctx context.Context, client *sdk.Client, o options) (measured, error) {
	group, ctx := errgroup.WithContext(ctx)
	until := time.Now().Add(o.singles)
	value := message(o.size)
	var mu sync.Mutex // guards all
	var all measured
	for range o.clients {
		group.Go(func() error {
			var own []time.Duration
			for time.Now().Before(until) {
				start := time.Now()
				if _, err := client.Publish(ctx, "singles", sdk.Message{Value: value}); err != nil {
					return err
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all.requests = append(all.requests, own...)
			all.messages += len(own)
			return nil
		})
	}
	err := group.Wait()
	return all, err
}

func consumeAll(ctx context.Context, client *sdk.Client, o options) (measured, error) {
	group, ctx := errgroup.WithContext(ctx)
	var got atomic.Int64
	for range o.clients {
		group.Go(func() error {
			for got.Load() < int64(o.messages) {
				pulled, err := client.Pull(ctx, "bench", "batches", sdk.PullOptions{Max: o.batch, Wait: 200 * time.Millisecond})
				if err != nil {
					return err
				}
				if len(pulled.Messages) == 0 {
					continue
				}
				receipts := make([]string, len(pulled.Messages))
				for i, m := range pulled.Messages {
					receipts[i] = m.Receipt
				}
				if _, err := client.Ack(ctx, "bench", "batches", receipts...); err != nil {
					return err
				}
				got.Add(int64(len(receipts)))
			}
			return nil
		})
	}
	err := group.Wait()
	return measured{messages: int(got.Load())}, err
}

// cpuOf is the processor time that a process has used, from /proc (proc(5):
// utime and stime are the 14th and 15th field, in ticks of 1/100 s). 0 when it
// cannot be read.
func cpuOf(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may hold spaces
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
