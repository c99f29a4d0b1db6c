package facts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sidestream/discovery"
)

const (
	relistEvery  = 60 * time.Second // everything is read again, in case a change went unnoticed
	recheckEvery = 3 * time.Second  // the cluster-id alone, while it is not ours
	readAllAbove = 32               // changed keys from which reading everything is cheaper
)

// Mirror keeps the latest Facts. It watches only versions/, brokers/ and the
// controller key, and reads what the versions say has changed.
type Mirror struct {
	store    discovery.Store
	timeout  time.Duration
	folderID func() string
	log      *zap.Logger
	wake     chan struct{}

	mu      sync.Mutex    // guards what follows; never held across I/O
	facts   *Facts        // replaced, never changed
	changed chan struct{} // closed when facts is replaced
	pending pending
}

// pending is what the followers heard and the loop has not dealt with.
type pending struct {
	versions   map[string]discovery.Versions // nil: nothing new
	brokers    map[int32]discovery.Broker    // nil: nothing new
	controller *int32                        // nil: nothing new
	all        bool
}

// NewMirror makes a mirror; Run fills it. Each read takes at most timeout.
// folderID says which cluster the data folder belongs to, "" when none yet.
func NewMirror(store discovery.Store, timeout time.Duration, folderID func() string, log *zap.Logger) *Mirror {
	if log == nil {
		log = zap.NewNop()
	}
	return &Mirror{store: store, timeout: timeout, folderID: folderID, log: log,
		wake: make(chan struct{}, 1), facts: Empty(), changed: make(chan struct{})}
}

// Latest is the present picture, and a channel that is closed when there is a
// newer one.
func (m *Mirror) Latest() (*Facts, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts, m.changed
}

// Resync makes the mirror read everything again soon, after a commit whose
// outcome is unknown or that met a conflict.
func (m *Mirror) Resync() {
	m.note(func(p *pending) { p.all = true })
}

// Learn takes in what this agent wrote itself, without waiting to hear of it.
func (m *Mirror) Learn(entries []discovery.Entry) {
	m.update(func(f *Facts) {
		if f.Cluster != Same {
			return
		}
		for _, e := range entries {
			m.put(f, e, false)
		}
	})
}

// Run follows the store until ctx ends.
func (m *Mirror) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	follow := func(prefix string, heard func([]discovery.Entry)) {
		g.Go(func() error { return discovery.Follow(ctx, m.store, prefix, heard) })
	}
	follow(discovery.PrefixVersions, m.heardVersions)
	follow(discovery.PrefixBrokers, m.heardBrokers)
	follow(discovery.KeyController, m.heardController)
	g.Go(func() error { return m.loop(ctx) })
	err := g.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func (m *Mirror) heardVersions(entries []discovery.Entry) {
	now := make(map[string]discovery.Versions, len(entries))
	for _, e := range entries {
		v, err := discovery.Decode[discovery.Versions](e)
		if err != nil {
			m.log.Warn("a key of the store is not readable", zap.String("key", e.Key), zap.Error(err))
			continue
		}
		now[strings.TrimPrefix(e.Key, discovery.PrefixVersions)] = v
	}
	m.note(func(p *pending) { p.versions = now })
}

func (m *Mirror) heardBrokers(entries []discovery.Entry) {
	now := make(map[int32]discovery.Broker, len(entries))
	for _, e := range entries {
		b, err := discovery.Decode[discovery.Broker](e)
		if err != nil || e.Session == "" {
			continue // left without a session it is nobody's
		}
		now[b.ID] = b
	}
	m.note(func(p *pending) { p.brokers = now })
}

func (m *Mirror) heardController(entries []discovery.Entry) {
	id := int32(-1)
	for _, e := range entries {
		if e.Key != discovery.KeyController || e.Session == "" {
			continue
		}
		if b, err := discovery.Decode[discovery.Broker](e); err == nil {
			id = b.ID
		}
	}
	m.note(func(p *pending) { p.controller = &id })
}

func (m *Mirror) note(set func(*pending)) {
	m.mu.Lock()
	set(&m.pending)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Mirror) take() pending {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pending
	m.pending = pending{}
	return p
}

// giveBack keeps what could not be dealt with, unless something newer came.
func (m *Mirror) giveBack(p pending) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending.versions == nil {
		m.pending.versions = p.versions
	}
	if m.pending.brokers == nil {
		m.pending.brokers = p.brokers
	}
	if m.pending.controller == nil {
		m.pending.controller = p.controller
	}
	m.pending.all = m.pending.all || p.all
}

func (m *Mirror) loop(ctx context.Context) error {
	seen := map[string]uint64{}
	failures := 0
	lastRead := time.Now()
	m.note(func(p *pending) { p.all = true })
	for {
		pause := relistEvery - time.Since(lastRead)
		if f, _ := m.Latest(); f.Cluster != Same {
			pause = recheckEvery
		}
		if failures > 0 {
			pause = backoff(failures)
		}
		timer := time.NewTimer(max(pause, 0))
		var due bool
		wake := m.wake
		if failures > 0 {
			wake = nil // what arrives meanwhile waits for the store to come back
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-wake:
			timer.Stop()
		case <-timer.C:
			due = failures == 0
		}
		p := m.take()
		p.all = p.all || due
		next, readAll, err := m.apply(ctx, p, seen)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			failures++
			m.giveBack(p)
			m.log.Debug("the store could not be read; trying again", zap.Error(err))
			continue
		}
		failures = 0
		if readAll {
			lastRead = time.Now()
		}
		if next != nil {
			seen = next
		}
	}
}

// backoff is the pause after n failures in a row: 0.1 s doubling to 3 s, with
// jitter so that the agents do not return all at once.
func backoff(n int) time.Duration {
	d := min(100*time.Millisecond<<min(n-1, 5), 3*time.Second)
	return d/2 + rand.N(d/2+1)
}

// apply brings the picture up to what was heard. It returns the counters seen
// (nil: as before) and whether everything was read.
func (m *Mirror) apply(ctx context.Context, p pending, seen map[string]uint64) (next map[string]uint64, all bool, err error) {
	var keys []string
	all = p.all
	if p.versions != nil {
		var gap bool
		keys, gap, next = changedSince(seen, p.versions)
		all = all || gap || len(keys) > readAllAbove
		for _, k := range keys {
			all = all || !known(k)
		}
	}
	now, _ := m.Latest()
	lostBroker := false
	for id := range now.Brokers {
		if p.brokers != nil {
			if _, ok := p.brokers[id]; !ok {
				lostBroker = true
			}
		}
	}
	// A broker that vanished may be the sign that the whole store was wiped:
	// the cluster-id is read before the news is believed.
	cluster, storeID := now.Cluster, now.StoreID
	if all || lostBroker || cluster != Same {
		if cluster, storeID, err = m.readCluster(ctx); err != nil {
			return nil, false, err
		}
		all = all || cluster != now.Cluster
	}
	var change func(*Facts)
	switch {
	case cluster != Same:
		change = func(*Facts) {}
	case all:
		change, err = m.readAll(ctx)
	default:
		change, err = m.readKeys(ctx, keys)
	}
	if err != nil {
		return nil, false, err
	}
	m.update(func(f *Facts) {
		f.Cluster, f.StoreID = cluster, storeID
		change(f)
		if p.controller != nil {
			f.Controller = *p.controller
		}
		if p.brokers != nil {
			if cluster == Same || cluster == Unread {
				f.Brokers = p.brokers
			} else {
				for id, b := range p.brokers {
					f.Brokers[id] = b
				}
			}
		}
	})
	return next, all, nil
}

func known(key string) bool {
	_, _, shard := ParseShardKey(key)
	return shard || strings.HasPrefix(key, discovery.PrefixTopics) || strings.HasPrefix(key, discovery.PrefixState)
}

func (m *Mirror) readCluster(ctx context.Context) (Cluster, string, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	e, err := m.store.Get(ctx, discovery.KeyClusterID)
	if err != nil && !errors.Is(err, discovery.ErrNotFound) {
		return Unread, "", err
	}
	storeID := ""
	if err == nil {
		id, err := discovery.Decode[discovery.ClusterID](e)
		if err != nil {
			return Unread, "", fmt.Errorf("the store's cluster-id is not readable: %w", err)
		}
		storeID = id.ID
	}
	return Compare(m.folderID(), storeID), storeID, nil
}

// Compare says how a store's cluster-id relates to a folder's.
func Compare(folder, store string) Cluster {
	switch {
	case folder == "":
		return Unread
	case store == "":
		return Missing
	case store == folder:
		return Same
	}
	return Foreign
}

// readAll reads every topic and shard.
func (m *Mirror) readAll(ctx context.Context) (func(*Facts), error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	topics, err := m.store.List(ctx, discovery.PrefixTopics)
	if err != nil {
		return nil, err
	}
	shards, err := m.store.List(ctx, discovery.PrefixState)
	if err != nil {
		return nil, err
	}
	return func(f *Facts) {
		f.Topics, f.Shards = map[string]Topic{}, map[string]map[int]Shard{}
		for _, e := range topics {
			m.put(f, e, true)
		}
		for _, e := range shards {
			m.put(f, e, true)
		}
	}, nil
}

// readKeys reads the topics and shards that changed.
func (m *Mirror) readKeys(ctx context.Context, keys []string) (func(*Facts), error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	var found []discovery.Entry
	var gone, emptied []string
	for _, key := range keys {
		if strings.HasSuffix(key, "/") {
			entries, err := m.store.List(ctx, key)
			if err != nil {
				return nil, err
			}
			emptied = append(emptied, key)
			found = append(found, entries...)
			continue
		}
		e, err := m.store.Get(ctx, key)
		switch {
		case err == nil:
			found = append(found, e)
		case errors.Is(err, discovery.ErrNotFound):
			gone = append(gone, key)
		default:
			return nil, err
		}
	}
	return func(f *Facts) {
		for _, key := range emptied {
			delete(f.Shards, strings.TrimSuffix(strings.TrimPrefix(key, discovery.PrefixState), "/"))
		}
		for _, key := range gone {
			if name, ok := strings.CutPrefix(key, discovery.PrefixTopics); ok {
				delete(f.Topics, name)
			} else if uuid, shard, ok := ParseShardKey(key); ok {
				delete(f.Shards[uuid], shard)
			}
		}
		for _, e := range found {
			m.put(f, e, false)
		}
	}, nil
}

// put takes one entry in. Unless it is part of a whole reading, an older
// version than the one that is there is left out.
func (m *Mirror) put(f *Facts, e discovery.Entry, whole bool) {
	if name, ok := strings.CutPrefix(e.Key, discovery.PrefixTopics); ok {
		t, err := discovery.Decode[discovery.Topic](e)
		if err != nil || t.Name != name {
			m.log.Warn("a key of the store is not readable", zap.String("key", e.Key), zap.Error(err))
			return
		}
		if whole || e.Version >= f.Topics[name].Version {
			f.Topics[name] = Topic{Topic: t, Version: e.Version}
		}
		return
	}
	uuid, number, ok := ParseShardKey(e.Key)
	if !ok {
		return
	}
	s, err := discovery.Decode[discovery.Shard](e)
	if err != nil {
		m.log.Warn("a key of the store is not readable", zap.String("key", e.Key), zap.Error(err))
		return
	}
	if f.Shards[uuid] == nil {
		f.Shards[uuid] = map[int]Shard{}
	}
	if whole || e.Version >= f.Shards[uuid][number].Version {
		f.Shards[uuid][number] = Shard{Shard: s, Version: e.Version}
	}
}

// update replaces the picture by a changed copy.
func (m *Mirror) update(change func(*Facts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.facts.clone()
	change(next)
	m.facts = next
	close(m.changed)
	m.changed = make(chan struct{})
}
