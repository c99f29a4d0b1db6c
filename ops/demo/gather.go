package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// side is one sidecar to pull through.
type side struct {
	name   string
	client *sdk.Client
}

const (
	pullMax   = 500
	pullWait  = 300 * time.Millisecond
	joinLimit = 20 * time.Second
	stall     = 8 * time.Second // without an arrival, what is missing will not come
)

// join makes every side a member of the group and waits until each owns part
// of the topic. It pulls nothing, for the topic is empty.
func join(ctx context.Context, sides []side, group, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	for {
		pulls := make([]error, len(sides))
		var wg sync.WaitGroup
		for i, s := range sides {
			wg.Go(func() {
				pulled, err := s.client.Pull(ctx, group, topic, sdk.PullOptions{Max: 1, Wait: 50 * time.Millisecond})
				if err == nil && len(pulled.Messages) > 0 {
					err = fmt.Errorf("sidecar %s pulled %s before anything was posted", s.name, pulled.Messages[0].ID)
				}
				pulls[i] = err
			})
		}
		wg.Wait()
		if err := errors.Join(pulls...); err != nil {
			return fmt.Errorf("joining group %s: %w", group, err)
		}
		g, err := sides[0].client.Group(ctx, group)
		if err != nil {
			return fmt.Errorf("asking for group %s: %w", group, err)
		}
		if shared(g, topic, len(sides)) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("group %s was not shared by %d sidecars within %v: %d members, %+v", group, len(sides), joinLimit, len(g.Members), g.Owners)
		}
	}
}

// shared reports whether all partitions of the topic have an owner and there
// are so many different ones.
func shared(g api.Group, topic string, owners int) bool {
	distinct := map[string]bool{}
	partitions := 0
	for _, p := range g.Owners {
		if p.Topic != topic {
			continue
		}
		if p.Owner == "" {
			return false
		}
		partitions++
		distinct[p.Owner] = true
	}
	return partitions > 0 && len(distinct) >= owners
}

// gather pulls and acknowledges through all sides at once until want messages
// have arrived and then every side found nothing more, or nothing arrived for
// a while. The arrivals are in the order in which they were pulled.
func gather(ctx context.Context, sides []side, group, topic string, want int) ([]Arrival, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &gathering{want: want, last: time.Now()}
	errs := make([]error, len(sides))
	var wg sync.WaitGroup
	for i, s := range sides {
		wg.Go(func() {
			if errs[i] = g.pull(ctx, s, group, topic); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return g.arrivals, errors.Join(errs...)
}

type gathering struct {
	want int

	mu       sync.Mutex
	arrivals []Arrival // guarded by mu
	last     time.Time // guarded by mu: of the last arrival
}

func (g *gathering) pull(ctx context.Context, s side, group, topic string) error {
	for {
		pulled, err := s.client.Pull(ctx, group, topic, sdk.PullOptions{Max: pullMax, Wait: pullWait})
		if err != nil {
			return fmt.Errorf("pulling through sidecar %s: %w", s.name, err)
		}
		if len(pulled.Messages) == 0 {
			if g.over(time.Now()) {
				return nil
			}
			continue
		}
		receipts := make([]string, len(pulled.Messages))
		arrived := make([]Arrival, len(pulled.Messages))
		for i, m := range pulled.Messages {
			value, err := m.ValueBytes()
			if err != nil {
				return err
			}
			receipts[i] = m.Receipt
			arrived[i] = Arrival{Sidecar: s.name, ID: m.ID, Value: string(value)}
		}
		g.add(arrived)
		acked, err := s.client.Ack(ctx, group, topic, receipts...)
		if err != nil {
			return fmt.Errorf("acknowledging through sidecar %s: %w", s.name, err)
		}
		if acked.Failed > 0 {
			return fmt.Errorf("acknowledging through sidecar %s: %d of %d refused", s.name, acked.Failed, len(receipts))
		}
	}
}

// add must come before the acknowledgement: what is acknowledged may be
// followed by another side's messages of the same partition.
func (g *gathering) add(arrived []Arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrivals = append(g.arrivals, arrived...)
	g.last = time.Now()
}

// over reports whether a pull that found nothing was the last: everything
// wanted is there, or it is not coming.
func (g *gathering) over(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.arrivals) >= g.want || now.Sub(g.last) > stall
}
