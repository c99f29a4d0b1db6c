package kafka

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the protocol server.
type metrics struct {
	requests    *prometheus.CounterVec
	errors      *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	received    prometheus.Counter
	sent        prometheus.Counter
	records     prometheus.Counter
	connections *prometheus.GaugeVec
	refused     *prometheus.CounterVec
	listens     prometheus.Counter
	throttled   *prometheus.CounterVec
	memory      prometheus.GaugeFunc
	arriving    prometheus.GaugeFunc
	waiting     prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, held *budget) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_broker_requests_total", Help: "Kafka requests by API."}, []string{"api"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_broker_errors_total", Help: "Errors answered, by Kafka error code."}, []string{"code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sidestream_broker_request_duration_seconds", Help: "Time from the whole request to its answer; of Fetch it includes the wait for data.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}, []string{"api"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_broker_received_bytes_total", Help: "Bytes of request frames received."}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_broker_sent_bytes_total", Help: "Bytes of answers sent."}),
		records: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_broker_produced_records_total", Help: "Records that producers sent in valid batches."}),
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sidestream_broker_connections", Help: "Open connections by who serves them."}, []string{"served_by"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_broker_connections_refused_total", Help: "Connections closed by the server, by reason."}, []string{"reason"}),
		listens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_broker_listener_failures_total", Help: "Times that the listener failed, with all connections on event loops, and began again."}),
		throttled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_broker_throttled_seconds_total", Help: "Time that clients over their quota were told to wait."}, []string{"quota"}),
		memory: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_broker_request_memory_bytes", Help: "Bytes that requests in memory hold."},
			func() float64 { return float64(held.used.Load()) }),
		arriving: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_broker_request_memory_arriving_bytes", Help: "Bytes of them that requests hold of which not everything has arrived."},
			func() float64 { return float64(held.arriving()) }),
		waiting: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_broker_requests_waiting", Help: "Requests that are not read on because request memory is short."},
			func() float64 { return float64(held.queue()) }),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.errors, m.duration, m.received, m.sent, m.records, m.connections, m.refused, m.listens, m.throttled, m.memory, m.arriving, m.waiting)
	}
	return m
}

func (m *metrics) failed(code int16) {
	m.errors.WithLabelValues(strconv.Itoa(int(code))).Inc()
}

// apiMetrics are one API's series, looked up once.
type apiMetrics struct {
	requests prometheus.Counter
	duration prometheus.Observer
}

func (m *metrics) forAPIs() map[int16]apiMetrics {
	out := map[int16]apiMetrics{}
	for key, a := range apiTable {
		out[key] = apiMetrics{m.requests.WithLabelValues(a.name), m.duration.WithLabelValues(a.name)}
	}
	return out
}
