package chaos

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// targets are the sidecars that a load works through, each with what the load
// knows of its health.
type targets struct {
	mu   sync.Mutex // guards of
	of   map[*Process]*target
	list []*Process
}

// target is a sidecar as the load knows it.
type target struct {
	faulty  bool      // whatever happens there has a reason
	changed time.Time // when faulty last changed
}

func newTargets(ps []*Process) *targets {
	ts := &targets{of: map[*Process]*target{}, list: slices.Clone(ps)}
	for _, p := range ps {
		ts.of[p] = &target{}
	}
	return ts
}

// Faulty says that a sidecar is (or is no more) in a state in which it need not
// answer.
func (ts *targets) Faulty(p *Process, is bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.of[p].faulty, ts.of[p].changed = is, time.Now()
}

// Healthy lists the sidecars that are not faulty, by name.
func (ts *targets) Healthy() (ps []*Process) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, p := range ts.list {
		if !ts.of[p].faulty {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(a, b *Process) int { return strings.Compare(a.Name, b.Name) })
	return ps
}

// excused says whether a sidecar was faulty at any time since.
func (ts *targets) excused(p *Process, since time.Time) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.of[p]
	return t.faulty || !t.changed.Before(since)
}
