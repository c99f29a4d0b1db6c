package consume

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// subscription is a choice of topics that applications pull here, and the pulls
// that wait for its messages. Pulls of the same choice share one.
type subscription struct {
	g      *group
	choice choice

	mu       sync.Mutex // guards all below
	shares   []*share   // of the topics chosen, by name; never changed in place
	pulls    int        // under way
	lastPull time.Time
	waiters  []*waiter // first come, first served
	served   string    // the topic that a pull was served from last
}

// waiter is a pull that waits. One that was woken is no longer in the list.
type waiter struct {
	woken  chan struct{} // capacity 1
	ticket uint64        // of two waiters, whoever came first has the lower one
	by     *share        // that woke it; nil: all were woken
}

// enter counts a pull in; leave counts it out.
func (sub *subscription) enter(now time.Time) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.pulls++
	sub.lastPull = now
}

func (sub *subscription) leave(now time.Time) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.pulls--
	sub.lastPull = now
}

// list are the topics chosen, as far as they are known here, by name. The
// caller must not change it.
func (sub *subscription) list() []*share {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	return sub.shares
}

// turn is list beginning with the topic after the one that was served last, so
// that each has its turn whatever the others hold.
func (sub *subscription) turn() []*share {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	ss := sub.shares
	if len(ss) < 2 {
		return ss
	}
	at := 0
	for at < len(ss) && ss[at].topic <= sub.served {
		at++
	}
	return append(slices.Clone(ss[at:]), ss[:at]...)
}

// serve remembers whose turn it was.
func (sub *subscription) serve(topic string) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.served = topic
}

// idle says whether nobody pulled since a time and no lease is out.
func (sub *subscription) idle(since time.Time) bool {
	sub.mu.Lock()
	ss, busy := sub.shares, sub.pulls > 0 || sub.lastPull.After(since)
	sub.mu.Unlock()
	return !busy && !slices.ContainsFunc(ss, (*share).leased)
}

// wait queues a pull.
func (sub *subscription) wait() *waiter {
	w := &waiter{woken: make(chan struct{}, 1)}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	w.ticket = sub.g.tickets.Add(1)
	sub.waiters = append(sub.waiters, w)
	return w
}

// unwait takes a pull out of the queue. If it was woken meanwhile, what it was
// woken for goes to the next.
func (sub *subscription) unwait(w *waiter) {
	sub.mu.Lock()
	i := slices.Index(sub.waiters, w)
	if i >= 0 {
		sub.waiters = slices.Delete(sub.waiters, i, i+1)
	}
	by := w.by
	sub.mu.Unlock()
	if i >= 0 || by == nil {
		return
	}
	select {
	case <-w.woken:
		by.wake()
	default:
	}
}

// waiting counts the pulls that wait.
func (sub *subscription) waiting() int {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	return len(sub.waiters)
}

// front is the ticket of the pull that waits longest.
func (sub *subscription) front() (ticket uint64, waits bool) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if len(sub.waiters) == 0 {
		return 0, false
	}
	return sub.waiters[0].ticket, true
}

// wakeOne tells the first pull that there may be something for it; false when
// none waits.
func (sub *subscription) wakeOne(by *share) bool {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if len(sub.waiters) == 0 {
		return false
	}
	w := sub.waiters[0]
	sub.waiters = slices.Delete(sub.waiters, 0, 1)
	w.by = by
	kick(w.woken)
	return true
}

// wakeAll tells every waiting pull to look anew.
func (sub *subscription) wakeAll() {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	for _, w := range sub.waiters {
		kick(w.woken)
	}
	sub.waiters = nil
}

// setShares puts other topics in place; waiting pulls look anew.
func (sub *subscription) setShares(ss []*share) {
	sub.mu.Lock()
	same := slices.Equal(sub.shares, ss)
	sub.shares = ss
	sub.mu.Unlock()
	if !same {
		sub.wakeAll()
	}
}

// subscription finds that of a choice; nil when nobody here pulls it.
func (g *group) subscription(c choice) *subscription {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.subs[c.text]
}

// enter counts a pull in; false when the group is being left.
func (g *group) enter(c choice) (*subscription, bool) {
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		return nil, false
	}
	sub := g.subs[c.text]
	changed := sub == nil
	if changed {
		sub = &subscription{g: g, choice: c}
		g.subs[c.text] = sub
		for _, topic := range c.names {
			if g.shares[topic] == nil {
				g.shares[topic] = newShare(g, topic)
			}
		}
		g.relink()
	}
	// Under mu, so that the group cannot decide meanwhile that it is idle.
	sub.enter(time.Now())
	g.mu.Unlock()
	if changed {
		kick(g.poke)
	}
	return sub, true
}

// relink brings subscriptions and shares together. It needs mu.
func (g *group) relink() {
	all := g.sorted()
	of := map[*share][]*subscription{}
	for _, sub := range g.subs {
		var ss []*share
		for _, s := range all {
			if g.chooses(sub.choice, s.topic) {
				ss = append(ss, s)
				of[s] = append(of[s], sub)
			}
		}
		sub.setShares(ss)
	}
	for _, s := range all {
		subs := of[s]
		s.subs.Store(&subs)
	}
}

// chooses says whether a choice includes a topic in this group. It needs mu.
func (g *group) chooses(c choice, topic string) bool {
	return c.named(topic) || matchAny(c.patterns, topic) && topic != ownDead(g.name, g.config)
}

// subscribes says whether anybody here pulls a topic. It needs mu.
func (g *group) subscribes(topic string) bool {
	for _, sub := range g.subs {
		if g.chooses(sub.choice, topic) {
			return true
		}
	}
	return false
}

// follow makes the shares of topics that are assigned and that nobody here
// named, since patterns match them, and forgets those of which nothing is left.
func (g *group) follow(partitions map[string][]int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := false
	for topic := range partitions {
		if g.shares[topic] == nil && !isPattern(topic) && g.subscribes(topic) {
			g.shares[topic] = newShare(g, topic)
			changed = true
		}
	}
	for topic, s := range g.shares {
		if _, told := partitions[topic]; told && g.subscribes(topic) || g.named(topic) || len(s.list()) > 0 {
			continue
		}
		delete(g.shares, topic)
		g.m.leaveSeries(seriesOf{g.name, topic})
		changed = true
	}
	if changed {
		g.relink()
	}
}

// named says whether anybody here pulls a topic by its name. It needs mu.
func (g *group) named(topic string) bool {
	for _, sub := range g.subs {
		if sub.choice.named(topic) {
			return true
		}
	}
	return false
}

// sorted are the shares by topic. It needs mu.
func (g *group) sorted() []*share {
	ss := make([]*share, 0, len(g.shares))
	for _, s := range g.shares {
		ss = append(ss, s)
	}
	slices.SortFunc(ss, func(a, b *share) int { return strings.Compare(a.topic, b.topic) })
	return ss
}

func (g *group) all() []*share {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sorted()
}

// topics are the names and patterns that applications pull here, sorted.
func (g *group) topics() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ts []string
	for _, sub := range g.subs {
		ts = append(ts, sub.choice.items()...)
	}
	slices.Sort(ts)
	return slices.Compact(ts)
}

// patterns are those that applications pull here.
func (g *group) patterns() []string {
	return slices.DeleteFunc(g.topics(), func(item string) bool { return !isPattern(item) })
}

// anyIdle says whether there is a subscription to end: one that nobody pulled
// since a time, or none at all.
func (g *group) anyIdle(since time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, sub := range g.subs {
		if sub.idle(since) {
			return true
		}
	}
	return len(g.subs) == 0
}

// dropIdle ends the subscriptions that nobody pulled since a time.
func (g *group) dropIdle(since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for text, sub := range g.subs {
		if sub.idle(since) {
			delete(g.subs, text)
		}
	}
	g.relink()
}

// closeIfIdle decides to leave when nothing has been pulled since a time.
func (g *group) closeIfIdle(since time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, sub := range g.subs {
		if !sub.idle(since) {
			return false
		}
	}
	for _, s := range g.shares {
		if s.leased() {
			return false
		}
	}
	g.closing = true
	return true
}

// wakeAll tells every waiting pull of the group to look anew.
func (g *group) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, sub := range g.subs {
		sub.wakeAll()
	}
}
