package spool

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"sidestream/sidecar/upstream"
)

const (
	usedAge  = 5 * time.Second // for how long what was seen of a topic is not asked for again
	usedWait = time.Second     // after the disk refused to remember
)

// remember has a topic remembered that the brokers took messages for: in an
// outage the spool can take them too. It does not block.
func (s *Spool) remember(topic string) {
	if !s.memory.use(topic, time.Now()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Go(s.lookAtUsed)
	}
}

// lookAtUsed looks at the topics in use until none is left.
func (s *Spool) lookAtUsed() {
	for {
		names := s.memory.takeUsed()
		if len(names) == 0 {
			return
		}
		var topics []upstream.Topic
		for _, name := range names {
			if t, err := s.brokers.Topic(s.ctx, name); err == nil && len(t.Partitions) > 0 {
				topics = append(topics, t)
			}
		}
		if s.gone() != nil {
			continue // what is at the path now is not ours
		}
		if err := s.memory.seeAll(topics); err != nil {
			s.metrics.faults.WithLabelValues("topics").Inc()
			s.log.Debug("topics cannot be remembered", zap.Error(err))
			select {
			case <-time.After(usedWait):
			case <-s.ctx.Done():
			}
		}
	}
}

// use notes that a topic is in use. It says whether somebody must begin to look:
// nobody does, and what was seen of the topic is old. topic may lie in memory that
// is used again.
func (m *memory) use(topic string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.topics[topic]; k != nil && now.Sub(k.looked) < usedAge {
		return false
	}
	if _, noted := m.used[topic]; !noted {
		m.used[strings.Clone(topic)] = struct{}{}
	}
	begin := !m.looks
	m.looks = true
	return begin
}

// takeUsed takes the topics to look at; none ends the looking.
func (m *memory) takeUsed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.Collect(maps.Keys(m.used))
	clear(m.used)
	m.looks = len(names) > 0
	return names
}
