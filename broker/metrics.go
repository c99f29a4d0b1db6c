package broker

import "github.com/prometheus/client_golang/prometheus"

// metrics of the storage side; package kafka has its own for the protocol side.
type metrics struct {
	write, flush prometheus.Histogram
}

// latencyBuckets reach from a write into the page cache to a disk in trouble.
var latencyBuckets = prometheus.ExponentialBuckets(0.00002, 3, 13)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		write: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sidestream_broker_append_duration_seconds", Help: "Time to write one group of appends into the page cache.", Buckets: latencyBuckets}),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sidestream_broker_flush_duration_seconds", Help: "Time of one group commit to disk.", Buckets: latencyBuckets}),
	}
	if reg != nil {
		reg.MustRegister(m.write, m.flush)
	}
	return m
}

var (
	partitionsDesc = prometheus.NewDesc("sidestream_broker_partitions", "Partitions in the data folder, by whether they are served.", []string{"state"}, nil)
	logBytesDesc   = prometheus.NewDesc("sidestream_broker_log_bytes", "Bytes of log by topic.", []string{"topic"}, nil)
	dirBytesDesc   = prometheus.NewDesc("sidestream_broker_log_dir_bytes", "Bytes of log by log directory.", []string{"directory"}, nil)
	dirOfflineDesc = prometheus.NewDesc("sidestream_broker_log_dir_offline", "1 while a log directory takes no writes.", []string{"directory"}, nil)
	alarmsDesc     = prometheus.NewDesc("sidestream_broker_alarms", "Things that an operator must look at.", nil, nil)
)

// stock counts what the broker holds when it is asked. It is registered once the
// data folder is loaded: before that nobody else may look at what is held.
type stock struct{ b *Broker }

// Describe is part of prometheus.Collector.
func (s *stock) Describe(ch chan<- *prometheus.Desc) {
	ch <- partitionsDesc
	ch <- logBytesDesc
	ch <- dirBytesDesc
	ch <- dirOfflineDesc
	ch <- alarmsDesc
}

// Collect is part of prometheus.Collector.
func (s *stock) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{"led": 0, "held": 0, "failed": 0}
	bytes := map[string]int64{}
	for _, h := range s.b.holdings() {
		p := h.current()
		switch {
		case p == nil:
			states["failed"]++
			continue
		case p.isLed():
			states["led"]++
		default:
			states["held"]++
		}
		bytes[p.topic] += p.log.Size()
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(partitionsDesc, prometheus.GaugeValue, float64(n), state)
	}
	for topic, n := range bytes {
		ch <- prometheus.MustNewConstMetric(logBytesDesc, prometheus.GaugeValue, float64(n), topic)
	}
	for _, d := range s.b.LogDirs() {
		var held int64
		for _, p := range d.Partitions {
			held += p.Bytes
		}
		offline := 0.0
		if d.Err != nil {
			offline = 1
		}
		ch <- prometheus.MustNewConstMetric(dirBytesDesc, prometheus.GaugeValue, float64(held), d.Path)
		ch <- prometheus.MustNewConstMetric(dirOfflineDesc, prometheus.GaugeValue, offline, d.Path)
	}
	ch <- prometheus.MustNewConstMetric(alarmsDesc, prometheus.GaugeValue, float64(len(s.b.Alarms())))
}
