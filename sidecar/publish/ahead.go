package publish

// waiter is told when the first pieces of a lane have nothing on its way any more.
type waiter struct {
	upTo uint64
	over chan struct{}
}

// Ahead are closed when none of the messages is on its way any more that have
// their place in the order of a partition now, by either kind of acknowledgement.
// One that was answered unknown_outcome is on its way until a broker tells. There
// are none when no message is. uuid is the topic's, "" where it has none.
func (p *Publisher) Ahead(topic, uuid string, partition int32) (over []<-chan struct{}) {
	p.mu.Lock()
	s := p.topics[topic]
	p.mu.Unlock()
	if s == nil || s.uuid != uuid && s.uuid != "" && uuid != "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lanes := range s.lanes {
		if int(partition) >= len(lanes) || lanes[partition] == nil {
			continue
		}
		if c := lanes[partition].ahead(); c != nil {
			over = append(over, c)
		}
	}
	return over
}

func (l *lane) ahead() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.running {
		return nil
	}
	over := make(chan struct{})
	l.waiters = append(l.waiters, waiter{l.entered, over})
	return over
}

// pass tells who waits that the first pieces are through, up to that which entered
// as that many. mu is held.
func (l *lane) pass(through uint64) {
	for len(l.waiters) > 0 && l.waiters[0].upTo <= through {
		close(l.waiters[0].over)
		l.waiters[0] = waiter{}
		l.waiters = l.waiters[1:]
	}
}
