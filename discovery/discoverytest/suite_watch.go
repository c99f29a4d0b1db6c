package discoverytest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	d "sidestream/discovery"
)

// follower calls Watch in a loop and keeps what came last.
type follower struct {
	mu     sync.Mutex // guards seen
	seen   string     // "key=value …"
	wakes  atomic.Int32
	cancel context.CancelFunc
	done   chan struct{}
}

func (f *fixture) follow(t *testing.T, store d.Store, prefix string) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	w := &follower{cancel: cancel, done: make(chan struct{})}
	first := make(chan struct{})
	go func() {
		defer close(w.done)
		var index uint64
		for {
			es, next, err := store.Watch(ctx, prefix, index)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("watch %q: %v", prefix, err)
				return
			}
			if next == index {
				continue // a wait that ended without news
			}
			parts := make([]string, len(es))
			for i, e := range es {
				parts[i] = fmt.Sprintf("%s=%s", e.Key, e.Value)
			}
			w.mu.Lock()
			w.seen = strings.Join(parts, " ")
			w.mu.Unlock()
			if w.wakes.Add(1) == 1 {
				close(first)
			}
			index = next
		}
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	await(t, "the first answer of a watch", first)
	return w
}

func (w *follower) sees(t *testing.T, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a watcher sees %q", want), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.seen == want
	})
}

func testWatchWakes(t *testing.T, f *fixture) {
	f.set(t, "p/a", "1")
	w := f.follow(t, open(t, f.Harness), "p/")
	w.sees(t, "p/a=1")
	f.set(t, "p/a", "2")
	w.sees(t, "p/a=2")
	f.set(t, "p/b", "x")
	w.sees(t, "p/a=2 p/b=x")
	f.commit(t, d.Delete("p/a"))
	w.sees(t, "p/b=x")
	f.commit(t, d.DeletePrefix("p/"))
	w.sees(t, "")
	f.set(t, "p/c", "y")
	w.sees(t, "p/c=y")

	// A change that happens between two watches is not missed.
	_, index, err := f.store.Watch(f.ctx, "p/", 0)
	if err != nil {
		t.Fatal(err)
	}
	f.set(t, "p/c", "z")
	f.set(t, "elsewhere", "1")
	es, next, err := f.store.Watch(f.ctx, "p/", index)
	if err != nil || len(es) != 1 || string(es[0].Value) != "z" || next <= index {
		t.Fatalf("watch from %d: %v, %d, %v", index, es, next, err)
	}
}

// testWatchIsBlocking: nothing under the prefix changed, so nothing returns.
func testWatchIsBlocking(t *testing.T, f *fixture) {
	f.set(t, "p/a", "1")
	w := f.follow(t, f.store, "p/")
	before := w.wakes.Load()
	for i := range 20 {
		f.set(t, "q/a", fmt.Sprint(i))
		f.set(t, "p/a", "1") // identical
	}
	// Something that does change comes after all those.
	f.set(t, "p/a", "2")
	w.sees(t, "p/a=2")
	if n := w.wakes.Load() - before; n > 3 {
		t.Fatalf("%d wakes for one change", n)
	}
}

func testWatchEmpty(t *testing.T, f *fixture) {
	w := f.follow(t, f.store, "none/")
	w.sees(t, "")
	f.set(t, "none/a", "1")
	w.sees(t, "none/a=1")

	es, index, err := f.store.Watch(f.ctx, "nothing/", 0)
	if err != nil || len(es) != 0 || index == 0 {
		t.Fatalf("watch of nothing: %v, %d, %v: index 0 would not block", es, index, err)
	}
}

func testWatchEphemeral(t *testing.T, f *fixture) {
	s := f.session(t, f.store)
	w := f.follow(t, open(t, f.Harness), "eph/")
	f.commit(t, d.Acquire("eph/a", []byte("1"), s.ID()), d.Acquire("eph/b", []byte("2"), s.ID()))
	w.sees(t, "eph/a=1 eph/b=2")
	if err := s.Destroy(f.ctx); err != nil {
		t.Fatal(err)
	}
	w.sees(t, "")
}

// testWatchCommitOnce: a watcher sees all of a commit or nothing of it.
func testWatchCommitOnce(t *testing.T, f *fixture) {
	const keys = 16
	write := func(value string) {
		ops := make([]d.Op, keys)
		for i := range ops {
			ops[i] = d.Set(fmt.Sprintf("p/%02d", i), []byte(value))
		}
		f.commit(t, ops...)
	}
	write("0")
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait
	last := make(chan struct{})
	wg.Go(func() {
		d.Follow(ctx, f.store, "p/", func(es []d.Entry) {
			for _, e := range es {
				if len(es) != keys || string(e.Value) != string(es[0].Value) || e.Version != es[0].Version {
					t.Errorf("%d keys; %s=%s beside %s=%s", len(es), e.Key, e.Value, es[0].Key, es[0].Value)
				}
			}
			if len(es) > 0 && string(es[0].Value) == "20" {
				cancel()
				close(last)
			}
		})
	})
	for i := range 20 {
		write(fmt.Sprint(i + 1))
	}
	await(t, "the last commit", last)
}

func testManyWatchers(t *testing.T, f *fixture) {
	const watchers = 30
	store := open(t, f.Harness)
	all := make([]*follower, watchers)
	for i := range all {
		all[i] = f.follow(t, store, fmt.Sprintf("p/%d", i%3))
	}
	start := time.Now()
	for i := range 5 {
		f.commit(t, d.Set("p/0", fmt.Append(nil, i)), d.Set("p/1", fmt.Append(nil, i)), d.Set("p/2", fmt.Append(nil, i)))
		for j, w := range all {
			w.sees(t, fmt.Sprintf("p/%d=%d", j%3, i))
		}
	}
	// Woken, not found by the wait's end.
	if took := time.Since(start); took > d.MaxWait/2 {
		t.Errorf("five changes took %s to reach %d watchers", took, watchers)
	}
}

func testFollow(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait
	states := make(chan string, 100)
	wg.Go(func() {
		err := d.Follow(ctx, f.store, "p/", func(es []d.Entry) {
			s := ""
			for _, e := range es {
				s += fmt.Sprintf("%s=%s ", e.Key, e.Value)
			}
			states <- s
		}, d.OnError(func(err error) { t.Error(err) }))
		if err == nil {
			t.Error("Follow ended without an error")
		}
	})
	next := func(want string) {
		t.Helper()
		select {
		case got := <-states:
			if got != want {
				t.Fatalf("state %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("no state, want %q", want)
		}
	}
	next("")
	f.set(t, "p/a", "1")
	next("p/a=1 ")
	f.set(t, "p/a", "1")
	f.set(t, "q", "1")
	f.set(t, "p/a", "2")
	next("p/a=2 ")
	cancel()
}
