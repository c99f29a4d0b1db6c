package publish

import (
	"slices"
	"time"

	"sidestream/sidecar/upstream"
)

// A message that has neither a key nor a named partition may go anywhere, until
// it is put into a batch that may have been written. One that waits for a
// partition to which nothing gets through goes to another then. Not one of a
// request with an Idempotency-Key, whose intent says where to look for it.

// slowAttempt is how long an attempt may take before those behind it that may go
// elsewhere do: the longest pause between two.
const slowAttempt = time.Second

// movable says whether a message may go to any partition.
func (j *job) movable(i int32) bool {
	return !j.placed && j.ms[i].Key == nil && j.ms[i].Partition == nil
}

// giveAway brings what waits in a lane that makes no way to partitions to which
// messages get through, as far as it may go there. What is in the lane's batch
// stays. The lane's own goroutine calls it, or, during an attempt, another.
func (l *lane) giveAway() {
	if !l.someWait() {
		return
	}
	t, err := l.p.up.Topic(l.p.ctx, l.topic)
	if err != nil || t.UUID != l.uuid {
		return
	}
	s := l.of
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.others(&t, l.partition)
	if to == nil {
		return
	}
	for _, pc := range l.movables() {
		s.move(l, pc, &t, to)
	}
}

// someWait says whether the lane's queue has anything.
func (l *lane) someWait() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}

// requeue puts back into the queue what the lane's goroutine took off it and did
// not put into a batch.
func (l *lane) requeue() {
	if l.head == len(l.taken) {
		return
	}
	l.mu.Lock()
	l.queue = append(slices.Clone(l.taken[l.head:]), l.queue...)
	l.mu.Unlock()
	l.taken, l.head = nil, 0
}

// others are the partitions to which messages get through, as far as is known,
// without the given one; nil when there is none. mu is held.
func (s *topicState) others(t *upstream.Topic, but int32) []upstream.Partition {
	some := false
	list := slices.Clone(t.Partitions)
	for i := range list {
		if int32(i) == but || s.stuckAt(i) {
			list[i].Leader = -1
		}
		some = some || list[i].Leader >= 0
	}
	if !some {
		return nil
	}
	return list
}

// movables takes the pieces off the queue that have messages which may go
// elsewhere. Those that must stay remain in pieces of their own.
func (l *lane) movables() (out []*piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stay := make([]*piece, 0, len(l.queue))
	for _, pc := range l.queue {
		left, moved := pc.split()
		if left {
			stay = append(stay, pc)
		}
		if moved != nil {
			out = append(out, moved)
		}
	}
	l.queue = stay
	return out
}

// split parts what may go elsewhere from what must stay. left says that the piece
// still has something to wait for; moved may be the piece itself, and is nil
// when nothing moves.
func (pc *piece) split() (left bool, moved *piece) {
	j := pc.job
	j.mu.Lock()
	defer j.mu.Unlock()
	waiting := pc.which[pc.taken:]
	n := 0
	for _, i := range waiting {
		if j.movable(i) {
			n++
		}
	}
	switch {
	case n == 0:
		return len(waiting) > 0, nil
	case n == len(waiting) && pc.taken == 0:
		return false, pc
	}
	moved = &piece{job: j, lane: pc.lane, which: make([]int32, 0, n)}
	kept := slices.Clone(pc.which[:pc.taken])
	for _, i := range waiting {
		if j.movable(i) {
			moved.which = append(moved.which, i)
		} else {
			kept = append(kept, i)
		}
	}
	pc.which = kept
	j.parted = append(j.parted, moved)
	return len(kept) > pc.taken, moved
}

// move puts a piece into the lane of another partition; mu is held.
func (s *topicState) move(from *lane, pc *piece, t *upstream.Topic, to []upstream.Partition) {
	j := pc.job
	size := 0
	j.mu.Lock()
	n := len(pc.which)
	for _, i := range pc.which {
		size += j.ms[i].size()
	}
	j.mu.Unlock()
	id, _ := s.run.next(to, size, time.Now()) // one of them has a leader
	s.run.given[id] += int64(max(n, 1) - 1)
	l := s.lane(from.p, t, from.ack, id)
	j.mu.Lock()
	pc.lane = l
	j.mu.Unlock()
	l.enter(pc)
}

// begin and end mark the time of one attempt, after which what waits behind it
// goes elsewhere.
func (l *lane) beginAttempt() {
	l.mu.Lock()
	l.flying = true
	l.mu.Unlock()
	if l.slow == nil {
		l.slow = time.AfterFunc(slowAttempt, l.isSlow)
		return
	}
	l.slow.Reset(slowAttempt)
}

func (l *lane) endAttempt() {
	l.slow.Stop()
	l.mu.Lock()
	l.flying = false
	l.mu.Unlock()
}

func (l *lane) isSlow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flying { // it has ended just now
		return
	}
	l.setStuck(true)
	l.p.senders.Go(l.giveAway) // the lane's goroutine, which is one of them, has not ended
}
