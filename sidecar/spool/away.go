package spool

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/sdk/api"
)

const (
	// awayPatience is how long a lane must have made no way before the log says
	// so: a leader moves in less.
	awayPatience = 2 * time.Second
	// slowAgain is how often it is looked for news of why a lane makes none.
	slowAgain = time.Second
)

// standstill is what the log is told of lanes that make no way: one line when that
// begins and one when it ends, be they few or many. It is guarded by the spool's mu.
type standstill struct {
	since      time.Time // zero: all make way
	told       bool
	partitions int // that made none, ever
}

// setAway says that a lane makes no way for now, or does again when why is nil.
func (s *Spool) setAway(l *lane, why *api.Error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	was := l.away
	l.away = why
	switch {
	case why == nil && was == nil:
		return
	case why == nil:
		l.since = now
		s.backAgain()
	case was == nil:
		l.since = now
		if s.still.since.IsZero() {
			s.still = standstill{since: now}
		}
		s.still.partitions++
	default:
		s.tellStandstill(l, now)
		return
	}
	l.note()
}

// tellStandstill says once that lanes make no way. Call with mu held.
func (s *Spool) tellStandstill(l *lane, now time.Time) {
	if s.still.told || now.Sub(l.since) < awayPatience {
		return
	}
	s.still.told = true
	s.log.Warn("spooled messages make no way", zap.Stringer("partition", l.key), zap.Int64("messages", l.events), zap.String("cause", l.away.Message))
}

// backAgain says once that all lanes make way again. Call with mu held.
func (s *Spool) backAgain() {
	for _, l := range s.lanes {
		if l.away != nil && l.isPending() {
			return
		}
	}
	if s.still.told {
		s.log.Info("spooled messages make way again", zap.Duration("after", time.Since(s.still.since).Round(time.Millisecond)),
			zap.Int("partitions", s.still.partitions), zap.Int64("waiting", s.waiting()))
	}
	s.still = standstill{}
}

// waiting is how many messages are pending. Call with mu held.
func (s *Spool) waiting() (n int64) {
	for _, l := range s.lanes {
		if l.isPending() {
			n += l.events
		}
	}
	return n
}

// watch says that a lane makes no way when brokers leave what was sent to it without
// an answer that settles it, and what they said instead, until it is stopped.
func (s *Spool) watch(l *lane) (stop func()) {
	var mu sync.Mutex // guards what follows; held while the lane is told, so that nothing is after stop
	var timer *time.Timer
	over := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(s.cfg.SendWait, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		s.setAway(l, unavailable(s.slowness(l.key)))
		timer.Reset(slowAgain)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

// slowness is why brokers do not settle what was sent to a partition.
func (s *Spool) slowness(key laneKey) string {
	if said := s.sender.Said(key.topic, key.uuid, key.partition); said != nil {
		return fmt.Sprintf("the broker of partition %d of topic %s does not take it: %v", key.partition, key.topic, said)
	}
	return fmt.Sprintf("the broker of partition %d of topic %s does not answer", key.partition, key.topic)
}
