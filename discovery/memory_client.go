package discovery

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// MemoryClient is one client of a memory store.
type MemoryClient struct {
	m       *Memory
	cluster string
	space   *keySpace
	keep    *keepers // renewals and beats of this client

	cut, frozen, closed bool // guarded by m.mu
}

var _ Store = (*MemoryClient)(nil)

// SetCut cuts this client off the store, or joins it again. Unlike with
// [Memory.SetDown] the store goes on, so what the client had there expires.
func (c *MemoryClient) SetCut(cut bool) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.cut = cut
	if cut {
		c.wakeOwn()
	}
}

// wakeOwn ends this client's watches. Call with m.mu held.
func (c *MemoryClient) wakeOwn() {
	c.m.wake(func(w *waiter) bool { return w.client == c })
}

// FreezeRenewals fails this client's renewals and beats, and nothing else.
func (c *MemoryClient) FreezeRenewals(frozen bool) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.frozen = frozen
}

// Close stops the renewals and beats and waits for that.
func (c *MemoryClient) Close() error {
	c.keep.close()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.closed = true
	c.wakeOwn()
	delete(c.m.clients, c)
	return nil
}

// reach says why the store cannot be reached. Call with m.mu held.
func (c *MemoryClient) reach(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.closed, c.m.closed:
		return fmt.Errorf("%w: %w", ErrUnavailable, errClosed)
	case c.m.down, c.cut:
		return ErrUnavailable
	}
	return nil
}

// Get implements Store.
func (c *MemoryClient) Get(ctx context.Context, key string) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return Entry{}, err
	}
	it, ok := c.space.kv.items[key]
	if !ok {
		return Entry{}, fmt.Errorf("%w: %q", ErrNotFound, key)
	}
	return it.entry(key), nil
}

// List implements Store.
func (c *MemoryClient) List(ctx context.Context, prefix string) ([]Entry, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.space.kv.under(prefix), nil
}

// Commit implements Store.
func (c *MemoryClient) Commit(ctx context.Context, ops ...Op) ([]Entry, error) {
	if err := checkOps(ops); err != nil {
		return nil, err
	}
	if len(ops) == 0 {
		return nil, ctx.Err()
	}
	written, save, err := c.commit(ctx, ops)
	if err == nil && save != 0 {
		err = c.m.awaitSaved(ctx, save)
	}
	if err != nil {
		return nil, err
	}
	return written, nil
}

// commit applies the ops; save names the snapshot to wait for, 0 for none.
func (c *MemoryClient) commit(ctx context.Context, ops []Op) (written []Entry, save uint64, err error) {
	m, s := c.m, c.space
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return nil, 0, err
	}
	written, changes, err := s.kv.apply(ops, func(id string) bool { return m.sessions[id] != nil })
	durable := false
	for key, ch := range changes {
		s.feed.publish(s.kv.index, key)
		durable = durable || ch.durable()
	}
	if m.opt.SnapshotPath != "" && s == m.own && (durable || s.kv.index > m.saver.reserved) {
		m.saver.dirty++
		save = m.saver.dirty
		m.kickSaver()
	}
	if m.lose > 0 {
		m.lose--
		return nil, 0, ErrUnknownOutcome
	}
	return written, save, err
}

// Watch implements Store.
func (c *MemoryClient) Watch(ctx context.Context, prefix string, index uint64) ([]Entry, uint64, error) {
	return watchFeed(ctx, c, c.space, c.space.feed, prefix, index, func() []Entry { return c.space.kv.under(prefix) })
}

// WatchServices implements Store.
func (c *MemoryClient) WatchServices(ctx context.Context, name string, index uint64) ([]Instance, uint64, error) {
	return watchFeed(ctx, c, c.m.own, c.m.svcFeed, servicePrefix(name), index, func() []Instance {
		return ofCluster(c.m.instances(name), c.cluster)
	})
}

// Clock implements Store: the process has the machine's clock.
func (c *MemoryClient) Clock(context.Context) (time.Time, error) { return time.Time{}, ErrNoClock }

// Cluster implements Store.
func (c *MemoryClient) Cluster() string { return c.cluster }

// Neighbours implements Store.
func (c *MemoryClient) Neighbours(ctx context.Context, service string) (Neighbours, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return Neighbours{}, err
	}
	n := Neighbours{IDs: map[string]string{}, Instances: ofOthers(c.m.instances(service), c.cluster)}
	for name, s := range c.m.spaces {
		it, ok := s.kv.items[KeyClusterID]
		if s == c.space || !ok {
			continue
		}
		if id, err := Decode[ClusterID](it.entry(KeyClusterID)); err == nil && id.ID != "" {
			n.IDs[name] = id.ID
		}
	}
	return n, nil
}

// watchFeed blocks until the feed, whose index is the key space's, has news under
// prefix; read runs with m.mu held.
func watchFeed[T any](ctx context.Context, c *MemoryClient, s *keySpace, f *feed, prefix string, index uint64, read func() []T) ([]T, uint64, error) {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return nil, 0, err
	}
	if index != 0 && index <= s.kv.index && !f.changedSince(prefix, index) {
		w := f.wait(prefix, c)
		m.mu.Unlock()
		timer := time.NewTimer(MaxWait)
		select {
		case <-w.woken:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		m.mu.Lock()
		delete(f.waiters, w)
		if err := c.reach(ctx); err != nil {
			return nil, 0, err
		}
	}
	return read(), s.kv.index, nil
}

// NewSession implements Store.
func (c *MemoryClient) NewSession(ctx context.Context, name string) (Session, error) {
	id, sent := NewUUID(), time.Now()
	create := func() error {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		if err := c.reach(ctx); err != nil {
			return err
		}
		c.m.sessions[id] = &memorySession{name: name, expires: time.Now().Add(2 * c.m.opt.SessionTTL)}
		c.m.kick()
		return nil
	}
	if err := create(); err != nil {
		return nil, err
	}
	renew := func(ctx context.Context) error { return c.renew(ctx, id) }
	destroy := func(ctx context.Context) error { return c.DestroySession(ctx, id) }
	l, err := newLease(c.keep, id, c.m.opt.SessionTTL, sent, c.m.log, renew, destroy)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return l, nil
}

func (c *MemoryClient) renew(ctx context.Context, id string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return err
	}
	if c.frozen {
		return ErrUnavailable
	}
	s := c.m.sessions[id]
	if s == nil {
		return ErrSessionLost
	}
	s.expires = time.Now().Add(2 * c.m.opt.SessionTTL)
	return nil
}

// DestroySession implements Store.
func (c *MemoryClient) DestroySession(ctx context.Context, id string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.m.endSession(id)
	return nil
}

// Register implements Store.
func (c *MemoryClient) Register(ctx context.Context, s Service) (Registration, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	s = s.clone()
	register := func(ctx context.Context) error { return c.register(ctx, s) }
	if err := register(ctx); err != nil {
		return nil, err
	}
	beat := func(ctx context.Context) error { return c.beat(ctx, s.ID) }
	deregister := func(ctx context.Context) error { return c.deregister(ctx, s) }
	b, err := newBeacon(c.keep, s.ID, c.m.opt.CheckTTL, c.m.log, register, beat, deregister)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return b, nil
}

func (c *MemoryClient) register(ctx context.Context, s Service) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.m.services[RegisteredID(c.cluster, s.ID)] = &memoryService{Service: s, cluster: c.cluster, passing: true, expires: time.Now().Add(c.m.opt.CheckTTL)}
	c.m.publishService(s.Name)
	c.m.kick()
	return nil
}

func (c *MemoryClient) beat(ctx context.Context, id string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return err
	}
	if c.frozen {
		return ErrUnavailable
	}
	s := c.m.services[RegisteredID(c.cluster, id)]
	if s == nil {
		return errForgotten
	}
	s.expires = time.Now().Add(c.m.opt.CheckTTL)
	if !s.passing {
		s.passing = true
		c.m.publishService(s.Name)
		c.m.kick()
	}
	return nil
}

func (c *MemoryClient) deregister(ctx context.Context, s Service) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.reach(ctx); err != nil {
		return err
	}
	if id := RegisteredID(c.cluster, s.ID); c.m.services[id] != nil {
		delete(c.m.services, id)
		c.m.publishService(s.Name)
	}
	return nil
}

// check refuses a service that no registry would take.
func (s Service) check() error {
	switch {
	case s.ID == "" || s.Name == "":
		return fmt.Errorf("discovery: a service needs an id and a name, got id %q and name %q", s.ID, s.Name)
	case s.Port < 0 || s.Port > 65535:
		return fmt.Errorf("discovery: service %q has port %d: use 0 to 65535", s.ID, s.Port)
	}
	return nil
}

func (s Service) clone() Service {
	s.Meta = maps.Clone(s.Meta)
	return s
}
