// Package kafka serves the Kafka wire protocol for a broker. SKIPPED.md lists what it knowingly does not do.
//
// Connections begin on an event loop, which decodes small requests and answers what needs no waiting. A connection
// that needs more (a Fetch, anything that waits, more in flight than is allowed, a client that does not read) is handed
// over to a goroutine of its own and stays there: from then on the loop has nothing to do with it, back-pressure is
// plain blocking, and records go out by sendfile. Both ways of serving share one dispatch, one order of answers and one
// memory budget.
package kafka

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/broker/record/unpack"
)

// Server serves one listener.
type Server struct {
	cfg       Config
	backend   Backend
	log       *zap.Logger
	metrics   *metrics
	perAPI    map[int16]apiMetrics
	memory    *budget
	copies    *copies
	admission *admission
	produce   *limiter
	fetch     *limiter

	ctx     context.Context // over when the server stops
	cancel  context.CancelFunc
	wg      sync.WaitGroup              // the engine, the sweeper, the goroutines of handed-over connections
	engine  atomic.Pointer[gnet.Engine] // of the event loops that run, or ran last
	addr    atomic.Pointer[string]      // set when bound
	trouble atomic.Pointer[string]      // why nobody can connect; nil when all is well

	descriptors int // how many the process may have
	draining    atomic.Bool
	loopsGone   chan struct{}
	unpacker    unpack.Unpacker
	unpacking   chan struct{} // holds one token for each request whose batches are being unpacked
	inFlight    atomic.Int64  // requests begun and not yet answered
	hush        hush
	idle        idlers

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

// New makes a server; Serve starts it. log is not nil; reg may be.
func New(cfg Config, backend Backend, log *zap.Logger, reg prometheus.Registerer) *Server {
	s := &Server{
		cfg: cfg, backend: backend, log: log,
		memory:    newBudget(cfg.MaxRequestMemory),
		admission: &admission{max: cfg.MaxConnections, perIP: cfg.MaxConnectionsPerIP, most: mostLeaving(descriptorLimit()), byIP: map[string]int{}},
		produce:   newLimiter(cfg.Produce),
		fetch:     newLimiter(cfg.Fetch),
		conns:     map[*conn]struct{}{},
		loopsGone: make(chan struct{}),
		unpacker:  unpack.Unpacker{Limit: cmp.Or(cfg.MaxUnpackedBytes, unpack.DefaultLimit)},
		unpacking: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), // the others go on meanwhile
	}
	s.copies = newCopies(s.memory)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.metrics = newMetrics(reg, s.memory)
	s.perAPI = s.metrics.forAPIs()
	return s
}

// Addr is the bound address, host:port; empty before Serve.
func (s *Server) Addr() string {
	if a := s.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// drainTime is how long Close waits for answers that are on their way.
const drainTime = 2 * time.Second

// Close answers what is on its way (for a bounded time, shorter if ctx is over first), closes every connection and
// waits until all goroutines have ended. New requests are no longer taken from its beginning.
func (s *Server) Close(ctx context.Context) {
	s.draining.Store(true)
	s.cancel() // ends long polls, which then answer with what there is
	s.drain(ctx)
	s.stopLoops(ctx)
	for _, c := range s.connections() { // the loops are gone: these are the handed-over ones
		c.kill()
	}
	s.wg.Wait()
}

func (s *Server) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// sweep closes connections whose requests come too slowly and those on the loops that are idle, and lets go of memory
// that nobody needs. Handed-over connections that are idle have deadlines instead.
func (s *Server) sweep() {
	every := min(s.cfg.IdleTimeout, s.cfg.ReceiveTimeout) / 4
	tick := time.NewTicker(min(every, lookEvery))
	defer tick.Stop()
	trimmed := time.Now()
	var garbage collector
	defer func() { garbage.adapt(0, 0) }()
	for {
		select {
		case now := <-tick.C:
			short := s.memory.short()
			for _, c := range s.connections() {
				c.cutSlow(now, short)
				c.expire(now)
			}
			if now.Sub(trimmed) >= every {
				s.memory.shelf.trim()
				trimmed = now
			}
			garbage.adapt(s.memory.used.Load()+s.memory.shelf.kept(), s.cfg.MaxRequestMemory)
			s.tellLeftOut(now)
			s.idle.forget(now)
		case <-s.memory.shelf.full:
			runtime.GC()
		case <-s.ctx.Done():
			return
		}
	}
}

// clusterContext bounds a request to the cluster by what the client will wait for, and by our own limit.
func (s *Server) clusterContext(ctx context.Context, timeoutMillis int32) (context.Context, context.CancelFunc) {
	d := s.cfg.RequestTimeout
	if asked := time.Duration(timeoutMillis) * time.Millisecond; asked > 0 {
		d = min(d, asked)
	}
	return context.WithTimeout(ctx, d)
}

// clusterCode is codeOf for errors of requests to the cluster, in which an ended context means "not in time".
func (s *Server) clusterCode(err error) int16 {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return codeRequestTimedOut
	}
	return codeOf(err)
}

// refuse fills in an error code and its text.
func (s *Server) refuse(code *int16, message **string, err error) {
	*code, *message = codeOf(err), text(err)
	s.metrics.failed(*code)
}

func (s *Server) refuseCluster(code *int16, message **string, err error) {
	*code, *message = s.clusterCode(err), text(err)
	s.metrics.failed(*code)
}

func (s *Server) field(c *call) zap.Field { return zap.String("client_id", c.header.clientID) }

func fieldReason(reason string) zap.Field { return zap.String("reason", reason) }
