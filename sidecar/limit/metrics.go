package limit

import "github.com/prometheus/client_golang/prometheus"

// label names a limit in metrics. Names that only "*" limits are all "*", since
// an application may call itself anything.
type label struct{ scope, name string }

type metrics struct {
	delayed, refused, seconds *prometheus.CounterVec // by scope, name and unit
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	labels := []string{"scope", "name", "unit"}
	m := &metrics{
		delayed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_limit_delayed_messages_total",
			Help: "Messages that a rate limit held back for a while, by the limit that did so for the longest: scope total, topic or caller, its name, and what it counts, messages or bytes.",
		}, labels),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_limit_refused_messages_total",
			Help: "Messages that a rate limit refused (429, or 413 for a batch that no wait would let pass), by limit.",
		}, labels),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_limit_wait_seconds_total",
			Help: "Time that requests were held back by rate limits, summed up, by limit.",
		}, labels),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.delayed, m.refused, m.seconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) delay(v verdict, r request) {
	m.delayed.WithLabelValues(v.by.scope, v.by.name, v.unit).Add(float64(r.messages))
	m.seconds.WithLabelValues(v.by.scope, v.by.name, v.unit).Add(v.wait.Seconds())
}

func (m *metrics) refuse(v verdict, r request) {
	m.refused.WithLabelValues(v.by.scope, v.by.name, v.unit).Add(float64(r.messages))
}
