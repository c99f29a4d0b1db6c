package consumer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"sidestream/discovery"
	"sidestream/sdk"
	"sidestream/sdk/api"
	"sidestream/sidecar"
)

// rig is brokers, a store and sidecars in this process.
type rig struct {
	t       *testing.T
	brokers *kfake.Cluster
	store   *discovery.Memory
}

func newRig(t *testing.T) *rig {
	t.Helper()
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(brokers.Close)
	store, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return &rig{t: t, brokers: brokers, store: store}
}

// host is one application's host: a sidecar that may be stopped and started at
// the same address.
type host struct {
	r      *rig
	cfg    sidecar.Config
	client *sdk.Client
	stop   func()
}

func (r *rig) host() *host {
	r.t.Helper()
	h := &host{r: r, cfg: sidecar.DefaultConfig()}
	h.cfg.DataDir = r.t.TempDir()
	h.cfg.Listen = "127.0.0.1:0"
	h.cfg.DrainTimeout = 5 * time.Second
	h.cfg.Consume.ReleaseWait = time.Second
	h.cfg.Consume.LeaveAfter = 2 * time.Second
	h.cfg.Consume.Recheck = 500 * time.Millisecond
	h.cfg.Kafka.Bootstrap = r.brokers.ListenAddrs()
	h.start()
	var err error
	if h.client, err = sdk.New(h.cfg.Listen); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(h.client.Close)
	return h
}

func (h *host) start() {
	h.r.t.Helper()
	s, err := sidecar.New(h.cfg, h.r.store, nil)
	if err != nil {
		h.r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.r.t.Errorf("the sidecar ended with %v", err)
		}
	})
	h.r.t.Cleanup(h.stop)
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- nil
		h.r.t.Fatalf("the sidecar does not start: %v", err)
	}
	h.cfg.Listen = s.Addr() // a restart is found at the same place
}

// publish writes n messages with keys, and returns how many each key has.
func (h *host) publish(n, keys int) {
	h.r.t.Helper()
	messages := make([]sdk.Message, n)
	for i := range messages {
		messages[i] = sdk.Message{Key: fmt.Append(nil, "k", i%keys), Value: fmt.Append(nil, i)}
	}
	if result, err := h.client.PublishBatch(h.r.t.Context(), "t", messages); err != nil || result.Failed > 0 {
		h.r.t.Fatalf("%+v, %v", result, err)
	}
}

// settled waits until the group has acknowledged everything.
func (h *host) settled(ctx context.Context, group string) {
	for ctx.Err() == nil {
		o, err := h.client.Offsets(ctx, group, "t")
		if err == nil && !o.Partial && o.Lag == 0 && len(o.Partitions) == 4 {
			acked := int64(0)
			for _, p := range o.Partitions {
				acked += p.Position
			}
			if acked > 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// witness notes what handlers get, and what they must not.
type witness struct {
	t    *testing.T
	lane func(api.Message) string

	mu     sync.Mutex // guards what follows
	done   map[string]int
	last   map[string]int64 // by lane: highest offset that was handled
	inside map[string]int   // by lane
	now    int
	most   int
}

func newWitness(t *testing.T, lane func(api.Message) string) *witness {
	return &witness{t: t, lane: lane, done: map[string]int{}, last: map[string]int64{}, inside: map[string]int{}}
}

func byPartition(m api.Message) string { return fmt.Sprint(m.Partition) }

// handler does the work, watched.
func (w *witness) handler(work func(context.Context, api.Message) error) sdk.Handler {
	return func(ctx context.Context, m api.Message) error {
		lane := w.lane(m)
		w.mu.Lock()
		w.now++
		w.most = max(w.most, w.now)
		if w.inside[lane]++; w.inside[lane] > 1 {
			w.t.Errorf("%s is handled beside another of lane %s", m.ID, lane)
		}
		w.mu.Unlock()
		err := work(ctx, m)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now--
		w.inside[lane]--
		if err == nil {
			if last, ok := w.last[lane]; ok && w.done[m.ID] == 0 && m.Offset < last {
				w.t.Errorf("%s is handled for the first time after offset %d", m.ID, last)
			}
			w.last[lane] = max(w.last[lane], m.Offset)
			w.done[m.ID]++
		}
		return err
	}
}

// check demands that all were handled, and none more often than at most.
func (w *witness) check(n, most int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.done) != n {
		w.t.Errorf("%d messages were handled, want %d", len(w.done), n)
	}
	for id, times := range w.done {
		if times > most {
			w.t.Errorf("%s was handled %d times", id, times)
		}
	}
}
