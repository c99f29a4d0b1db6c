package consume

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

// crashing is a store that one of its host's commits is the last thing of: it is
// not applied, or it is and the host never learns it.
type crashing struct {
	discovery.Store
	client *discovery.MemoryClient
	dies   chan struct{}

	mu      sync.Mutex // guards all below
	left    int        // commits until then
	applied bool
	over    bool
}

func (c *crashing) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	c.mu.Lock()
	c.left--
	now := c.left == 0
	c.over = c.over || now
	gone := c.over && !now
	c.mu.Unlock()
	switch {
	case gone:
		return nil, discovery.ErrUnavailable
	case !now:
		return c.Store.Commit(ctx, ops...)
	}
	if c.applied {
		_, _ = c.Store.Commit(ctx, ops...)
	}
	c.client.SetCut(true)
	close(c.dies)
	return nil, discovery.ErrUnavailable
}

// crashRun is one life of a sidecar that ends at a commit, and what follows it.
type crashRun struct {
	group    string
	topic    string
	messages int

	mu    sync.Mutex      // guards both below
	acked map[string]bool // ids whose ack was answered 200
	tried map[string]bool // and those whose ack was sent
}

// live consumes some of the topic, with acks out of order and a nack, has its
// position checkpointed on the way, and stops as on SIGTERM.
func (r *crashRun) live(ctx context.Context, h *host) {
	pulled := 0
	for pulled < 8 && ctx.Err() == nil {
		d, err := h.m.Pull(ctx, PullRequest{Group: r.group, Topic: r.topic, Max: 4, Wait: time.Second, Lease: time.Minute})
		if err != nil {
			return
		}
		pulled += len(d.Messages)
		for i := len(d.Messages) - 1; i >= 0; i-- {
			if m := d.Messages[i]; i == 1 && m.Attempt == 1 {
				_, _ = h.m.Nack(ctx, r.group, r.topic, api.Receipts{Receipts: []string{m.Receipt}})
			} else {
				r.ack(ctx, h, m)
			}
		}
		_ = h.checkpoint.FlushKey(ctx, offsets.Key{Group: r.group, Topic: r.topic})
	}
	if ctx.Err() == nil {
		_ = h.m.Close(ctx)
	}
}

func (r *crashRun) ack(ctx context.Context, h *host, m api.Message) {
	r.mu.Lock()
	r.tried[m.ID] = true
	r.mu.Unlock()
	if resp, err := h.m.Ack(ctx, r.group, r.topic, api.Receipts{Receipts: []string{m.Receipt}}); err == nil && resp.OK == 1 {
		r.mu.Lock()
		r.acked[m.ID] = true
		r.mu.Unlock()
	}
}

// before is the life of an earlier owner: it is killed with messages out, some of
// them acknowledged, and checkpointed.
func (r *crashRun) before(t *testing.T, h *host, order string) {
	t.Helper()
	h.configure(r.group, api.GroupConfig{Order: order})
	d := h.pullSome(PullRequest{Group: r.group, Topic: r.topic, Max: 3, Lease: time.Minute})
	for _, m := range d.Messages[1:] {
		r.ack(t.Context(), h, m)
	}
	if err := h.checkpoint.FlushKey(t.Context(), offsets.Key{Group: r.group, Topic: r.topic}); err != nil {
		t.Fatal(err)
	}
	h.kill()
	h.endSession()
}

// finish consumes what is left at h, and reports what was delivered that had
// been acknowledged before.
func (r *crashRun) finish(t *testing.T, h *host) (repeated []string) {
	t.Helper()
	before := make(map[string]bool, len(r.acked))
	for id := range r.acked {
		before[id] = true
	}
	end := time.Now().Add(deadline)
	for {
		d := h.pull(PullRequest{Group: r.group, Topic: r.topic, Max: 5, Wait: 200 * time.Millisecond, Lease: time.Minute})
		for _, m := range d.Messages {
			if before[m.ID] {
				repeated = append(repeated, m.ID)
			}
			r.ack(t.Context(), h, m)
		}
		if len(d.Messages) == 0 && *d.Reason == api.ReasonAtEnd {
			return repeated
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d of %d in %s, reason %v; status %+v", h.id, len(r.acked), r.messages, deadline, d.Reason, h.m.Status())
		}
	}
}

// TestCrashAtEveryCommit ends a sidecar that takes over from another at each of
// its commits to the coordination store, from the first of its membership through lock, claim,
// checkpoint and release to the last of its leaving: before it is applied, and
// after it was. Whoever follows, the same host or another, nothing is skipped;
// the same host repeats nothing whose ack was answered, and nothing at all once
// everybody has met.
func TestCrashAtEveryCommit(t *testing.T) {
	t.Parallel()
	const most, messages = 60, 12
	topics := map[string]int32{}
	name := func(at int, applied bool, order string) string {
		return fmt.Sprintf("jobs-%s-%d-%v", order, at, applied)
	}
	for at := range most {
		for _, applied := range []bool{false, true} {
			topics[name(at, applied, "key")], topics[name(at, applied, "partition")] = 1, 1
		}
	}
	l := newLab(t, topics)
	var crashes sync.Map // by id: the store of a host's first life
	l.wrap = func(id string, client *discovery.MemoryClient) discovery.Store {
		v, ok := crashes.LoadAndDelete(id)
		if !ok {
			return client
		}
		c := v.(*crashing)
		c.Store, c.client = client, client
		return c
	}
	for _, order := range []string{"key", "partition"} {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprint(order, applied), func(t *testing.T) {
				t.Parallel()
				l := &lab{t: t, kafka: l.kafka, store: l.store, prod: l.prod, wrap: l.wrap}
				for at := 1; ; at++ {
					if at == most {
						t.Fatalf("a life has more than %d commits", most)
					}
					r := &crashRun{topic: name(at, applied, order), messages: messages, acked: map[string]bool{}, tried: map[string]bool{}}
					r.group = r.topic
					l.produce(r.topic, 0, 0, messages)
					c := &crashing{dies: make(chan struct{}), left: at, applied: applied}
					crashes.Store("a-"+r.topic, c)
					if r.run(t, l, c, at, order) {
						if at < 10 {
							t.Errorf("only %d commits: the life was cut short", at-1)
						}
						return
					}
				}
			})
		}
	}
}

// run is a life that ends at a commit, and those after it. survived says that it
// came to its own end.
func (r *crashRun) run(t *testing.T, l *lab, c *crashing, at int, order string) (survived bool) {
	r.before(t, l.host("z-"+r.topic), order)
	id := "a-" + r.topic
	a := l.host(id)
	a.interval.Store(int64(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lived := make(chan struct{})
	go func() {
		defer close(lived)
		r.live(ctx, a)
	}()
	select {
	case <-c.dies:
		cancel()
		<-lived
	case <-lived:
		select {
		case <-c.dies:
		default:
			survived = true
		}
	}
	a.kill()
	a.endSession()
	heir, other := l.hostIn(id, a.dir), l.host("b-"+r.topic)
	defer heir.close()
	defer other.close()
	if at%2 == 0 {
		heir, other = other, heir
	}
	repeated := r.finish(t, heir)
	if len(r.tried) != r.messages {
		t.Errorf("crash at commit %d: %d of %d messages were delivered", at, len(r.tried), r.messages)
	}
	if heir.id == id && len(repeated) > 0 {
		t.Errorf("crash at commit %d: the acks of %v were answered, and they came again at the same host", at, repeated)
	}
	if survived && len(repeated) > 0 {
		t.Errorf("after a clean stop %v came again", repeated)
	}
	// The other one meets the heir's position: there is nothing left for it.
	heir.close()
	if again := r.finish(t, other); len(again) > 0 {
		t.Errorf("crash at commit %d: %v came again at the next host", at, again)
	}
	return survived
}

// An ack that did not reach the disk is not answered 200, and its message comes
// again.
func TestAckThatIsNotOnDisk(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 3)
	a := l.host("a")
	a.interval.Store(int64(time.Hour))
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute})
	a.ack("g", "jobs", d.Messages[0].Receipt)
	if err := a.local.Close(); err != nil {
		t.Fatal(err)
	}
	if r := a.ack("g", "jobs", d.Messages[1].Receipt); r.OK != 0 || r.Results[0].Error.Code != api.CodeUnknownOutcome {
		t.Fatalf("%+v", r)
	}
	a.kill()
	a.endSession()
	d = l.hostIn("a", a.dir).pullSome(PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute})
	if got := offsetsOf(d.Messages); got != "[1 2]" {
		t.Fatal(got)
	}
}
