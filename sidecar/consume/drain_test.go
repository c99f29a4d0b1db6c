package consume

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// rolling is what applications on several hosts saw during a rolling restart.
type rolling struct {
	mu    sync.Mutex // guards all below
	acked map[string]bool
	again []string // delivered after an ack of them had been answered
}

// consume works on a host until it drains; a message takes a moment.
func (r *rolling) consume(ctx context.Context, h *host) {
	for ctx.Err() == nil {
		r.mu.Lock()
		before := make(map[string]bool, len(r.acked))
		for id := range r.acked {
			before[id] = true
		}
		r.mu.Unlock()
		d, err := h.m.Pull(ctx, PullRequest{Group: "g", Topic: "views", Max: 7, Wait: 100 * time.Millisecond})
		if err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
		if len(d.Messages) == 0 {
			continue
		}
		resp, err := h.m.Ack(context.WithoutCancel(ctx), "g", "views", api.Receipts{Receipts: receiptsOf(d)})
		if err != nil {
			return
		}
		r.mu.Lock()
		for i, m := range d.Messages {
			if before[m.ID] {
				r.again = append(r.again, fmt.Sprintf("%s on %s", m.ID, h.id))
			}
			if resp.Results[i].Error == nil {
				r.acked[m.ID] = true
			}
		}
		r.mu.Unlock()
	}
}

// A deploy that stops one sidecar after the other repeats nothing that was
// acknowledged, and skips nothing.
func TestRollingRestartRepeatsNothing(t *testing.T) {
	t.Parallel()
	const partitions, each = 6, 150
	l := newLab(t, map[string]int32{"views": partitions})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	r := &rolling{acked: map[string]bool{}}
	patient := func(c *Config) { c.ReleaseWait = 10 * time.Second }
	begin := func(id string) *host {
		h := l.host(id, patient)
		for range 2 {
			wg.Go(func() { r.consume(ctx, h) })
		}
		return h
	}
	hosts := []*host{begin("a"), begin("b"), begin("c")}
	for i := range 3 {
		for p := range int32(partitions) {
			l.produce("views", p, i*each/3, each/3)
		}
		time.Sleep(100 * time.Millisecond)
		hosts[i].close()
		hosts = append(hosts, begin(fmt.Sprint(hosts[i].id, "2")))
	}
	eventually(t, "all acknowledged", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.acked) == partitions*each
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.again) > 0 {
		t.Errorf("%d messages were delivered again after their ack: %v", len(r.again), r.again[:min(5, len(r.again))])
	}
}

// The drain waits for what is out, hands out nothing meanwhile, and gives over
// what is not acknowledged in time.
func TestDrainWaitsForAcks(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 6)
	a := l.host("a", func(c *Config) { c.ReleaseWait = 3 * time.Second })
	b := l.host("b")
	req := PullRequest{Group: "g", Topic: "views", Max: 4, Lease: time.Minute}
	d := a.pullSome(req)
	b.pull(req)
	closed := make(chan struct{})
	begun := time.Now()
	go func() { defer close(closed); a.close() }()
	eventually(t, "draining", a.m.isDraining)
	_, err := a.m.Pull(t.Context(), req)
	wantCode(t, err, api.CodeDraining)
	a.ack("g", "views", d.Messages[0].Receipt, d.Messages[1].Receipt)
	<-closed
	if took := time.Since(begun); took < 2*time.Second {
		t.Errorf("did not wait for the acks: %s", took)
	}
	again := b.pullSome(PullRequest{Group: "g", Topic: "views"})
	if got := offsetsOf(again.Messages); got[:4] != "[2 3" || again.Messages[0].Attempt != 2 {
		t.Errorf("after the drain %s, attempt %d", got, again.Messages[0].Attempt)
	}
}

// Without the store a drain ends in its time, and leaves the rest to the end of
// the session.
func TestDrainWithoutTheStore(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 2)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 1, Lease: time.Minute})
	a.store.SetCut(true)
	a.ackAll("g", "views", d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begun := time.Now()
	if err := a.m.Close(ctx); err == nil {
		t.Error("a group was left without the store")
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("took %s", took)
	}
	// The ack is on this disk: its next life goes on behind it.
	a.kill()
	if err := l.store.DestroySession(t.Context(), a.sess.ID()); err != nil {
		t.Fatal(err)
	}
	a2 := l.hostIn("a", a.dir)
	if got := offsetsOf(a2.pullSome(PullRequest{Group: "g", Topic: "views"}).Messages); got != "[1]" {
		t.Errorf("the next life is given %s", got)
	}
}
