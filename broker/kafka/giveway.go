package kafka

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// When there is no room for a further connection, the one that has been idle longest gives way. Otherwise a client that
// opens connections and leaves them, or a pool that never closes any, locks everybody else out for as long as the idle
// timeout. Who is in the middle of a request, waits for an answer (a long poll is one) or was heard of a moment ago keeps
// its connection. A client whose idle connection was closed connects anew when it next has something to say, as it has to
// after the idle timeout.

const (
	// idleAfter is how long a connection must have been idle to give way. Between two requests each is for a moment, and
	// under a load of connections that are all in use they would only take each other's place.
	idleAfter = time.Second
	// lookAgain is how often all connections are looked through for idle ones when none is left of those found before. A
	// flood of connections, each of which would look, must not cost more than the connections.
	lookAgain = 100 * time.Millisecond
)

// idlers are connections that were idle when they were looked for, the longest first. Each that became idle since has
// been so for a shorter time.
type idlers struct {
	mu     sync.Mutex // guards everything below, and is held during no I/O
	found  []idler
	looked time.Time
}

// idler is a connection and since when it was idle.
type idler struct {
	c     *conn
	since int64 // Unix nanoseconds
}

// next takes the first that is wanted off the list; nil when none is left.
func (l *idlers) next(wanted func(c *conn) bool) *idler {
	i := slices.IndexFunc(l.found, func(x idler) bool { return wanted(x.c) })
	if i < 0 {
		return nil
	}
	x := l.found[i]
	if i == 0 { // without moving the others
		l.found = l.found[1:]
	} else {
		l.found = slices.Delete(l.found, i, i+1)
	}
	return &x
}

// forget lets go of what was found long ago.
func (l *idlers) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.looked) > 10*time.Second {
		l.found = nil
	}
}

// giveWay has an idle connection closed, of that address if one is given, and tells whether there was one.
func (s *Server) giveWay(ip string) bool {
	wanted := func(c *conn) bool { return ip == "" || c.ip == ip }
	now := time.Now()
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	for {
		x := s.idle.next(wanted)
		switch {
		case x != nil && x.c.leaveIdle(x.since):
			s.metrics.refused.WithLabelValues("gave_way").Inc()
			s.complain("gave_way", "an idle connection is closed to make room for another: a limit of connections is reached", zap.String("client", x.c.remote))
			return true
		case x != nil: // in use again, or gone
		case now.Sub(s.idle.looked) < lookAgain:
			return false
		default:
			s.idle.looked, s.idle.found = now, s.idling(now)
		}
	}
}

// idling lists the connections that are idle, the longest first.
func (s *Server) idling(now time.Time) (out []idler) {
	for _, c := range s.connections() {
		since := c.active.Load()
		if now.UnixNano()-since >= int64(idleAfter) && c.between.Load() {
			out = append(out, idler{c, since})
		}
	}
	slices.SortFunc(out, func(a, b idler) int { return cmp.Compare(a.since, b.since) })
	return out
}

// leaveIdle closes the connection if it has been idle ever since then; it tells whether it does.
func (c *conn) leaveIdle(since int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.doomed || c.leaving || len(c.slots) > 0 || c.writing || len(c.unsent) > 0 || !c.between.Load() || c.active.Load() != since {
		return false
	}
	c.leaving = true
	c.s.admission.leaving(1)
	c.killLocked()
	return true
}
