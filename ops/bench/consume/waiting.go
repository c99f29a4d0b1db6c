package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

const (
	waitingAtRest = "waiting at rest"
	waitingSoon   = "waiting latency"
)

// waitingPartitions lets a message of one partition come while others are out:
// a group with order=partition has one lease a partition.
const waitingPartitions = 16

// arrival is how soon messages came to waiting pulls, in one round.
type arrival struct {
	answered  []time.Duration // from the answer to the publisher to the answer of the pull, sorted; 0 where the pull came first
	published []time.Duration // from the begin of the publish, sorted
	result    measure.Result
}

// measureWaiting has many pulls wait at one sidecar, and measures what they cost
// while nothing comes and how soon they have what comes.
func (b *bench) measureWaiting(ctx context.Context) (err error) {
	rest, soon := b.o.only.MatchString(waitingAtRest), b.o.only.MatchString(waitingSoon)
	if !rest && !soon {
		return nil
	}
	s, err := b.system(ctx, sidestream)
	if err != nil {
		return err
	}
	o := s.(*ours)
	const topic = "waiting"
	if _, err := o.client.CreateTopic(ctx, topic, api.TopicSpec{Partitions: waitingPartitions}); err != nil {
		return err
	}
	w, err := startWaiters(ctx, o, topic, b.o.waiters)
	if err != nil {
		return err
	}
	defer func() { err = measure.FirstOf(err, w.stop()) }()
	for round := range b.o.rounds {
		if !rest {
			break
		}
		r, err := b.atRest(ctx, o, round)
		if err != nil {
			return err
		}
		b.quiet = append(b.quiet, r)
		measure.Progress("%s %d: %d pulls, CPU %.2f %% of a core", waitingAtRest, round+1, b.o.waiters, percent(r))
	}
	for round := range b.o.rounds {
		if !soon {
			break
		}
		a, err := b.arrivals(ctx, o, w, round)
		if err != nil {
			return err
		}
		b.soon = append(b.soon, a)
		measure.Progress("%s %d: p50 %v p99 %v p99.9 %v after the publisher's answer", waitingSoon, round+1,
			measure.Share(a.answered, 0.5), measure.Share(a.answered, 0.99), measure.Share(a.answered, 0.999))
	}
	return nil
}

// percent is the processor time of a measurement as part of one core.
func percent(r measure.Result) float64 { return 100 * r.CPU.Seconds() / r.Took.Seconds() }

func (b *bench) atRest(ctx context.Context, o *ours, round int) (measure.Result, error) {
	m := measure.Meter{Processes: []*measure.Process{o.sidecar}}
	if b.o.profile != "" {
		m.Profile = b.profileOf(waitingAtRest, round)
	}
	return m.Run(func() error {
		select {
		case <-time.After(b.o.quiet):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// waiters are pulls that wait at one sidecar, one after the other on each of
// many connections.
type waiters struct {
	cancel context.CancelFunc
	group  *errgroup.Group
	came   atomic.Pointer[[]atomic.Int64] // by number of the message: when it came, Unix nanoseconds
}

func startWaiters(ctx context.Context, o *ours, topic string, n int) (*waiters, error) {
	client, err := sdk.New(o.sidecar.Addr, sdk.WithHTTPClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}))
	if err != nil {
		return nil, err
	}
	w := &waiters{}
	ctx, w.cancel = context.WithCancel(ctx)
	w.group, ctx = errgroup.WithContext(ctx)
	var begun atomic.Int64
	for range n {
		w.group.Go(func() error {
			var acks []string
			for {
				begun.Add(1)
				pulled, err := client.Pull(ctx, topic, topic, sdk.PullOptions{Wait: 5 * time.Minute, Ack: acks})
				now := time.Now().UnixNano()
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				acks = acks[:0]
				for _, m := range pulled.Messages {
					acks = append(acks, m.Receipt)
					if err := w.note(m, now); err != nil {
						return err
					}
				}
			}
		})
	}
	for begun.Load() < int64(n) && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(3 * time.Second) // joined, and all of them wait
	return w, nil
}

// note remembers when a message came.
func (w *waiters) note(m api.Message, now int64) error {
	text, _, _ := strings.Cut(*m.Value, " ")
	i, err := strconv.Atoi(text)
	came := w.came.Load()
	if err != nil || came == nil || i >= len(*came) {
		return fmt.Errorf("message %s is none that was published: %q", m.ID, *m.Value)
	}
	if m.Attempt == 1 {
		(*came)[i].Store(now)
	}
	return nil
}

func (w *waiters) stop() error {
	w.cancel()
	return w.group.Wait()
}

// arrivals publishes single messages at a steady rate and sees when they come.
func (b *bench) arrivals(ctx context.Context, o *ours, w *waiters, round int) (a arrival, err error) {
	n := int(b.o.window.Seconds() * float64(b.o.rate))
	came := make([]atomic.Int64, n)
	w.came.Store(&came)
	begun, answered := make([]int64, n), make([]int64, n)
	m := measure.Meter{Processes: o.processes()}
	if b.o.profile != "" {
		m.Profile = b.profileOf(waitingSoon, round)
	}
	a.result, err = m.Run(func() error {
		ctx, cancel := context.WithTimeout(ctx, b.o.window+time.Minute)
		defer cancel()
		if err := publishEvenly(ctx, o.client, b.o.rate, begun, answered); err != nil {
			return err
		}
		return all(ctx, came)
	})
	if err != nil {
		return a, err
	}
	for i := range n {
		at := came[i].Load()
		a.answered = append(a.answered, time.Duration(max(0, at-answered[i])))
		a.published = append(a.published, time.Duration(at-begun[i]))
	}
	slices.Sort(a.answered)
	slices.Sort(a.published)
	a.result.Records = int64(n)
	return a, nil
}

// publishEvenly publishes a message at each tick whatever becomes of the others,
// and notes when each was begun and answered.
func publishEvenly(ctx context.Context, client *sdk.Client, rate int, begun, answered []int64) error {
	g, ctx := errgroup.WithContext(ctx)
	value := strings.Repeat("x", 90)
	start := time.Now()
	for i := range begun {
		if ahead := time.Duration(i)*time.Second/time.Duration(rate) - time.Since(start); ahead > 0 {
			time.Sleep(ahead)
		}
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			begun[i] = time.Now().UnixNano()
			_, err := client.Publish(ctx, "waiting", sdk.Message{Value: fmt.Appendf(nil, "%d %s", i, value)})
			answered[i] = time.Now().UnixNano()
			return err
		})
	}
	return g.Wait()
}

// all waits until every message has come.
func all(ctx context.Context, came []atomic.Int64) error {
	for i := range came {
		for came[i].Load() == 0 {
			select {
			case <-ctx.Done():
				return fmt.Errorf("message %d has not come: %w", i, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}
