package consume

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// keyWitness sees every delivery of a topic of one partition and says whether it
// keeps the order within keys: a message comes when all before it of its key are
// acknowledged, or stand before it in the same answer.
type keyWitness struct {
	keys string // by offset; a dot for none

	mu    sync.Mutex // guards acked
	acked map[int64]bool
}

// delivered is called with each answer.
func (w *keyWitness) delivered(t *testing.T, ms []api.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, m := range ms {
		if w.keys[m.Offset] == '.' {
			continue
		}
		for o := range m.Offset {
			before := slices.ContainsFunc(ms[:i], func(b api.Message) bool { return b.Offset == o })
			if w.keys[o] == w.keys[m.Offset] && !w.acked[o] && !before {
				t.Errorf("%d of key %c came before %d was acknowledged: %s", m.Offset, w.keys[m.Offset], o, offsetsOf(ms))
			}
		}
	}
}

// acks is called before an ack is sent: it may count before its answer is here.
func (w *keyWitness) acks(o int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked[o] = true
}

func (w *keyWitness) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.keys) - len(w.acked)
}

// TestOrderOfKeysHoldsUnderFailures: applications that pull beside each other
// nack, forget, repeat and lose answers at random, and their sidecar is killed
// twice; what has the same key still comes in order, and all of it comes.
func TestOrderOfKeysHoldsUnderFailures(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	w := &keyWitness{keys: strings.Repeat("abac.bad.cab", 25), acked: map[int64]bool{}}
	l.produceKeys("jobs", w.keys)
	a := l.host("a")
	unlimited := 0
	a.configure("g", api.GroupConfig{Order: "key", MaxAttempts: &unlimited})
	for life := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		var apps sync.WaitGroup
		for i := range 4 {
			apps.Go(func() { failingApp(t, ctx, a, w, rand.New(rand.NewPCG(uint64(life), uint64(i)))) })
		}
		if life == 2 {
			eventually(t, "all are acknowledged", func() bool { return w.left() == 0 })
		} else {
			time.Sleep(700 * time.Millisecond)
		}
		cancel()
		apps.Wait()
		if life < 2 {
			a.kill()
			a.endSession()
			a = l.hostIn("a", a.dir)
		}
	}
	// The last acks may have been sent only: what they did not settle comes again.
	for {
		d := a.pull(PullRequest{Group: "g", Topic: "jobs", Wait: time.Second, Lease: time.Minute})
		if len(d.Messages) == 0 && *d.Reason == api.ReasonAtEnd {
			break
		}
		a.ackAll("g", "jobs", d)
	}
	o, err := a.m.Offsets(t.Context(), "g", "jobs")
	if err != nil || o.Partitions[0].Position != int64(len(w.keys)) {
		t.Fatalf("%+v %v", o, err)
	}
}

// failingApp consumes badly until ctx is over.
func failingApp(t *testing.T, ctx context.Context, h *host, w *keyWitness, rng *rand.Rand) {
	for ctx.Err() == nil {
		d, err := h.m.Pull(ctx, PullRequest{Group: "g", Topic: "jobs", Max: 1 + rng.IntN(8), Wait: 50 * time.Millisecond, Lease: MinLease})
		if err != nil {
			continue
		}
		if rng.IntN(10) == 0 {
			d.Return() // the answer was lost
			continue
		}
		w.delivered(t, d.Messages)
		rng.Shuffle(len(d.Messages), func(i, j int) { d.Messages[i], d.Messages[j] = d.Messages[j], d.Messages[i] })
		for _, m := range d.Messages {
			r := api.Receipts{Receipts: []string{m.Receipt}}
			switch rng.IntN(12) {
			case 0:
				r.Delay = []string{"", "20ms", "150ms"}[rng.IntN(3)]
				_, _ = h.m.Nack(ctx, "g", "jobs", r)
			case 1: // forgotten, or so slow that its lease ends
			default:
				w.acks(m.Offset)
				_, _ = h.m.Ack(ctx, "g", "jobs", r)
			}
		}
	}
}
