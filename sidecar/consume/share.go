package consume

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// share is this sidecar's part of one topic in one group: the partitions it
// owns.
type share struct {
	g         *group
	topic     string
	beginSlot chan struct{}                   // capacity 1: held while the group's beginning is resolved
	subs      atomic.Pointer[[]*subscription] // that choose the topic

	mu        sync.Mutex       // guards all below
	owners    map[int32]*owner // taking, owned or being released
	ordered   []*owner         // the same by number; nil: to be made again
	served    int32            // the partition that a pull was served from last
	gone      *api.Error       // the brokers do not know the topic
	seekEpoch uint64           // highest that the planner passed on
}

func newShare(g *group, topic string) *share {
	return &share{g: g, topic: topic, beginSlot: make(chan struct{}, 1), owners: map[int32]*owner{}, served: -1}
}

// leased says whether a lease is out.
func (s *share) leased() bool {
	return slices.ContainsFunc(s.list(), func(o *owner) bool { return o.inFlight() > 0 })
}

// ready counts the messages that could be handed out now.
func (s *share) ready(now time.Time) (n int) {
	if s.g.isPaused(s.topic) {
		return 0
	}
	if s.g.isPaused(s.topic) {
		return 0
	}
	for _, o := range s.list() {
		n += o.ready(now)
	}
	return n
}

// ready counts the messages that could be handed out now; it is an upper bound.
func (o *owner) ready(now time.Time) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != stateOwned || o.win == nil || o.win.Why(now) != window.Ready {
		return 0
	}
	return o.win.Waiting()
}

// subscriptions are those that choose the topic.
func (s *share) subscriptions() []*subscription {
	if subs := s.subs.Load(); subs != nil {
		return *subs
	}
	return nil
}

// isSubscribed says whether applications pull the topic here.
func (s *share) isSubscribed() bool { return len(s.subscriptions()) > 0 }

// wake tells the pull that waits longest that there may be something for it. One
// at a time: a thousand waiting pulls must not all run for one message.
func (s *share) wake() {
	for subs := s.subscriptions(); ; {
		var next *subscription
		first := uint64(0)
		for _, sub := range subs {
			if ticket, waits := sub.front(); waits && (next == nil || ticket < first) {
				next, first = sub, ticket
			}
		}
		if next == nil || next.wakeOne(s) {
			return
		}
	}
}

// wakeAll tells every pull that waits for the topic: it has to look anew.
func (s *share) wakeAll() {
	for _, sub := range s.subscriptions() {
		sub.wakeAll()
	}
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

// turn is list beginning with the partition after the one that was served last.
func (s *share) turn() []*owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	os := s.sorted()
	if len(os) < 2 {
		return os
	}
	at := 0
	for at < len(os) && os[at].key.Partition <= s.served {
		at++
	}
	return append(slices.Clone(os[at:]), os[:at]...)
}

// serve remembers whose turn it was.
func (s *share) serve(partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served = partition
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
	defer func() {
		if s.g.m.lookup(s.g.name) != s.g || s.g.share(s.topic) != s { // left meanwhile, with its gauges
			for _, g := range m.gauges() {
				g.DeleteLabelValues(s.g.name, s.topic)
			}
		}
	}()
	if owned {
		m.lag.WithLabelValues(s.g.name, s.topic).Set(float64(lag))
	} else {
		m.lag.DeleteLabelValues(s.g.name, s.topic) // another sidecar counts it now
	}
	m.lagUnknown.WithLabelValues(s.g.name, s.topic).Set(float64(unknown))
	m.unreadable.WithLabelValues(s.g.name, s.topic).Set(float64(unreadable))
}
