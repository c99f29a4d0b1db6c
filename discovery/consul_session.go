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
	if entry != nil {
		return nil
	}
	// The library reports 404 so. It proves nothing yet: a renewal is answered
	// from the leader's own state, and one that has just been elected, as after
	// a restart, may not have replayed its log and so not know the session.
	exists, err := c.sessionExists(ctx, id)
	switch {
	case err != nil:
		return err
	case exists:
		return fmt.Errorf("%w: the leader does not know session %s yet", ErrUnavailable, id)
	}
	return fmt.Errorf("%w: %s", ErrSessionLost, id)
}

// sessionExists asks a leader that has replayed its log.
func (c *consul) sessionExists(ctx context.Context, id string) (bool, error) {
	entry, _, err := c.beats.Session().Info(id, consistent(ctx))
	if err != nil {
		return false, readError(ctx, err)
	}
	return entry != nil, nil
}

// destroyTries bounds the rounds of one DestroySession.
const destroyTries = 5

// DestroySession implements Store.
func (c *consul) DestroySession(ctx context.Context, id string) error {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	for range destroyTries {
		if _, err := c.beats.Session().Destroy(id, (&capi.WriteOptions{}).WithContext(ctx)); err != nil {
			return readError(ctx, err)
		}
		// A leader that has not replayed its log says yes to a session that it
		// does not know, and keeps it.
		exists, err := c.sessionExists(ctx, id)
		if err != nil || !exists {
			return err
		}
	}
	return fmt.Errorf("%w: session %s is still there after %d attempts to destroy it", ErrUnavailable, id, destroyTries)
}
