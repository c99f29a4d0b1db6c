// Package api serves the sidecar's HTTP API. Its handlers are thin: they read
// the request, call what publishes or consumes, and write what it says.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/valyala/fasthttp"
	"go.uber.org/zap"

	"sidestream/discovery/httpd"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// Publisher is what publishing needs: *publish.Publisher.
type Publisher interface {
	Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error)
	PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error)
}

// Consumer is what consuming needs: *consume.Manager. All errors are *api.Error.
type Consumer interface {
	Pull(ctx context.Context, r consume.PullRequest) (*consume.Delivery, error)
	OpenStream(ctx context.Context, r consume.StreamRequest) (*consume.Stream, error)
	Ack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error)
	Nack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error)
	Extend(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error)
	Offsets(ctx context.Context, group, topic string) (api.Offsets, error)
	Seek(ctx context.Context, group, topic string, r api.SeekRequest) (api.Sought, error)
	Dead(ctx context.Context, r consume.DeadRequest) (api.DeadLetters, error)
	Redrive(ctx context.Context, group, topic string, r api.RedriveRequest) (api.Redriven, error)
	Configure(ctx context.Context, group string, g api.GroupConfig) (api.Group, error)
	Group(ctx context.Context, group string) (api.Group, error)
	Groups(ctx context.Context) (api.GroupList, error)
	DeleteGroup(ctx context.Context, group string) error
	Pause(ctx context.Context, group, topic string) (api.Group, error) // topic "": all
	Resume(ctx context.Context, group, topic string) (api.Group, error)
}

// Topics is what the brokers say of topics: *upstream.Upstream.
type Topics interface {
	Topics(ctx context.Context) ([]upstream.Topic, error)
	Refresh(ctx context.Context, name string) (upstream.Topic, error)
	CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error)
	StartOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	EndOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	TopicConfigs(ctx context.Context, topic string) (upstream.Configs, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	Peek(ctx context.Context, topic string, partition int32, offset int64, count, maxBytes int) ([]*kgo.Record, int64, int64, error)
}

// Options are what a Server serves, and its bounds.
type Options struct {
	Publisher Publisher
	Consumer  Consumer
	Topics    Topics
	Spool     Spool
	KeyField  func(topic string) string // the field that messages without a key take theirs from, "" for none; nil: none for any

	Ready  func() (causes []string, ready bool) // what is amiss, and whether it serves all the same
	Status func() any                           // for GET /status
	Drain  func()                               // begins the drain; called once, must not block

	Users map[uint32]string // the applications on the UNIX socket, by the number of their user

	Listen         string // as configured, for the Host check
	AllowedHosts   []string
	MaxRequestSize int           // bytes of a request's body
	MaxMessageSize int           // bytes of one message; 0: not known here
	MaxBodyMemory  int64         // bytes of all bodies under way, and half as much of answers; 0: no limit
	MaxConnections int           // 0: fasthttp's default, 262144
	MaxBatch       int           // messages of a batch
	MaxTimeout     time.Duration // longest ?timeout
	ReadTimeout    time.Duration // for one request to arrive; 0: 1 minute
	IdleTimeout    time.Duration // for a connection without request; 0: 5 minutes
	WriteTimeout   time.Duration // for one answer to leave; 0: 1 minute

	Version  string // of the sidecar, for GET /openapi.json
	Logger   *zap.Logger
	Gatherer prometheus.Gatherer // for GET /metrics
	Registry prometheus.Registerer
}

// Server serves the API on the listeners given to Serve.
type Server struct {
	opt     Options
	log     *zap.Logger
	guard   atomic.Pointer[httpd.Guard]
	router  router
	metrics *metrics
	memory  *bodyMemory
	answers *answerMemory
	room    *room
	http    *fasthttp.Server

	ctx      context.Context // ends when the server drains: long polls end with it
	cancel   context.CancelFunc
	draining atomic.Bool
	wg       sync.WaitGroup // one Serve a listener
	streams  sync.WaitGroup // connections that streams have taken over
	users    atomic.Pointer[map[uint32]string]
	openAPI  func() []byte // the document, made once
	failed   chan error

	// mu guards listeners.
	mu        sync.Mutex
	listeners []*listener
}

// New makes a server; Serve makes it listen.
func New(opt Options) (*Server, error) {
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	s := &Server{opt: opt, log: opt.Logger, memory: newBodyMemory(opt.MaxBodyMemory), answers: newAnswerMemory(opt.MaxBodyMemory / 2), failed: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.SetUsers(opt.Users)
	s.SetHosts(opt.AllowedHosts)
	s.openAPI = sync.OnceValue(s.describeAPI)
	var err error
	if s.metrics, err = newMetrics(opt.Registry); err != nil {
		return nil, fmt.Errorf("http metrics: %w", err)
	}
	s.room = newRoom(orMany(opt.MaxConnections), s.noRoom, s.metrics.gaveWay.Inc)
	s.router = newRouter(s.routes(), s.metrics)
	s.http = &fasthttp.Server{
		Handler:      s.serve,
		ErrorHandler: s.unreadable,
		// A body that is announced as too large is refused before it is sent.
		ExpectHandler:                s.expect,
		HeaderReceived:               s.expectToo,
		Name:                         "sidestream",
		MaxRequestBodySize:           opt.MaxRequestSize,
		StreamRequestBody:            true,                           // bodies are read by readBody, in bounded memory
		Concurrency:                  2 * orMany(opt.MaxConnections), // room bounds them; workers end a little after connections
		ReadTimeout:                  orDefault(opt.ReadTimeout, time.Minute),
		IdleTimeout:                  orDefault(opt.IdleTimeout, 5*time.Minute),
		WriteTimeout:                 orDefault(opt.WriteTimeout, time.Minute),
		ReadBufferSize:               16 << 10, // keys and headers of records come in the head
		DisablePreParseMultipartForm: true,     // the body is the message, whatever its type
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true, // and errors that can be told apart
		CloseOnShutdown:              true,
		Logger:                       quiet{s.log},
	}
	return s, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

func orMany(connections int) int {
	if connections == 0 {
		return fasthttp.DefaultConcurrency
	}
	return connections
}

// quiet is fasthttp's log: what it says is of clients that broke off.
type quiet struct{ log *zap.Logger }

func (q quiet) Printf(format string, args ...any) { q.log.Debug(fmt.Sprintf(format, args...)) }

// SetHosts allows further names in Host headers, from the next request on.
func (s *Server) SetHosts(more []string) {
	g := httpd.NewGuard(s.opt.Listen, more, false)
	s.guard.Store(&g)
}

// checkOrigin refuses what a web page could send.
func (s *Server) checkOrigin(ctx *fasthttp.RequestCtx) *api.Error {
	if why := s.guard.Load().Check(ctx); why != "" {
		return apiError(api.CodeForbidden, why)
	}
	return nil
}

// Serve serves a listener in the background until Shutdown.
func (s *Server) Serve(ln net.Listener) {
	l := newListener(newAccepting(ln, s.log), s.room)
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	s.wg.Go(func() {
		if err := s.http.Serve(l); err != nil {
			s.log.Error("http server", zap.Error(err))
			select {
			case s.failed <- fmt.Errorf("nothing is accepted any more at %s: %w", ln.Addr(), err):
			default: // one is enough
			}
		}
	})
}

// Failed has an error once a listener does not work any more, which nothing
// mends.
func (s *Server) Failed() <-chan error { return s.failed }

// BeginDrain makes publishing and pulling answer 503 draining, and ends long
// polls. It tells Options.Drain the first time.
func (s *Server) BeginDrain() {
	if s.draining.Swap(true) {
		return
	}
	s.cancel()
	if s.opt.Drain != nil {
		s.opt.Drain()
	}
}

// Shutdown answers what is under way until ctx ends, then closes what is left,
// and waits.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.cancel()
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	for _, l := range listeners {
		_ = l.Listener.Close()
		l.close((*conn).unused) // fasthttp would wait for their first request
	}
	err := s.http.ShutdownWithContext(ctx)
	if errors.Is(err, net.ErrClosed) { // the listeners, by us
		err = nil
	}
	for _, l := range listeners {
		l.close(func(*conn) bool { return true })
	}
	if err != nil {
		// Handlers notice their closed connections and deadlines.
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.http.ShutdownWithContext(last)
	}
	s.wg.Wait()
	s.room.wait()
	s.streams.Wait()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("requests were still under way and were cut off: %w", err)
	}
	return err
}

// serve is every request.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	begun := time.Now()
	if sock, ok := ctx.Conn().(*conn); ok {
		sock.begins()
		defer func() {
			if !ctx.Hijacked() && !ctx.Response.IsBodyStream() { // else it goes on
				sock.ends()
			}
		}()
	}
	if e := s.checkOrigin(ctx); e != nil {
		s.refuse(ctx, e)
		return
	}
	found, args, allowed := s.router.find(string(ctx.Method()), string(ctx.URI().PathOriginal()))
	if e := checkFraming(ctx, found); e != nil {
		s.refuse(ctx, e)
		return
	}
	if found == nil {
		s.refuse(ctx, noRoute(ctx, allowed))
		return
	}
	if body, ok := s.readBody(ctx, found); ok {
		c := &call{RequestCtx: ctx, args: args, arrived: time.Now()}
		err := c.checkOptions(found.options)
		if err == nil && found.refusedInDrain && s.draining.Load() {
			err = draining()
		}
		var made func()
		if err == nil {
			made, err = s.roomForAnswer(found)
		}
		if err == nil {
			err = found.handle(c)
			s.holdAnswer(ctx)
			made()
		}
		if err != nil {
			s.refuse(ctx, asError(err))
			if ctx.Request.IsBodyStream() { // nobody read it
				closeAfter(ctx)
			}
		}
		body.free(s.memory)
	}
	found.histo.Observe(time.Since(begun).Seconds())
	s.metrics.count(found, ctx.Response.StatusCode())
}

func draining() *api.Error {
	e := apiError(api.CodeDraining, "this sidecar is stopping and takes no new work")
	e.RetryAfterMillis = 1000
	return e
}

func (s *Server) refuse(ctx *fasthttp.RequestCtx, e *api.Error) {
	s.metrics.errors.WithLabelValues(string(e.Code)).Inc()
	if e.Code == api.CodeInternal {
		s.log.Error("request failed", zap.ByteString("method", ctx.Method()), zap.ByteString("path", ctx.Path()), zap.String("error", e.Message))
	}
	writeError(ctx, e)
}

// noRoom is the answer to a connection beyond max_connections, whatever it asks.
func (s *Server) noRoom() []byte {
	e := apiError(api.CodeRateLimited, fmt.Sprintf("there are %d connections, as many as are allowed (max_connections): close those that are not used", s.room.most))
	e.RetryAfterMillis = 1000
	var ctx fasthttp.RequestCtx
	s.refuse(&ctx, e)
	ctx.Response.SetConnectionClose()
	ctx.Response.Header.SetServer(s.http.Name)
	return []byte(ctx.Response.String())
}

func noRoute(ctx *fasthttp.RequestCtx, allowed []string) *api.Error {
	if len(allowed) == 0 {
		return apiError(api.CodeNotFound, fmt.Sprintf("there is nothing at %s", ctx.URI().PathOriginal()))
	}
	list := join(allowed)
	ctx.Response.Header.Set("Allow", list)
	return apiError(api.CodeMethodNotAllowed, fmt.Sprintf("%s takes %s, not %s", ctx.URI().PathOriginal(), list, ctx.Method()))
}

func join(list []string) string {
	out := ""
	for i, s := range list {
		if i > 0 {
			out += ", "
		}
		out += s
	}
	return out
}

// expect answers Expect: 100-continue.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	if e := s.checkOrigin(ctx); e != nil {
		s.refuse(ctx, e)
		return e.Code.Status()
	}
	found, _, _ := s.router.find(string(ctx.Method()), string(ctx.URI().PathOriginal()))
	if e := checkFraming(ctx, found); e != nil {
		s.refuse(ctx, e)
		return e.Code.Status()
	}
	if n := ctx.Request.Header.ContentLength(); n > s.opt.MaxRequestSize && (found == nil || !answersAsItGoes(&ctx.Request.Header, found)) {
		e := s.tooLarge(n)
		s.refuse(ctx, e)
		closeAfter(ctx)
		return e.Code.Status()
	}
	return fasthttp.StatusContinue
}

// expectToo has a body that is announced as too large refused by expect, whether
// the client asks before it sends it or not: of a body whose length is known
// fasthttp would wait for the first 8 KiB.
func (s *Server) expectToo(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if h.ContentLength() > s.opt.MaxRequestSize {
		path, _, _ := strings.Cut(string(h.RequestURI()), "?")
		found, _, _ := s.router.find(string(h.Method()), path)
		if found == nil || !answersAsItGoes(h, found) {
			h.Set(fasthttp.HeaderExpect, "100-continue")
		}
	}
	return fasthttp.RequestConfig{}
}

func (s *Server) tooLarge(n int) *api.Error {
	if n <= 0 {
		return apiError(api.CodeRequestTooLarge, fmt.Sprintf("the request's body is larger than the %d bytes allowed (max_request_bytes)", s.opt.MaxRequestSize))
	}
	return apiError(api.CodeRequestTooLarge, fmt.Sprintf("the request's body has %d bytes: at most %d are allowed (max_request_bytes)", n, s.opt.MaxRequestSize))
}

// unreadable answers a request that fasthttp could not read.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		s.refuse(ctx, s.tooLarge(ctx.Request.Header.ContentLength()))
	case errors.As(err, &small):
		s.refuse(ctx, apiError(api.CodeBadRequest, fmt.Sprintf("the request's head is larger than %d bytes", s.http.ReadBufferSize)))
		ctx.SetStatusCode(fasthttp.StatusRequestHeaderFieldsTooLarge)
	case errors.As(err, &netErr) && netErr.Timeout():
		s.refuse(ctx, apiError(api.CodeBadRequest, "the request did not arrive in time"))
		ctx.SetStatusCode(fasthttp.StatusRequestTimeout)
	case httpd.CheckError(err) != nil:
		s.refuse(ctx, framingError(httpd.CheckError(err)))
		closeAfter(ctx)
	default:
		s.log.Debug("a request that cannot be read", zap.Error(err))
		closeAfter(ctx)
		s.refuse(ctx, apiError(api.CodeBadRequest, "the request cannot be read: it is not valid HTTP/1.1 (a request line such as GET /topics HTTP/1.1, then headers with one Host among them, an empty line, and a body as long as its Content-Length)"))
	}
}
