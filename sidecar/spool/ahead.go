package spool

import (
	"fmt"
	"time"

	"sidestream/sdk/api"
)

// letPass waits until what the publisher had on its way for a lane's partition,
// when the events up to a number were accepted, is there or never will be: it was
// first. Of what entered later nothing is waited for, so that it cannot hold the
// lane up for ever.
func (s *Spool) letPass(l *lane, seq int64) *api.Error {
	if len(l.ahead) == 0 {
		if seq <= l.cleared {
			return nil
		}
		s.mu.Lock()
		l.cleared = l.last // before the publisher is asked
		s.mu.Unlock()
		l.ahead = s.next.Ahead(l.key.topic, l.key.uuid, l.key.partition)
	}
	over := time.NewTimer(s.cfg.SendWait)
	defer over.Stop()
	for len(l.ahead) > 0 {
		select {
		case <-l.ahead[0]:
			l.ahead = l.ahead[1:]
		case <-over.C:
			return unavailable(fmt.Sprintf("messages for partition %d of topic %s that were to be written before are still on their way to its broker", l.key.partition, l.key.topic))
		case <-s.ctx.Done():
			return unavailable("the spool closes")
		}
	}
	return nil
}
