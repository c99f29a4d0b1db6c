package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"
	"go.uber.org/zap"

	"sidestream/broker"
	"sidestream/discovery/httpd"
)

const (
	httpTimeout    = 10 * time.Second
	rebuildTimeout = 2 * time.Minute
	maxHTTPBody    = 64 << 10
	rebuildPath    = "/metadata/rebuild"
)

// Status is the answer to GET /status.
type Status struct {
	ID         int32             `json:"id"` // 0: a new folder that is not registered yet
	ClusterID  string            `json:"cluster_id"`
	Version    string            `json:"version"`
	Broker     string            `json:"broker"`     // address that the Kafka protocol is served on
	Store      string            `json:"store"`      // same, missing, foreign or unread: how its cluster-id relates to ours
	Session    string            `json:"session"`    // proven, unproven or none
	Controller int32             `json:"controller"` // broker id, -1: none
	Brokers    []int32           `json:"brokers"`    // registered and serving
	Partitions []PartitionStatus `json:"partitions"` // led here
	Alarms     []string          `json:"alarms"`
	Outage     Outage            `json:"outage"` // what of the cluster has no leader
	Topics     int               `json:"cluster_topics"`
	InAll      int               `json:"cluster_partitions"` // of those topics
	// AlarmsSince is since when the agent's own alarms have stood, by their text.
	AlarmsSince map[string]time.Time `json:"alarms_since,omitempty"`
}

// PartitionStatus is one partition that this broker leads.
type PartitionStatus struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Epoch     int32  `json:"epoch"`
	Start     int64  `json:"start"`
	End       int64  `json:"end"`
	Bytes     int64  `json:"bytes"`
}

// Health is the answer to GET /healthz and /readyz, in the sidecar's form.
type Health struct {
	Status string   `json:"status"` // ok, or what is wrong
	Causes []string `json:"causes,omitempty"`
}

// serveHTTP binds the endpoints and serves them until stop is called. failed has
// an error when they do not work any more.
func (a *Agent) serveHTTP() (stop func(), failed <-chan error, err error) {
	bound, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w: choose another address for the agent's HTTP endpoints", err)
	}
	stop, failed = a.serveHTTPOn(bound)
	return stop, failed, nil
}

func (a *Agent) serveHTTPOn(bound net.Listener) (stop func(), failed <-chan error) {
	listener := newAccepting(bound, a.log.Named("http"))
	metrics := fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	guard := a.guard()
	server := &fasthttp.Server{
		Handler: func(c *fasthttp.RequestCtx) {
			if refused(c, guard) {
				return
			}
			a.route(c, metrics)
		},
		ErrorHandler:          unreadable,
		SecureErrorLogMessage: true, // and errors that can be told apart
		Name:                  "sidestream-agent",
		ReadTimeout:           httpTimeout,
		WriteTimeout:          httpTimeout + rebuildTimeout,
		IdleTimeout:           time.Minute,
		MaxRequestBodySize:    maxHTTPBody,
		Logger:                zap.NewStdLog(a.log.Named("http")),
		CloseOnShutdown:       true,
	}
	a.mu.Lock()
	a.httpAddr = listener.Addr().String()
	a.mu.Unlock()
	var wg sync.WaitGroup
	ended := make(chan error, 1)
	wg.Go(func() {
		if err := server.Serve(listener); err != nil {
			ended <- fmt.Errorf("the HTTP endpoints at %s stopped: %w", listener.Addr(), err)
		}
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
		defer cancel()
		if err := server.ShutdownWithContext(ctx); err != nil {
			a.log.Debug("HTTP requests were cut off", zap.Error(err))
		}
		// A server that had not begun to serve yet does not see the shutdown.
		_ = listener.Close()
		wg.Wait()
	}, ended
}

func (a *Agent) route(c *fasthttp.RequestCtx, metrics fasthttp.RequestHandler) {
	method, path := string(c.Method()), string(c.Path())
	allowed := fasthttp.MethodGet
	switch path {
	case "/", "/healthz", "/readyz", "/status", "/topics", "/metrics":
	case rebuildPath:
		allowed = fasthttp.MethodPost
	default:
		fail(c, fasthttp.StatusNotFound, "not_found", "there are GET /, /healthz, /readyz, /status, /topics, /metrics and POST /metadata/rebuild")
		return
	}
	if method != allowed && !(allowed == fasthttp.MethodGet && method == fasthttp.MethodHead) {
		c.Response.Header.Set("Allow", allowed)
		fail(c, fasthttp.StatusMethodNotAllowed, "method_not_allowed", fmt.Sprintf("use %s %s", allowed, path))
		return
	}
	switch path {
	case "/":
		a.about(c)
	case "/healthz":
		answer(c, fasthttp.StatusOK, Health{Status: "ok"})
	case "/readyz":
		a.readyz(c)
	case "/status":
		answer(c, fasthttp.StatusOK, a.Status())
	case "/topics":
		answer(c, fasthttp.StatusOK, a.Topics(string(c.QueryArgs().Peek("topic"))))
	case "/metrics":
		metrics(c)
	case rebuildPath:
		a.postRebuild(c)
	}
}

func (a *Agent) readyz(c *fasthttp.RequestCtx) {
	select {
	case <-a.life.Done():
		answer(c, fasthttp.StatusServiceUnavailable, Health{"not ready", []string{"stopping"}})
	case <-a.ready:
		answer(c, fasthttp.StatusOK, Health{Status: "ok", Causes: a.Alarms()})
	default:
		answer(c, fasthttp.StatusServiceUnavailable, Health{"not ready", append([]string{"starting: the agent has not taken its partitions yet"}, a.Alarms()...)})
	}
}

// Status describes the agent now.
func (a *Agent) Status() Status {
	view, session, b := a.View(), a.liveSession(), a.theBroker()
	f, _ := a.mirror.Latest()
	s := Status{ID: a.ID(), ClusterID: a.folderCluster(), Version: Version, Broker: a.BrokerAddr(), Store: f.Cluster.String(),
		Session: "none", Controller: view.Controller, Brokers: []int32{}, Partitions: []PartitionStatus{}, Alarms: a.Alarms(), Outage: a.Outage(), Topics: len(view.Topics), AlarmsSince: a.alarms.since()}
	for _, t := range view.Topics {
		s.InAll += len(t.Partitions)
	}
	if session != nil {
		s.Session = session.Ownership().String()
	}
	for _, n := range view.Brokers {
		s.Brokers = append(s.Brokers, n.ID)
	}
	if b == nil {
		return s
	}
	for _, h := range b.Held() {
		t := view.Topics[h.Topic]
		if t == nil || t.ID != h.ID || int(h.Partition) >= len(t.Partitions) || t.Partitions[h.Partition].Leader != s.ID {
			continue
		}
		s.Partitions = append(s.Partitions, PartitionStatus{Topic: h.Topic, Partition: h.Partition,
			Epoch: t.Partitions[h.Partition].Epoch, Start: h.Start, End: h.End, Bytes: h.Bytes})
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return s
}

// Alarms is what an operator must look at, the broker's alarms included.
func (a *Agent) Alarms() []string {
	list := a.alarms.list()
	if b := a.theBroker(); b != nil {
		list = append(list, b.Alarms()...)
	}
	if list == nil {
		list = []string{}
	}
	return list
}

func (a *Agent) postRebuild(c *fasthttp.RequestCtx) {
	var ask struct {
		ClusterID string `json:"cluster_id"`
	}
	if err := json.Unmarshal(c.PostBody(), &ask); err != nil {
		fail(c, fasthttp.StatusBadRequest, "bad_request", fmt.Sprintf(`the body is not readable (%v): send {"cluster_id":"<the cluster-id to keep>"}`, err))
		return
	}
	if err := httpd.CheckJSON(c.PostBody(), &ask); err != nil {
		fail(c, fasthttp.StatusBadRequest, "bad_request", fmt.Sprintf(`the body is not the JSON expected: %v`, err))
		return
	}
	if _, err := broker.ParseUUID(ask.ClusterID); err != nil {
		fail(c, fasthttp.StatusBadRequest, "bad_request", fmt.Sprintf("cluster_id: got %q: name the cluster-id to keep, as the agents' /status shows it", ask.ClusterID))
		return
	}
	ctx, cancel := context.WithTimeout(a.life, rebuildTimeout)
	defer cancel()
	done, err := a.Rebuild(ctx, ask.ClusterID)
	switch {
	case err == nil:
		answer(c, fasthttp.StatusOK, done)
	case errors.Is(err, ErrRebuild):
		fail(c, fasthttp.StatusConflict, "rebuild_refused", err.Error())
	case errors.Is(err, broker.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		fail(c, fasthttp.StatusServiceUnavailable, "unavailable", err.Error()+"; what was written stays, ask again to go on")
	default:
		fail(c, fasthttp.StatusInternalServerError, "internal", err.Error())
	}
}

func answer(c *fasthttp.RequestCtx, status int, v any) {
	c.SetStatusCode(status)
	c.SetContentType("application/json")
	enc := json.NewEncoder(c)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // into memory: the types above always can be
}

// fail answers in the form of the sidecar's errors.
func fail(c *fasthttp.RequestCtx, status int, code, message string) {
	answer(c, status, map[string]any{"error": map[string]any{"code": code, "message": message,
		"retryable": status == fasthttp.StatusServiceUnavailable}})
}
