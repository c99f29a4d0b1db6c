package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

// lookAgain is how often an agent looks at the election and at the topics
// though nothing changed.
const lookAgain = 2 * time.Second

// Self is who stands for election.
type Self struct {
	Broker  discovery.Broker
	Session discovery.Session // nil: not registered
}

// Config is what a controller works with.
type Config struct {
	Store   discovery.Store
	Writer  *facts.Writer
	Mirror  *facts.Mirror
	Timeout time.Duration // of one call of the store
	// Self is asked before each attempt, and Changed is signalled when its
	// answer may have changed.
	Self    func() Self
	Changed <-chan struct{}
	Elected func(bool) // told when this agent becomes or stops being controller; may be nil
	Logger  *zap.Logger
}

// Controller stands for election and does the controller's work while it holds
// the lock.
type Controller struct {
	store   discovery.Store
	writer  *facts.Writer
	mirror  *facts.Mirror
	timeout time.Duration
	self    func() Self
	changed <-chan struct{}
	elected func(bool)
	log     *zap.Logger
}

// New makes a controller; Run runs it.
func New(c Config) *Controller {
	k := &Controller{store: c.Store, writer: c.Writer, mirror: c.Mirror, timeout: c.Timeout,
		self: c.Self, changed: c.Changed, elected: c.Elected, log: c.Logger}
	if k.elected == nil {
		k.elected = func(bool) {}
	}
	if k.log == nil {
		k.log = zap.NewNop()
	}
	return k
}

// Run stands for election until ctx ends. It leaves the lock to its caller to
// release, together with the session's other keys.
func (c *Controller) Run(ctx context.Context) error {
	var holder string // session with which the lock was taken; "": not holding
	defer c.elected(false)
	failures := 0
	for {
		f, changed := c.mirror.Latest()
		self := c.self()
		next, err := c.turn(ctx, f, self, holder)
		if ctx.Err() != nil {
			return nil
		}
		if (next != "") != (holder != "") {
			c.elected(next != "")
			c.log.Info("election", zap.Bool("controller", next != ""))
		}
		holder = next
		pause := lookAgain
		if err != nil {
			failures++
			pause = min(50*time.Millisecond<<min(failures-1, 6), lookAgain)
			pause = pause/2 + rand.N(pause/2+1)
			c.log.Debug("controller: trying again", zap.Error(err))
			c.mirror.Resync()
			changed = nil // wait out the pause, else a hot loop
		} else {
			failures = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-c.changed:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// turn is one look at the picture. It returns the session that holds the lock
// afterwards.
func (c *Controller) turn(ctx context.Context, f *facts.Facts, self Self, holder string) (string, error) {
	if self.Session == nil || f.Cluster != facts.Same || self.Session.Ownership() == discovery.Lost {
		return "", nil
	}
	session := self.Session.ID()
	if holder != session {
		if f.Controller != -1 && f.Controller != self.Broker.ID {
			return "", nil
		}
		switch err := c.acquire(ctx, self); {
		case errors.Is(err, discovery.ErrConflict):
			return "", nil
		case err != nil:
			return "", err
		}
	}
	// The lock may have gone with a wiped store while the session lived.
	if holder == session && f.Controller != self.Broker.ID {
		if err := c.acquire(ctx, self); err != nil {
			return "", err
		}
	}
	if err := c.step(ctx, f, session); err != nil {
		if lostLock(err) {
			return "", err
		}
		return session, err
	}
	return session, nil
}

func (c *Controller) acquire(ctx context.Context, self Self) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	_, err := c.store.Commit(ctx, discovery.Acquire(discovery.KeyController, discovery.Encode(self.Broker), self.Session.ID()))
	return err
}
