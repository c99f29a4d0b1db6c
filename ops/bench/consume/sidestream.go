package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sidestream/ops/bench/measure"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

// ours is a broker and a sidecar, and the client that an application would use.
type ours struct {
	broker, sidecar *measure.Process
	client          *sdk.Client
	runs            int // groups made
}

// partitions of the topic that is read: as many as there are pulls at once.
const partitions = 8

func startOurs(ctx context.Context, dir string) (*ours, error) {
	start := func(name string, args ...string) (*measure.Process, error) {
		data, profile := filepath.Join(dir, name, "data"), filepath.Join(dir, name, "cpu.pprof")
		if err := os.MkdirAll(data, 0o755); err != nil {
			return nil, err
		}
		p, err := measure.StartRole(ctx, name, name, data, append([]string{data, profile}, args...)...)
		if err == nil {
			p.Profile = profile
		}
		return p, err
	}
	o := &ours{}
	var err error
	if o.broker, err = start("agent"); err != nil {
		return nil, err
	}
	if o.sidecar, err = start("sidecar", o.broker.Addr); err != nil {
		return nil, errors.Join(err, o.stop())
	}
	if o.client, err = sdk.New(o.sidecar.Addr); err != nil {
		return nil, errors.Join(err, o.stop())
	}
	return o, nil
}

func (o *ours) processes() []*measure.Process { return []*measure.Process{o.broker, o.sidecar} }

func (o *ours) stop() error {
	var errs []error
	if o.client != nil {
		o.client.Close()
	}
	for _, p := range []*measure.Process{o.sidecar, o.broker} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

// fill publishes messages through the sidecar, 1,000 in a request, a line each.
func (o *ours) fill(ctx context.Context, topic string, size int, messages int64) error {
	if _, err := o.client.CreateTopic(ctx, topic, api.TopicSpec{Partitions: partitions}); err != nil {
		return err
	}
	const batch = 1000
	var body []byte
	for _, p := range measure.Payloads(size, true)[:batch] {
		body = append(append(body, p...), '\n')
	}
	var left atomic.Int64
	left.Store(messages / batch)
	g, ctx := errgroup.WithContext(ctx)
	for range partitions {
		g.Go(func() error {
			for left.Add(-1) >= 0 {
				r, err := o.client.PublishLines(ctx, topic, body)
				if err == nil && r.Failed > 0 {
					err = fmt.Errorf("%d of %d messages were not written", r.Failed, batch)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// consume reads the topic once for a new group and acknowledges every message:
// the receipts of a batch go with the next pull.
func (o *ours) consume(ctx context.Context, topic string, l load, messages int64) (measured, error) {
	o.runs++
	group := fmt.Sprintf("bench-%d", o.runs)
	// The group is made, joined and reads ahead before the clock runs, as a
	// consumer of JetStream is made before.
	first, err := o.client.Pull(ctx, group, topic, sdk.PullOptions{Max: 1, Wait: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	if len(first.Messages) != 1 {
		return nil, fmt.Errorf("the first pull is empty: %s", *first.Reason)
	}
	if err := o.owned(ctx, group); err != nil {
		return nil, err
	}
	var got, again atomic.Int64
	return func(ctx context.Context) (times []time.Duration, err error) {
		var all measure.Samples
		got.Store(1)
		acks := make([][]string, l.pullers)
		acks[0] = receipts(nil, first.Messages)
		g, ctx := errgroup.WithContext(ctx)
		for i := range l.pullers {
			g.Go(func() error {
				own, err := o.pull(ctx, group, topic, l.batch, acks[i], &got, &again, messages)
				all.Add(own...)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		if got.Load() != messages || again.Load() > 0 {
			return nil, fmt.Errorf("%d messages came and %d of them again: want %d", got.Load(), again.Load(), messages)
		}
		return all.Sorted(), nil
	}, nil
}

// pull pulls and acknowledges until all messages have come.
func (o *ours) pull(ctx context.Context, group, topic string, batch int, acks []string, got, again *atomic.Int64, messages int64) (times []time.Duration, err error) {
	for {
		begun := time.Now()
		wait := 200 * time.Millisecond
		if got.Load() >= messages { // what is left is to acknowledge the last
			if len(acks) == 0 {
				return times, nil
			}
			wait = 0
		}
		pulled, err := o.client.Pull(ctx, group, topic, sdk.PullOptions{Max: batch, Wait: wait, Ack: acks})
		if err != nil {
			return nil, err
		}
		if pulled.Acks != nil && pulled.Acks.Failed > 0 {
			return nil, fmt.Errorf("%d receipts were refused: %v", pulled.Acks.Failed, pulled.Acks.Results[0].Error)
		}
		acks = receipts(acks[:0], pulled.Messages)
		if len(acks) == 0 {
			continue
		}
		times = append(times, time.Since(begun))
		for _, m := range pulled.Messages {
			if m.Attempt > 1 {
				again.Add(1)
			}
			if m.Value == nil {
				return nil, fmt.Errorf("message %s came without its text", m.ID)
			}
		}
		got.Add(int64(len(acks)))
	}
}

func receipts(to []string, ms []api.Message) []string {
	for _, m := range ms {
		to = append(to, m.Receipt)
	}
	return to
}

// owned waits until all partitions of the group are here.
func (o *ours) owned(ctx context.Context, group string) error {
	for range 400 {
		g, err := o.client.Group(ctx, group)
		if err != nil {
			return err
		}
		n := 0
		for _, p := range g.Owners {
			if p.Owner != "" {
				n++
			}
		}
		if n == partitions {
			time.Sleep(500 * time.Millisecond) // it has read ahead
			return nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("group %s does not own its %d partitions", group, partitions)
}

// forget ends a group's reading ahead: it waits until the sidecar has left.
func (o *ours) forget(ctx context.Context, _ string) error {
	for end := time.Now().Add(time.Minute); ; {
		err := o.client.DeleteGroup(ctx, fmt.Sprintf("bench-%d", o.runs))
		if !errors.Is(err, &api.Error{Code: api.CodeGroupConfig}) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
