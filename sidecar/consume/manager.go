// Package consume serves consumer groups to the applications of one host.
//
// Applications pull messages under a lease and acknowledge them; the [Manager]
// does the rest: it joins a group when an application pulls and leaves it when
// none does, plans the group where this sidecar holds the planner's lock,
// follows its own assignment, owns partitions one at a time through owner locks
// and generations, reads them ahead from the brokers, and remembers what was
// acknowledged: on local disk before it answers, in the coordination store soon
// after.
package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// Upstream is what consuming needs of the brokers: *upstream.Upstream.
type Upstream interface {
	Client(opts ...kgo.Opt) (*kgo.Client, error)
	Hearing(heard upstream.Heard) (kgo.Opt, error)
	Cause(err error) error
	Unpacking() *upstream.Unpacking
	Topic(ctx context.Context, name string) (upstream.Topic, error)
	Refresh(ctx context.Context, name string) (upstream.Topic, error)
	Topics(ctx context.Context) ([]upstream.Topic, error)
	StartOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	EndOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error)
	MaxMessageBytes(ctx context.Context, topic string) (int, bool)
	Inspect(ctx context.Context, topic string, partition int32, offset int64) (upstream.Inspected, error)
	NextReadable(ctx context.Context, topic string, partition int32, from int64, most int) (next int64, found bool, err error)
	Peek(ctx context.Context, topic string, partition int32, offset int64, count, maxBytes int) (rs []*kgo.Record, next, end int64, err error)
}

// Deps is what a Manager works with. It closes none of them.
type Deps struct {
	ID      string // of this sidecar
	Nonce   string // of its data folder
	Service string // ID of its registration; "": others cannot suspect it
	Store   discovery.Store
	// Session is the sidecar's one session: a new one after one was lost, nil
	// while there is none.
	Session func() discovery.Session
	// Registration is the sidecar's own. It may be nil or return nil: then this
	// sidecar suspects no other, and goes by its session for exclusive=strict.
	Registration func() discovery.Registration
	Upstream     Upstream
	Local        *offsets.Local
	Checkpointer *offsets.Checkpointer // the caller runs and closes it
	Logger       *zap.Logger
	Registerer   prometheus.Registerer
	AutoCreate   bool // a pull of an unknown topic creates it
}

// PullRequest asks for messages.
type PullRequest struct {
	Group, Topic string        // Topic: one, or names and patterns with commas between them
	Max          int           // 0: the default
	Wait         time.Duration // how long to wait for the first message
	Lease        time.Duration // 0: the group's
	From         string        // "" or where the group begins: earliest, latest, RFC 3339; must not contradict the group
	AutoAck      bool          // count as acknowledged when handed out; no receipts
	Ack, Nack    []string      // receipts to settle first
	Brief        bool          // of receipts that were simply settled the answer need not name the message
	AttemptToken string        // "" or what the application repeats when the answer did not arrive: it then gets the same messages
	Alive        func() bool   // whether the application is still there; nil: yes

	stream *Stream // that the pull is of, if any
}

// Delivery is the answer to a pull.
type Delivery struct {
	api.Pulled
	// Return takes the messages back with no attempt spent. Call it when the
	// answer could not be written; it does nothing for messages that were
	// settled meanwhile, and may be called on an empty delivery.
	Return func()
}

// Manager serves all groups of one sidecar. It is safe for concurrent use. All
// errors of its methods are *api.Error.
type Manager struct {
	cfg          Config
	id           string
	nonce        string
	tokens       *tokens
	service      string
	store        discovery.Store
	session      func() discovery.Session
	registration func() discovery.Registration
	up           Upstream
	local        *offsets.Local
	checkpointer *offsets.Checkpointer
	log          *zap.Logger
	metrics      *metrics
	removed      removedSeries
	autoCreate   bool
	reader       *reader
	outage       *outage
	dead         *deadWriter
	lent         *lendings // what streams have out
	topics       *catalogue

	ctx        context.Context // the life of everything that runs
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	takes      chan struct{} // one for each partition that is being taken
	unlocks    chan struct{} // one for each that is being let go: takes wait for brokers, these must not
	keeping    chan struct{} // one while hand-outs are being written to disk
	lookTopics chan struct{} // wakes the look at topics
	counting   chan struct{} // one for whoever adds to the census
	judgePoke  chan struct{} // wakes the judges' watch: judges has begun or ended
	drained    chan struct{} // closed when draining begins

	mu        sync.Mutex // guards all below
	groups    map[string]*group
	assigned  map[string]assignedEntry // by group, as last watched
	judges    []*judge
	draining  bool
	redriving map[string]bool // by group: a redrive runs here
}

// New makes a Manager; Start makes it work.
func New(cfg Config, deps Deps) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	if deps.ID == "" || deps.Store == nil || deps.Session == nil || deps.Upstream == nil || deps.Local == nil || deps.Checkpointer == nil {
		return nil, errors.New("consume: ID, Store, Session, Upstream, Local and Checkpointer must be given")
	}
	log := deps.Logger
	if log == nil {
		log = zap.NewNop()
	}
	met := newMetrics(deps.Registerer)
	r, err := newReader(deps.Upstream, cfg, met, log)
	if err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	m := &Manager{
		cfg: cfg, id: deps.ID, nonce: deps.Nonce, service: deps.Service,
		store: deps.Store, session: deps.Session, registration: deps.Registration,
		up: deps.Upstream, local: deps.Local, checkpointer: deps.Checkpointer,
		log: log, metrics: met, autoCreate: deps.AutoCreate, reader: r, outage: newOutage(log), lent: newLendings(), topics: newCatalogue(),
		takes:      make(chan struct{}, cfg.Parallel),
		tokens:     newTokens(),
		keeping:    make(chan struct{}, 1),
		unlocks:    make(chan struct{}, cfg.Parallel),
		lookTopics: make(chan struct{}, 1),
		judgePoke:  make(chan struct{}, 1),
		counting:   make(chan struct{}, 1),
		drained:    make(chan struct{}),
		groups:     map[string]*group{},
		assigned:   map[string]assignedEntry{},
		redriving:  map[string]bool{},
	}
	m.dead = newDeadWriter(deps.Upstream, cfg, log)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// Start begins to follow assignments and to read.
func (m *Manager) Start() {
	m.reader.start()
	m.wg.Go(func() { m.followAssigned(m.ctx) })
	m.wg.Go(func() { m.runJudges(m.ctx) })
	m.wg.Go(func() { m.watchTopics(m.ctx) })
	m.wg.Go(func() { m.tick(m.ctx) })
	m.wg.Go(func() { m.watchAges(m.ctx) })
	m.wg.Go(func() { m.runKeeper(m.ctx) })
}

// Close drains: no new leases, a bounded wait for the acks of those that are
// out, positions written, partitions and memberships released. When ctx ends
// first the rest is dropped; its keys end with the session. The error says so.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.draining {
		m.draining = true
		close(m.drained)
	}
	groups := m.list()
	m.mu.Unlock()
	for _, g := range groups {
		g.leaveNow()
	}
	var left error
	for _, g := range groups {
		select {
		case <-g.done:
		case <-ctx.Done():
			left = fmt.Errorf("consume: group %s could not be left in time: %w", g.name, ctx.Err())
		}
	}
	m.stop()
	return left
}

// stop ends everything as it is, releasing nothing.
func (m *Manager) stop() {
	m.cancel()
	m.wg.Wait()
	m.reader.close()
	m.dead.close()
}

// list needs mu.
func (m *Manager) list() []*group {
	gs := make([]*group, 0, len(m.groups))
	for _, g := range m.groups {
		gs = append(gs, g)
	}
	return gs
}

func (m *Manager) all() []*group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list()
}

// lookup finds a group that this sidecar is in; nil when it is in none of the
// name.
func (m *Manager) lookup(name string) *group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[name]
}

// enter begins to be in a group, once.
func (m *Manager) enter(name string, config discovery.GroupConfig) (*group, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.draining {
		return nil, errDraining()
	}
	if g := m.groups[name]; g != nil {
		return g, nil
	}
	g := newGroup(m, name, config)
	m.groups[name] = g
	m.wg.Go(func() { g.run(m.ctx) })
	return g, nil
}

func (m *Manager) forget(g *group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.groups, g.name)
	m.leaveSeries(seriesOf{group: g.name})
}

// tickEvery is how late a lease may be noticed to be over.
const tickEvery = 100 * time.Millisecond

// tick ends leases in their time.
func (m *Manager) tick(ctx context.Context) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, g := range m.all() {
				for _, s := range g.all() {
					s.tick(now)
					m.divertDue(ctx, s, now)
				}
			}
			m.keepHandOuts(ctx)
		}
	}
}
