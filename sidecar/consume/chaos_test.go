package consume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// TestNothingIsSkipped runs three sidecars under load through seeded faults and
// checks the one promise that may never break: a message that the group counts
// as acknowledged was delivered to an application, which acknowledged it.
func TestNothingIsSkipped(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			runChaos(t, seed)
		})
	}
}

const chaosPartitions = 6

type chaos struct {
	t    *testing.T
	lab  *lab
	rng  *rand.Rand
	apps map[string]*chaosApp

	mu    sync.Mutex // guards acked and order
	acked map[string]bool
}

// chaosApp is a sidecar with its application.
type chaosApp struct {
	h      *host
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func runChaos(t *testing.T, seed uint64) {
	l := newLab(t, map[string]int32{"views": chaosPartitions})
	c := &chaos{t: t, lab: l, rng: rand.New(rand.NewPCG(seed, 0)), apps: map[string]*chaosApp{}, acked: map[string]bool{}}
	for _, id := range []string{"a", "b", "c"} {
		c.start(id, t.TempDir())
	}
	produced := 0
	for step := range 8 {
		for p := range int32(chaosPartitions) {
			l.produce("views", p, produced, 15)
		}
		produced += 15
		id := []string{"a", "b", "c"}[c.rng.IntN(3)]
		app := c.apps[id]
		switch fault := c.rng.IntN(6); fault {
		case 0:
			t.Logf("step %d: kill -9 of %s", step, id)
			dir, old := app.h.dir, app.h.session()
			app.stop()
			app.h.kill()
			if c.rng.IntN(2) == 0 {
				c.pause(2500) // the others notice
			}
			// It comes back: its first deed is to end its earlier life.
			if err := l.store.DestroySession(t.Context(), old.ID()); err != nil {
				t.Fatal(err)
			}
			c.start(id, dir)
		case 1:
			t.Logf("step %d: the session of %s ends", step, id)
			app.h.endSession()
		case 2:
			t.Logf("step %d: the store is away", step)
			l.store.SetDown(true)
			c.pause(1500)
			l.store.SetDown(false)
		case 3:
			t.Logf("step %d: replies of the store are lost", step)
			l.store.LoseReplies(5)
		case 4:
			t.Logf("step %d: %s is cut off the store", step, id)
			app.h.store.SetCut(true)
			c.pause(1500)
			app.h.store.SetCut(false)
		case 5:
			t.Logf("step %d: %s stops in order", step, id)
			dir := app.h.dir
			app.stop()
			app.h.close()
			c.pause(200)
			c.start(id, dir)
		}
		c.pause(300)
	}
	// Everything is well again: the group gets to the end.
	want := int64(chaosPartitions * produced)
	eventually(t, "the end", func() bool {
		o, err := c.apps["a"].h.m.Offsets(t.Context(), "g", "views")
		if err != nil {
			return false
		}
		var sum int64
		for _, p := range o.Partitions {
			sum += p.Position
		}
		return sum == want && o.Lag == 0
	})
	for _, app := range c.apps {
		app.stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range int32(chaosPartitions) {
		for o := range int64(produced) {
			if id := MessageID("views", p, o); !c.acked[id] {
				t.Errorf("%s counts as acknowledged, but no application acknowledged it", id)
			}
		}
	}
}

func (c *chaos) pause(ms int) {
	time.Sleep(time.Duration(c.rng.IntN(ms)+ms/4) * time.Millisecond)
}

func (c *chaos) start(id, dir string) {
	h := c.lab.hostIn(id, dir)
	h.interval.Store(int64(200 * time.Millisecond))
	ctx, cancel := context.WithCancel(c.t.Context())
	app := &chaosApp{h: h, cancel: cancel}
	seed := c.rng.Uint64()
	app.wg.Go(func() { c.consume(ctx, h, rand.New(rand.NewPCG(seed, 1))) })
	c.apps[id] = app
}

func (a *chaosApp) stop() {
	a.cancel()
	a.wg.Wait()
}

// consume pulls, and acknowledges most of it: some in another order, some never,
// some it gives back.
func (c *chaos) consume(ctx context.Context, h *host, rng *rand.Rand) {
	for ctx.Err() == nil {
		d, err := h.m.Pull(ctx, PullRequest{Group: "g", Topic: "views", Max: 1 + rng.IntN(10), Wait: 100 * time.Millisecond, Lease: 400 * time.Millisecond})
		if err != nil {
			_ = pause(ctx, 20*time.Millisecond)
			continue
		}
		last := map[int32]int64{}
		var acks, nacks []string
		ids := map[string]string{}
		for _, m := range d.Messages {
			if before, ok := last[m.Partition]; ok && m.Offset <= before {
				c.t.Errorf("%s after %d in one delivery", m.ID, before)
			}
			last[m.Partition] = m.Offset
			ids[m.Receipt] = m.ID
			switch n := rng.IntN(20); {
			case n == 0:
			case n == 1:
				nacks = append(nacks, m.Receipt)
			default:
				acks = append(acks, m.Receipt)
			}
		}
		if rng.IntN(20) == 0 {
			d.Return()
			continue
		}
		rng.Shuffle(len(acks), func(i, j int) { acks[i], acks[j] = acks[j], acks[i] })
		if len(nacks) > 0 {
			_, _ = h.m.Nack(ctx, "g", "views", api.Receipts{Receipts: nacks})
		}
		if len(acks) == 0 {
			continue
		}
		// What the application asked to be acknowledged may count, whatever the
		// answer was; what it did not ask for may not.
		c.mu.Lock()
		for _, r := range acks {
			c.acked[ids[r]] = true
		}
		c.mu.Unlock()
		_, _ = h.m.Ack(ctx, "g", "views", api.Receipts{Receipts: acks})
	}
}
