package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
)

// load is what is asked of a server.
type load struct {
	step    string // single, lines, ndjson
	clients int
	events  int // of a request
	half    bool
}

func (l load) name() string {
	n := fmt.Sprintf("%s %dc", l.step, l.clients)
	if l.half {
		n += " half"
	}
	return n
}

const eventSize = 200 // bytes of an event

// bodyOf is the body of a request with so many events.
func bodyOf(step string, events int, values [][]byte) []byte {
	var b []byte
	for i := range events {
		v := values[i%len(values)]
		switch step {
		case "ndjson": // a whole line has the size of an event
			b = append(append(append(b, `{"value":`...), jsonOf(v)...), "}\n"...)
		case "lines":
			b = append(append(b, v...), '\n')
		default:
			b = append(b, v...)
		}
	}
	return b
}

// jsonOf is an event as a JSON object of its size: what it is made of is
// neither too short nor too regular.
func jsonOf(v []byte) []byte {
	end := bytes.LastIndexByte(v[:len(v)-len(`,"pad":""}`)], ',')
	pad := len(v) - end - len(`,"pad":""}`)
	out := append(append([]byte(nil), bytes.ReplaceAll(v[:end], []byte(`}{`), []byte(`, `))...), `,"pad":"`...)
	return append(append(out, bytes.Repeat([]byte{'x'}, pad)...), `"}`...)
}

// caller is one client: it brings the events of one request.
type caller interface {
	call(ctx context.Context) error
	close()
}

// drive has all callers bring events until the window ends: one after the
// other each, or with a rate (requests a second of all together) evenly, then
// times count from when a request should have begun. It returns how many
// requests were answered and their times, sorted.
func drive(ctx context.Context, callers []caller, window time.Duration, rate float64) (int64, []time.Duration, error) {
	var all measure.Samples
	var answered atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	end := begun.Add(window)
	for i, c := range callers {
		g.Go(func() error {
			var own []time.Duration
			defer func() { all.Add(own...); answered.Add(int64(len(own))) }()
			interval := time.Duration(0)
			next := begun
			if rate > 0 {
				interval = time.Duration(float64(len(callers)) / rate * float64(time.Second))
				next = next.Add(interval * time.Duration(i) / time.Duration(len(callers)))
			}
			for {
				now := time.Now()
				if rate > 0 {
					if ahead := next.Sub(now); ahead > 0 {
						time.Sleep(ahead)
					}
					now = next
					next = next.Add(interval)
				}
				if !now.Before(end) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := c.call(ctx); err != nil {
					return err
				}
				own = append(own, time.Since(now))
			}
		})
	}
	err := g.Wait()
	return answered.Load(), all.Sorted(), err
}
