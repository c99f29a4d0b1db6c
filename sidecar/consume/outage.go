package consume

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// outage logs what many parts (partitions, groups) cannot do for now: once when
// the first of them fails, once more for each other reason, and once when none
// fails any more, with counts. Each part tries again every second or so, and a
// line for each of that would bury all others.
type outage struct {
	log *zap.Logger

	mu       sync.Mutex          // guards what follows
	failing  map[string]struct{} // the parts
	reasons  map[string]struct{} // that were logged
	began    time.Time
	parts    int // that failed at some time
	failures int

	some atomic.Bool // whether there is something in failing
}

// quiet says that nothing fails just now. It costs nothing.
func (u *outage) quiet() bool { return !u.some.Load() }

// maxReasons bounds the lines of one outage: reasons may carry a port or a time.
const maxReasons = 8

func newOutage(log *zap.Logger) *outage {
	return &outage{log: log, failing: map[string]struct{}{}, reasons: map[string]struct{}{}}
}

// fails says that a part cannot do what it should. part must be named alike in
// works.
func (u *outage) fails(part, doing string, err error) {
	why := reasonOf(err)
	u.mu.Lock()
	if len(u.failing) == 0 {
		u.began, u.parts, u.failures = time.Now(), 0, 0
		clear(u.reasons)
	}
	u.failures++
	if _, ok := u.failing[part]; !ok {
		u.failing[part] = struct{}{}
		u.some.Store(true)
		u.parts++
	}
	_, known := u.reasons[why]
	say := !known && len(u.reasons) < maxReasons
	if say {
		u.reasons[why] = struct{}{}
	}
	u.mu.Unlock()
	if say {
		u.log.Warn("cannot "+doing+" for now; trying again, and telling when nothing fails any more", zap.String("first", part), zap.String("why", why))
		return
	}
	u.log.Debug("cannot "+doing+", trying again", zap.String("part", part), zap.Error(err))
}

// works says that a part does what it should, or is no more.
func (u *outage) works(part string) {
	u.mu.Lock()
	_, was := u.failing[part]
	delete(u.failing, part)
	over := was && len(u.failing) == 0
	u.some.Store(len(u.failing) > 0)
	lasted, parts, failures := time.Since(u.began), u.parts, u.failures
	u.mu.Unlock()
	if over {
		u.log.Info("nothing fails any more of what could not be done", zap.Duration("after", lasted), zap.Int("parts", parts), zap.Int("failures", failures))
	}
}

// reasonOf is an error without what differs from part to part.
func reasonOf(err error) string {
	var e *api.Error
	switch {
	case errors.Is(err, discovery.ErrUnavailable), errors.Is(err, discovery.ErrUnknownOutcome), isCode(err, api.CodeStoreUnavailable):
		return "the coordination store cannot be reached"
	case errors.Is(err, discovery.ErrSessionLost):
		return "the session is lost"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &e) && e.Code == api.CodeBrokersUnavailable:
		return "the brokers cannot be reached: " + e.Message
	}
	return err.Error()
}
