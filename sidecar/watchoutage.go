package sidecar

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

const (
	outageLook = time.Second
	outageAsk  = 2 * time.Second  // longest time for one look
	usedFor    = 10 * time.Minute // since the last publish a topic counts as used
	mostUsed   = 1000             // topics that the brokers are asked about; those used last
)

// outageWatch knows what of the topics that are used here is away. It passes
// publishes on, and counts those that fail for want of a broker.
type outageWatch struct {
	next  publishes
	log   *zap.Logger
	gauge prometheus.Gauge

	mu     sync.Mutex // guards what follows; never held across I/O
	topics map[string]*usedTopic
	state  outage
}

// publishes is what publishes in the end.
type publishes interface {
	Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error)
	PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error)
}

// usedTopic is a topic that was published to.
type usedTopic struct {
	at time.Time
	failures
}

func newOutageWatch(next publishes, r prometheus.Registerer, log *zap.Logger) (*outageWatch, error) {
	w := &outageWatch{next: next, log: log, topics: map[string]*usedTopic{},
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_upstream_away_partitions",
			Help: "Partitions of the topics that applications use here which have no leader within reach."})}
	return w, r.Register(w.gauge)
}

// Publish passes a message on.
func (w *outageWatch) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	done, err := w.next.Publish(ctx, topic, m, o)
	w.note(topic, err, 1, nil)
	return done, err
}

// PublishBatch passes messages on.
func (w *outageWatch) PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	results, err := w.next.PublishBatch(ctx, topic, ms, o)
	w.note(topic, err, int64(len(ms)), results)
	return results, err
}

// note remembers that a topic is used, and what of it failed.
func (w *outageWatch) note(topic string, err error, messages int64, results []api.BatchResult) {
	var f failures
	switch code := codeOf(err); {
	case err == nil:
		for i := range results {
			if e := results[i].Error; e != nil {
				f = f.plus(e.Code, 1)
			}
		}
	case code == api.CodeBrokersUnavailable || code == api.CodeUnknownOutcome:
		f = f.plus(code, messages)
	default:
		return // it says nothing of the topic, which may not even be there
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[topic]
	if t == nil {
		t = &usedTopic{}
		w.topics[topic] = t
	}
	t.at = now
	t.failed += f.failed
	t.unknown += f.unknown
}

func (f failures) plus(code api.Code, n int64) failures {
	switch code {
	case api.CodeBrokersUnavailable:
		f.failed += n
	case api.CodeUnknownOutcome:
		f.failed += n
		f.unknown += n
	}
	return f
}

func codeOf(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// used are the topics to ask about, and how often publishing to each failed.
// Topics that were not used for long are forgotten, but not in an outage, which
// counts from its begin.
func (w *outageWatch) used(now time.Time) (names []string, counts map[string]failures) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts = make(map[string]failures, len(w.topics))
	maps.DeleteFunc(w.topics, func(_ string, t *usedTopic) bool {
		return now.Sub(t.at) > usedFor && w.state.since.IsZero()
	})
	for name, t := range w.topics {
		names, counts[name] = append(names, name), t.failures
	}
	if len(names) > mostUsed {
		slices.SortFunc(names, func(a, b string) int { return w.topics[b].at.Compare(w.topics[a].at) })
		names = names[:mostUsed]
	}
	return names, counts
}

// run looks until ctx ends.
func (w *outageWatch) run(ctx context.Context, up *upstream.Upstream, consumer func() []consume.AwayPartition) {
	ticker := time.NewTicker(outageLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		names, counts := w.used(time.Now())
		s := sighting{failures: counts, consumed: map[string][]int32{}}
		call, cancel := context.WithTimeout(ctx, outageAsk)
		published, err := up.Away(call, names)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.published = published
		if err != nil {
			s.cause = err.Error()
		}
		for _, p := range consumer() {
			s.consumed[p.Topic] = append(s.consumed[p.Topic], p.Partition)
		}
		w.take(s, time.Now())
	}
}

// take takes a sighting in, and logs what is worth a line.
func (w *outageWatch) take(s sighting, now time.Time) {
	w.mu.Lock()
	next, what := w.state.look(s, now)
	before := w.state
	if what == eventEnds {
		w.state = next.over()
	} else {
		w.state = next
	}
	w.mu.Unlock()
	st := next.status()
	away := 0
	if st != nil {
		away = st.Partitions
	}
	w.gauge.Set(float64(away))
	switch what {
	case eventBegins, eventGrows:
		fields := []zap.Field{zap.Int("partitions", st.Partitions), zap.String("topics", st.topicsText()), zap.Int32s("brokers", st.Brokers)}
		if st.Cause != "" {
			fields = append(fields, zap.String("cause", st.Cause))
		}
		text := "partitions"
		if what == eventGrows {
			text = "more partitions"
		}
		w.log.Warn(text+" of topics that are used here are away: nothing is published to them or pulled from them until their brokers are back", fields...)
	case eventEnds:
		f := next.failed()
		w.log.Warn("no partition of the topics that are used here is away any more",
			zap.Duration("after", before.quiet.Sub(before.since).Round(time.Millisecond)), zap.Int("partitions", next.largest),
			zap.Strings("topics", slices.Sorted(maps.Keys(next.touched))[:min(len(next.touched), mostAwayTopics)]),
			zap.Int64("failed_messages", f.failed), zap.Int64("of_them_unknown", f.unknown))
	}
}

// status is nil while nothing is away.
func (w *outageWatch) status() *OutageStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.status()
}
