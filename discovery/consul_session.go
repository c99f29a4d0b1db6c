package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

// lockDelay is the least that the library sends: it leaves 0 out, and Consul
// then takes 15 s.
const lockDelay = time.Millisecond

// NewSession implements Store. The session has no checks: one that is bound to
// a check dies with every pause of the local Consul agent.
func (c *consul) NewSession(ctx context.Context, name string) (Session, error) {
	call, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	id, _, err := c.beats.Session().CreateNoChecks(&capi.SessionEntry{
		Name: name, TTL: c.cfg.SessionTTL.String(),
		Behavior: capi.SessionBehaviorDelete, LockDelay: lockDelay,
	}, (&capi.WriteOptions{}).WithContext(call))
	if err != nil {
		var status *statusError
		if errors.As(err, &status) && strings.Contains(status.Body, "Session TTL") {
			return nil, fmt.Errorf("discovery: session_ttl %s is refused, raise it or lower Consul's session_ttl_min: %w", c.cfg.SessionTTL, status)
		}
		return nil, readError(call, err)
	}
	renew := func(ctx context.Context) error { return c.renew(ctx, id) }
	destroy := func(ctx context.Context) error { return c.DestroySession(ctx, id) }
	l, err := newLease(c.keep, id, c.cfg.SessionTTL, sent, c.log, renew, destroy)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return l, nil
}

// renew tells a session that Consul does not know from everything else: only
// the former is lost.
func (c *consul) renew(ctx context.Context, id string) error {
	entry, _, err := c.beats.Session().Renew(id, (&capi.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return readError(ctx, err)
	}
	if entry == nil { // how the library reports 404
		return fmt.Errorf("%w: %s", ErrSessionLost, id)
	}
	return nil
}

// DestroySession implements Store.
func (c *consul) DestroySession(ctx context.Context, id string) error {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	_, err := c.beats.Session().Destroy(id, (&capi.WriteOptions{}).WithContext(ctx))
	return readError(ctx, err)
}
