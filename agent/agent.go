package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"sidestream/agent/committed"
	"sidestream/agent/controller"
	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/broker/disk"
	"sidestream/discovery"
	"sidestream/discovery/clock"
)

// Version is what this agent registers itself with; the binary sets it.
var Version = "dev"

// Agent is one storage host's daemon. Its methods may be called from several
// goroutines; Run is called once.
type Agent struct {
	cfg      Config
	store    discovery.Store
	log      *zap.Logger
	spare    *zap.Logger // for what clients can cause at any rate: the first of equal lines in ten seconds
	open     func(broker.Config, broker.Options) (host, error)
	heldIn   func() ([]broker.Held, error) // what the folder has, before the broker is opened
	kernel   func() (time.Time, bool)      // what its clock says, if it is synchronised; nil: it is asked
	registry *prometheus.Registry
	metrics  *metrics
	alarms   *alarms
	mirror   *facts.Mirror
	writer   *facts.Writer
	offsets  *committed.Keeper

	ready    chan struct{} // closed when the agent serves for the first time
	readied  sync.Once
	life     context.Context // ends when Run stops, before the broker closes
	end      context.CancelFunc
	wake     chan struct{} // the reconciler is to look again
	stand    chan struct{} // the controller is to look again
	suspects chan struct{} // who watches for suspects is to look again
	rebuilds chan struct{} // one token: a rebuild at a time

	identityTurn chan struct{} // one token: a write of the identity file at a time

	mu          sync.Mutex // guards what follows; never held across I/O
	identity    *discovery.Identity
	broker      host  // nil before it is opened
	id          int32 // 0 before it is known
	kept        int32 // the id that the folder says, 0: none
	clusterID   string
	session     discovery.Session      // nil: not registered
	service     discovery.Registration // nil: not yet
	alone       bool
	electedNow  bool
	led         map[facts.Part]standing
	view        *broker.View
	viewChanged chan struct{} // closed when view is replaced
	httpAddr    string
	clock       *clock.Clock // nil before Run
	outage      Outage
	silences    silences
	seen        time.Time // when the store last answered
}

// host is the broker as the agent uses it.
type host interface {
	Serve() error
	Addr() string
	Advertised() (host string, port int32)
	Held() []broker.Held
	Lead(broker.Lead) error
	Resign(id broker.UUID, partition int32)
	Remove(id broker.UUID, partition int32) error
	Alarms() []string
	SetQuota(broker.QuotaConfig) error
	Close(context.Context) error
}

// sparing lets one of equal lines through in ten seconds.
func sparing(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, 10*time.Second, 1, 0)
	}))
}

// New makes an agent; nothing is opened before Run. A nil log is none.
func New(cfg Config, store discovery.Store, log *zap.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a := &Agent{
		cfg: cfg, store: store, log: log, spare: sparing(log), registry: registry, metrics: newMetrics(registry),
		ready: make(chan struct{}),
		wake:  make(chan struct{}, 1), stand: make(chan struct{}, 1), suspects: make(chan struct{}, 1), rebuilds: make(chan struct{}, 1),
		identityTurn: make(chan struct{}, 1),
		led:          map[facts.Part]standing{},
		view:         &broker.View{Controller: -1, Topics: map[string]*broker.TopicView{}},
		viewChanged:  make(chan struct{}),
		outage:       Outage{Missing: []Absence{}},
	}
	a.life, a.end = context.WithCancel(context.Background())
	a.open = func(cfg broker.Config, opts broker.Options) (host, error) { return broker.Open(cfg, a, opts) }
	a.heldIn = func() ([]broker.Held, error) {
		return broker.HeldIn(disk.OS, append([]string{cfg.DataDir}, cfg.Broker.LogDirs...)...)
	}
	a.rebuilds <- struct{}{}
	a.identityTurn <- struct{}{}
	a.alarms = newAlarms(log, a.metrics.alarms)
	a.mirror = facts.NewMirror(store, cfg.StoreTimeout, a.folderCluster, log)
	a.writer = facts.NewWriter(store, cfg.StoreTimeout, a.mirror.Learn)
	a.offsets = committed.New(store, committed.Options{Timeout: cfg.StoreTimeout, Logger: log.Named("offsets"), Topic: a.topicName,
		Pace: func() time.Duration { return committed.Pace(len(a.View().Brokers)) }})
	return a, nil
}

// Ready is closed once the agent serves what it leads.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// BrokerAddr is the address that the broker's listener is bound to, "" before.
func (a *Agent) BrokerAddr() string {
	if b := a.theBroker(); b != nil {
		return b.Addr()
	}
	return ""
}

// HTTPAddr is the address that the HTTP endpoints are bound to, "" before.
func (a *Agent) HTTPAddr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.httpAddr
}

// ID is the broker's id, 0 while a new folder has none.
func (a *Agent) ID() int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.id
}

// Run serves until ctx ends, then stops cleanly and returns nil. Any other
// return is an error that says why the agent could not start or go on.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer a.end()
	identity, err := discovery.OpenIdentity(a.cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, identity.Close()) }()
	if err := a.adopt(identity); err != nil {
		return err
	}
	folderTime := a.openClock()

	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	g, run := errgroup.WithContext(inner)
	stopHTTP, failed, err := a.serveHTTP()
	if err != nil {
		return err
	}
	defer stopHTTP()

	g.Go(func() error { return folderTime.Run(run) })
	reg := &registrar{a: a}
	g.Go(func() error {
		select {
		case err := <-failed:
			return err
		case <-run.Done():
			return nil
		}
	})
	err = a.start(run, reg)
	if err == nil {
		g.Go(func() error { return a.mirror.Run(run) })
		g.Go(func() error { return reg.run(run) })
		g.Go(func() error { return a.reconcile(run) })
		g.Go(func() error { return a.watchView(run) })
		g.Go(func() error { return a.watchAlone(run) })
		g.Go(func() error { return a.watchFolder(run) })
		g.Go(func() error { return a.watchSilence(run) })
		g.Go(func() error { return a.watchOutage(run) })
		g.Go(func() error { return a.controller().Run(run) })
		g.Go(func() error { return a.suspect(run) })
		g.Go(func() error { return a.offsets.Run(run) })
		g.Go(func() error { return a.tellTime(run) })
	} else {
		cancel()
	}
	err = errors.Join(err, g.Wait())
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		err = nil
	}
	return errors.Join(err, a.stop(reg))
}

// adopt takes over what the folder says of itself.
func (a *Agent) adopt(identity *discovery.Identity) error {
	var kept int32
	if identity.ID != "" {
		n, err := strconv.ParseInt(identity.ID, 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("data folder %s says broker id %q: it is not the folder of an agent", a.cfg.DataDir, identity.ID)
		}
		kept = int32(n)
	}
	if kept != 0 && a.cfg.ID != 0 && kept != a.cfg.ID {
		return fmt.Errorf("id: got %d, but data folder %s is that of broker %d: use that id, leave id out, or give this broker its own folder",
			a.cfg.ID, a.cfg.DataDir, kept)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.identity, a.clusterID, a.kept = identity, identity.ClusterID, kept
	if a.id = kept; a.id == 0 {
		a.id = a.cfg.ID
	}
	if a.id != 0 {
		a.writer.SetName(strconv.Itoa(int(a.id)))
	}
	return nil
}

// start registers the id, as far as the store can be reached, then opens the
// broker and serves. A folder that has no id yet waits for the store.
func (a *Agent) start(ctx context.Context, reg *registrar) error {
	if err := reg.first(ctx); err != nil {
		return err
	}
	cfg := a.cfg.Broker
	cfg.ID, cfg.DataDir = a.ID(), a.cfg.DataDir
	b, err := a.open(cfg, broker.Options{Logger: a.log.Named("broker"), Registerer: a.registry, Now: a.folderTime().Now})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.broker = b
	a.mu.Unlock()
	if err := b.Serve(); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(b.Addr())
	if ip := net.ParseIP(host); err == nil && (ip == nil || !ip.IsLoopback()) {
		a.log.Warn("the broker listens beyond this host without TLS or SASL: whoever can reach it can read and write every topic", zap.String("listen", b.Addr()))
	}
	a.refreshView()
	return nil
}

// stop leaves the cluster in good order: other agents see this broker go
// before its connections end.
func (a *Agent) stop(reg *registrar) error {
	a.end()
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.StoreTimeout)
	reg.leave(ctx)
	cancel()
	b := a.theBroker()
	if b == nil {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.Background(), a.cfg.ShutdownTimeout)
	defer cancel()
	return b.Close(ctx)
}

func (a *Agent) controller() *controller.Controller {
	return controller.New(controller.Config{
		Store: a.store, Writer: a.writer, Mirror: a.mirror, Timeout: a.cfg.StoreTimeout,
		Self: func() controller.Self {
			s := a.liveSession()
			if s == nil {
				return controller.Self{}
			}
			return controller.Self{Broker: a.record(s), Session: s}
		},
		Changed: a.stand,
		Elected: func(is bool) {
			a.mu.Lock()
			a.electedNow = is
			a.mu.Unlock()
			a.metrics.controller.Set(map[bool]float64{true: 1}[is])
			nudge(a.suspects)
		},
		Logger: a.log.Named("controller"),
	})
}

// watchView makes a new view whenever the picture of the store changes.
func (a *Agent) watchView(ctx context.Context) error {
	for {
		_, changed := a.mirror.Latest()
		a.refreshView()
		nudge(a.wake)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// watchAlone decides that the store is away when nothing was read of it for
// the whole start wait; from then on the folder alone says what to serve.
func (a *Agent) watchAlone(ctx context.Context) error {
	timer := time.NewTimer(a.cfg.StartWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
	}
	a.mu.Lock()
	a.alone = true
	a.mu.Unlock()
	nudge(a.wake)
	return nil
}

// refreshView makes the view that belongs to the present state, and wakes who
// waits for one.
func (a *Agent) refreshView() {
	f, _ := a.mirror.Latest()
	b := a.theBroker()
	self := broker.Node{Rack: a.cfg.Rack}
	if b != nil && b.Addr() != "" {
		self.Host, self.Port = b.Advertised()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	self.ID = a.id
	a.view = buildView(viewInput{self: self, clusterID: a.clusterID, facts: f, led: a.led, last: a.view})
	close(a.viewChanged)
	a.viewChanged = make(chan struct{})
	a.metrics.led.Set(float64(len(a.led)))
}

// View is the newest snapshot of the cluster.
func (a *Agent) View() *broker.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view
}

// viewAndNext is the view, and a channel that is closed when there is a newer.
func (a *Agent) viewAndNext() (*broker.View, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view, a.viewChanged
}

func (a *Agent) theBroker() host {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broker
}

func (a *Agent) folderCluster() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clusterID
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
