package consume

import (
	"slices"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// share is this sidecar's part of one topic in one group: the partitions it
// owns and the pulls that wait for their messages.
type share struct {
	g         *group
	topic     string
	beginSlot chan struct{} // capacity 1: held while the group's beginning is resolved

	mu         sync.Mutex // guards all below
	subscribed bool       // applications pull it: the topic is in our membership
	lastPull   time.Time
	pulls      int              // under way
	owners     map[int32]*owner // taking, owned or being released
	ordered    []*owner         // the same by number; nil: to be made again
	turn       int              // where the next pull begins to look
	waiters    []*waiter        // first come, first served
	gone       *api.Error       // the brokers do not know the topic
	seekEpoch  uint64           // highest that the planner passed on
}

// waiter is a pull that waits. One that was woken is no longer in the list.
type waiter struct {
	woken chan struct{} // capacity 1
}

func newShare(g *group, topic string) *share {
	return &share{g: g, topic: topic, beginSlot: make(chan struct{}, 1), owners: map[int32]*owner{}}
}

// enter counts a pull in; leave counts it out. topicsChanged says that the
// membership must be told of the topic.
func (s *share) enter(now time.Time) (topicsChanged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls++
	s.lastPull = now
	topicsChanged = !s.subscribed
	s.subscribed = true
	return topicsChanged
}

func (s *share) leave(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls--
	s.lastPull = now
}

// idle says whether nobody pulled since a time and no lease is out.
func (s *share) idle(since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls > 0 || s.lastPull.After(since) {
		return false
	}
	for _, o := range s.owners {
		if o.inFlight() > 0 {
			return false
		}
	}
	return true
}

// unsubscribe takes the topic out of the membership if it is idle still.
func (s *share) unsubscribe(since time.Time) bool {
	if !s.idle(since) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls > 0 || s.lastPull.After(since) || !s.subscribed {
		return false
	}
	s.subscribed = false
	return true
}

func (s *share) isSubscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribed
}

// wait queues a pull.
func (s *share) wait() *waiter {
	w := &waiter{woken: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters = append(s.waiters, w)
	return w
}

// unwait takes a pull out of the queue. If it was woken meanwhile, what it was
// woken for goes to the next.
func (s *share) unwait(w *waiter) {
	s.mu.Lock()
	i := slices.Index(s.waiters, w)
	if i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		select {
		case <-w.woken:
			s.wake()
		default:
		}
	}
}

// wake tells the first waiting pull that there may be something for it. One at
// a time: a thousand waiting pulls must not all run for one message.
func (s *share) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiters) == 0 {
		return
	}
	kick(s.waiters[0].woken)
	s.waiters = slices.Delete(s.waiters, 0, 1)
}

// wakeAll tells every waiting pull: it has to answer now.
func (s *share) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiters {
		kick(w.woken)
	}
	s.waiters = nil
}

// list are the partitions here, by number. The caller must not change it.
func (s *share) list() []*owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

// sorted needs mu.
func (s *share) sorted() []*owner {
	if s.ordered == nil {
		s.ordered = make([]*owner, 0, len(s.owners))
		for _, o := range s.owners {
			s.ordered = append(s.ordered, o)
		}
		slices.SortFunc(s.ordered, func(a, b *owner) int { return int(a.key.Partition) - int(b.key.Partition) })
	}
	return s.ordered
}

// rotation is list, beginning with another partition each time.
func (s *share) rotation() []*owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	os := s.sorted()
	if len(os) < 2 {
		return os
	}
	s.turn++
	at := s.turn % len(os)
	return append(slices.Clone(os[at:]), os[:at]...)
}

func (s *share) owner(partition int32) *owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[partition]
}

// remove forgets a partition that is no longer owned.
func (s *share) remove(o *owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[o.key.Partition] == o {
		delete(s.owners, o.key.Partition)
		s.ordered = nil
	}
}

func (s *share) wantedEpoch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seekEpoch
}

func (s *share) setGone(e *api.Error) {
	s.mu.Lock()
	s.gone = e
	s.mu.Unlock()
	if e != nil {
		s.wakeAll()
	}
}

func (s *share) goneError() *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// tick ends leases that are over and wakes a pull when that, or a delay that is
// over, makes something ready.
func (s *share) tick(now time.Time) {
	ready := false
	var lag int64
	unknown, unreadable := 0, 0
	owned := false
	for _, o := range s.list() {
		view := o.tick(now)
		ready = ready || view.why == window.Ready && view.state == stateOwned
		owned = owned || view.state == stateOwned
		lag += view.lag
		switch {
		case view.unreadable:
			unreadable++
		case view.trouble != "":
			unknown++
		}
	}
	if ready {
		s.wake()
	}
	m := s.g.m.metrics
	if owned {
		m.lag.WithLabelValues(s.g.name, s.topic).Set(float64(lag))
	}
	m.lagUnknown.WithLabelValues(s.g.name, s.topic).Set(float64(unknown))
	m.unreadable.WithLabelValues(s.g.name, s.topic).Set(float64(unreadable))
}
