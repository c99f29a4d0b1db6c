package api

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

type metrics struct {
	requests *prometheus.CounterVec   // by route and status
	errors   *prometheus.CounterVec   // by code
	seconds  *prometheus.HistogramVec // by route
	gaveWay  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_http_requests_total", Help: "Requests answered, by route and status.",
		}, []string{"route", "status"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_http_errors_total", Help: "Requests answered with an error, by its code.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sidestream_http_request_duration_seconds", Help: "Time to answer a request, long polls included, by route.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}, []string{"route"}),
		gaveWay: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_http_connections_gave_way_total", Help: "Idle connections that were closed for another one, since there were max_connections.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.errors, m.seconds, m.gaveWay} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// count counts an answer. That of all goes well takes no look at labels.
func (m *metrics) count(c *compiled, status int) {
	if status == fasthttp.StatusOK {
		c.ok.Inc()
		return
	}
	m.requests.WithLabelValues(c.labels, strconv.Itoa(status)).Inc()
}
