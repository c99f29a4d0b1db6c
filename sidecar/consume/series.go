package consume

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Series of groups and topics go with them: a group has a name that an
// application makes up, and a process that keeps the series of all that ever
// were grows without end. Gauges go at once when a sidecar leaves. Counters stay
// for a while, since one that begins anew in each run of an hourly job would tell
// a collector nothing of the first run it sees; those of a group that is deleted
// go with it.

// seriesOf is whose series are gone: a group's, or those of one of its topics.
type seriesOf struct{ group, topic string }

func (s seriesOf) labels() prometheus.Labels {
	if s.topic == "" {
		return prometheus.Labels{"group": s.group}
	}
	return prometheus.Labels{"group": s.group, "topic": s.topic}
}

const (
	// seriesAgain is after how long series are removed once more: what was under
	// way when they went counts a little later.
	seriesAgain = 5 * time.Second
	// seriesUnused is how long counters of groups that this sidecar is not in stay
	// after they were last counted.
	seriesUnused = 2 * time.Hour
)

// removedSeries are to be removed, or removed once more.
type removedSeries struct {
	mu  sync.Mutex             // guards due
	due map[seriesOf]time.Time // when
}

func (r *removedSeries) at(s seriesOf, when time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.due == nil {
		r.due = map[seriesOf]time.Time{}
	}
	r.due[s] = when
}

func (r *removedSeries) take(now time.Time) (due []seriesOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, at := range r.due {
		if !now.Before(at) {
			due = append(due, s)
			delete(r.due, s)
		}
	}
	return due
}

// gauges are all by group and topic but for what the keeper tells of idle groups,
// which is its own to remove.
func (m *metrics) gauges() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{m.lag, m.lagUnknown, m.unreadable, m.lagSeconds, m.unackedSeconds}
}

// counters are all by group.
func (m *metrics) counters() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{
		m.delivered, m.redelivered, m.acked, m.nacked, m.expired, m.returned, m.jumped,
		m.deadLetters, m.skipped, m.deadFailures, m.redriven, m.moves, m.plans,
	}
}

func (m *metrics) remove(s seriesOf) {
	for _, g := range m.gauges() {
		g.DeletePartialMatch(s.labels())
	}
	for _, c := range m.counters() {
		c.DeletePartialMatch(s.labels())
	}
}

// leaveSeries ends the gauges of a group that was left, or of a topic of which this
// sidecar has nothing left, and in their time the counters.
func (m *Manager) leaveSeries(s seriesOf) {
	for _, g := range m.metrics.gauges() {
		g.DeletePartialMatch(s.labels())
	}
	m.removed.at(s, time.Now().Add(seriesUnused))
}

// usesSeries is for what is counted of groups that this sidecar need not be in.
func (m *Manager) usesSeries(group string) {
	m.removed.at(seriesOf{group: group}, time.Now().Add(seriesUnused))
}

// deleteSeries ends all series of a group that is deleted.
func (m *Manager) deleteSeries(group string) {
	m.metrics.remove(seriesOf{group: group})
	m.removed.at(seriesOf{group: group}, time.Now().Add(seriesAgain))
}

// removeSeries removes what is due, unless it is in use again.
func (m *Manager) removeSeries(now time.Time) {
	for _, s := range m.removed.take(now) {
		switch g := m.lookup(s.group); {
		case g == nil:
			m.metrics.remove(s)
		case s.topic != "" && g.share(s.topic) == nil:
			m.metrics.remove(s)
		}
	}
}
