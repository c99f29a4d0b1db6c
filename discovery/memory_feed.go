package discovery

import (
	"slices"
	"strings"
)

// feedKept is how many changes a feed remembers; a watcher that is further
// behind is woken without need.
const feedKept = 4096

// feed tells watchers of the memory store what changed. Not locked.
type feed struct {
	log     []logged // by index
	floor   uint64   // changes up to here are forgotten
	waiters map[*waiter]struct{}
}

type logged struct {
	index uint64
	key   string
}

// waiter is one blocked watch.
type waiter struct {
	prefix string
	client *MemoryClient
	woken  chan struct{}
}

func newFeed(floor uint64) *feed {
	return &feed{floor: floor, waiters: map[*waiter]struct{}{}}
}

// publish logs a change and wakes those who wait for it.
func (f *feed) publish(index uint64, key string) {
	if len(f.log) == 2*feedKept {
		f.floor = f.log[feedKept-1].index
		f.log = append(f.log[:0], f.log[feedKept:]...)
	}
	f.log = append(f.log, logged{index, key})
	f.wake(func(w *waiter) bool { return strings.HasPrefix(key, w.prefix) })
}

// changedSince may say true without need.
func (f *feed) changedSince(prefix string, index uint64) bool {
	if index < f.floor {
		return true
	}
	from, _ := slices.BinarySearchFunc(f.log, index+1, func(l logged, i uint64) int {
		if l.index < i {
			return -1
		}
		return 1
	})
	for _, l := range f.log[from:] {
		if strings.HasPrefix(l.key, prefix) {
			return true
		}
	}
	return false
}

func (f *feed) wait(prefix string, c *MemoryClient) *waiter {
	w := &waiter{prefix: prefix, client: c, woken: make(chan struct{})}
	f.waiters[w] = struct{}{}
	return w
}

// wake ends the waits that match.
func (f *feed) wake(match func(*waiter) bool) {
	for w := range f.waiters {
		if match(w) {
			delete(f.waiters, w)
			close(w.woken)
		}
	}
}

// restart forgets all and wakes all: the history begins anew.
func (f *feed) restart(floor uint64) {
	f.log, f.floor = nil, floor
	f.wake(func(*waiter) bool { return true })
}
