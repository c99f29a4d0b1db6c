package discovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Defaults of both stores.
const (
	DefaultSessionTTL = 10 * time.Second
	DefaultCheckTTL   = 3 * time.Second
)

// MemoryOptions configures a memory store. The zero value is ready.
type MemoryOptions struct {
	// SnapshotPath is the file that keeps the keys which no session holds
	// across restarts; a commit is durable there before it returns. Beside it
	// lies a spare (.spare), which lets it be written on a full disk. "" keeps
	// nothing.
	SnapshotPath string
	// SessionTTL is that of sessions, 10 s by default; as in Consul a session
	// that is not renewed ends after twice this.
	SessionTTL time.Duration
	// CheckTTL is that of the services' checks, 3 s by default; one that is
	// not beaten turns critical after exactly this.
	CheckTTL time.Duration
	// Cluster is the name of the cluster, main by default; see [Memory.ClientOf].
	Cluster string
	Logger  *zap.Logger // nil: none
}

// Memory is the store of a single process, for `sidestream dev` and for tests.
// In it things expire as they do in Consul. It is a Store itself; [Memory.Client]
// makes others that see the same content and can be cut off one by one.
type Memory struct {
	*MemoryClient // its own client

	opt MemoryOptions
	log *zap.Logger
	bg  *keepers // the expirer and the saver
	new chan struct{}

	file *reservedFile // of the snapshot, used by the saver alone; nil: none

	mu       sync.Mutex           // guards all below
	own      *keySpace            // of opt.Cluster: what the snapshot keeps
	spaces   map[string]*keySpace // by cluster, own among them
	svcFeed  *feed
	sessions map[string]*memorySession
	services map[string]*memoryService // by RegisteredID
	clients  map[*MemoryClient]struct{}
	down     bool
	closed   bool
	lose     int // replies to commits still to be lost
	saver    saverState
}

// keySpace is what lies under the root of one cluster.
type keySpace struct {
	kv   *kv
	feed *feed
}

func newKeySpace(kv *kv) *keySpace { return &keySpace{kv: kv, feed: newFeed(kv.index)} }

type memorySession struct {
	name    string
	expires time.Time
}

type memoryService struct {
	Service
	cluster string
	passing bool
	expires time.Time // of the check
}

var _ Store = (*Memory)(nil)

// NewMemory opens a memory store, with what its snapshot holds if there is one.
func NewMemory(opt MemoryOptions) (*Memory, error) {
	if opt.SessionTTL == 0 {
		opt.SessionTTL = DefaultSessionTTL
	}
	if opt.CheckTTL == 0 {
		opt.CheckTTL = DefaultCheckTTL
	}
	if opt.SessionTTL < 0 || opt.CheckTTL < 0 {
		return nil, fmt.Errorf("memory store: session TTL %s, check TTL %s: use positive durations", opt.SessionTTL, opt.CheckTTL)
	}
	if opt.Cluster == "" {
		opt.Cluster = DefaultConsulConfig().Cluster
	}
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	m := &Memory{
		opt: opt, log: opt.Logger, bg: newKeepers(), new: make(chan struct{}, 1),
		own:      newKeySpace(newKV()),
		sessions: map[string]*memorySession{}, services: map[string]*memoryService{},
		clients: map[*MemoryClient]struct{}{},
		saver:   newSaverState(),
	}
	if opt.SnapshotPath != "" {
		loaded, err := loadSnapshot(opt.SnapshotPath)
		if err != nil {
			return nil, err
		}
		m.own = newKeySpace(loaded)
		// Without the reservation all works while there is room.
		if m.file, err = openReserved(opt.SnapshotPath); err != nil {
			m.log.Warn("topics cannot be changed if the disk stays full", zap.Error(err))
		}
		m.bg.start(m.runSaver)
	}
	m.spaces, m.svcFeed = map[string]*keySpace{opt.Cluster: m.own}, newFeed(m.own.kv.index)
	m.MemoryClient = m.Client()
	m.bg.start(m.runExpirer)
	return m, nil
}

// Client is another client of the same store, as another process would be.
// Closing it leaves its sessions and services to expire.
func (m *Memory) Client() *MemoryClient { return m.ClientOf(m.opt.Cluster) }

// ClientOf is a client of another cluster in the same store: it has keys of its
// own, as under another root in Consul, which no snapshot keeps; services are in
// one registry, and sessions are the store's.
func (m *Memory) ClientOf(cluster string) *MemoryClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spaces[cluster] == nil {
		m.spaces[cluster] = newKeySpace(newKV())
	}
	c := &MemoryClient{m: m, cluster: cluster, space: m.spaces[cluster], keep: newKeepers()}
	m.clients[c] = struct{}{}
	return c
}

// Close ends the store with all its clients. What the snapshot does not hold
// is gone.
func (m *Memory) Close() error {
	m.mu.Lock()
	m.closed = true
	clients := m.clients
	m.clients = map[*MemoryClient]struct{}{}
	all := func(*waiter) bool { return true }
	m.wake(all)
	m.mu.Unlock()
	for c := range clients {
		c.keep.close()
	}
	m.bg.close()
	if m.file != nil {
		m.file.close()
	}
	return nil
}

// SetDown makes the whole store unreachable for all its clients, as a cluster
// without a leader, or brings it back. As in Consul nothing expires while it is
// down, and every timer starts again in full when it is back.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down == down {
		return
	}
	m.down = down
	if down {
		m.wake(func(*waiter) bool { return true })
		return
	}
	now := time.Now()
	for _, s := range m.sessions {
		s.expires = now.Add(2 * m.opt.SessionTTL)
	}
	for _, s := range m.services {
		s.expires = now.Add(m.opt.CheckTTL)
	}
	m.kick()
}

// wake ends the watches that match. Call with mu held.
func (m *Memory) wake(match func(*waiter) bool) {
	for _, s := range m.spaces {
		s.feed.wake(match)
	}
	m.svcFeed.wake(match)
}

// LoseReplies makes the next n commits apply (or conflict, unseen) and return
// ErrUnknownOutcome.
func (m *Memory) LoseReplies(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose = n
}

// Wipe empties the store as if its data folder had been removed: keys,
// sessions and services are gone and the index begins anew.
func (m *Memory) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions = map[string]*memorySession{}
	m.services = map[string]*memoryService{}
	for _, s := range m.spaces {
		s.kv = newKV()
		s.feed.restart(s.kv.index)
	}
	m.svcFeed.restart(m.own.kv.index)
	m.saver.dirty++
	m.kickSaver()
}

// endSession deletes the session and its keys. Call with mu held.
func (m *Memory) endSession(id string) {
	if _, ok := m.sessions[id]; !ok {
		return
	}
	delete(m.sessions, id)
	for _, s := range m.spaces {
		held := s.kv.heldBy(id)
		if len(held) == 0 {
			continue
		}
		s.kv.index++
		for _, key := range held {
			s.kv.remove(key)
			s.feed.publish(s.kv.index, key)
		}
	}
}

// publishService tells watchers of a service. Call with mu held.
func (m *Memory) publishService(name string) {
	m.own.kv.index++
	m.svcFeed.publish(m.own.kv.index, servicePrefix(name))
}

// servicePrefix is the name in the feed of services: no name is the other's
// prefix then.
func servicePrefix(name string) string { return name + "\x00" }

// instances lists a service's, of all clusters, sorted by id. Call with mu held.
func (m *Memory) instances(name string) []Instance {
	var found []Instance
	for _, s := range m.services {
		if s.Name == name {
			found = append(found, Instance{Service: s.clone(), Node: "memory", Cluster: s.cluster, Passing: s.passing, Beating: s.passing})
		}
	}
	slices.SortFunc(found, func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Cluster, b.Cluster))
	})
	return found
}

// kick makes the expirer look again: something new may expire earlier.
func (m *Memory) kick() {
	select {
	case m.new <- struct{}{}:
	default:
	}
}

// runExpirer ends sessions and turns checks critical in their time.
func (m *Memory) runExpirer(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.new:
		case <-timer.C:
		}
		if next, ok := m.expire(time.Now()); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

// expire ends what is due and returns when to look next.
func (m *Memory) expire(now time.Time) (next time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return next, false
	}
	soonest := func(t time.Time) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	for id, s := range m.sessions {
		if now.Before(s.expires) {
			soonest(s.expires)
			continue
		}
		m.log.Debug("session expired", zap.String("session", id), zap.String("name", s.name))
		m.endSession(id)
	}
	for _, s := range m.services {
		switch {
		case !s.passing:
		case now.Before(s.expires):
			soonest(s.expires)
		default:
			s.passing = false
			m.publishService(s.Name)
		}
	}
	return next, ok
}
