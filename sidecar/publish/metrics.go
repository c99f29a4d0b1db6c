package publish

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	records  *prometheus.CounterVec // by ack
	bytes    *prometheus.CounterVec // by ack
	batches  *prometheus.CounterVec // by ack
	failures *prometheus.CounterVec // by code
	seconds  *prometheus.HistogramVec

	by [2]struct { // Ack: what each publish counts, looked up once
		records, bytes, batches prometheus.Counter
		seconds                 prometheus.Observer
	}
}

func newMetrics(reg prometheus.Registerer, buffered func() float64) (*metrics, error) {
	m := &metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_publish_records_total", Help: "Messages that the brokers acknowledged.",
		}, []string{"ack"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_publish_bytes_total", Help: "Bytes of those messages: keys, values and headers.",
		}, []string{"ack"}),
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_publish_batches_total", Help: "Record batches made for the brokers; messages divided by it is how large they are.",
		}, []string{"ack"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_publish_errors_total", Help: "Messages that were answered with an error, by its code.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sidestream_publish_duration_seconds", Help: "Time from a publish request to its last message's fate.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"ack"}),
	}
	for _, ack := range []Ack{AckAll, AckLeader} {
		b := &m.by[ack]
		name := ack.String()
		b.records, b.bytes = m.records.WithLabelValues(name), m.bytes.WithLabelValues(name)
		b.batches, b.seconds = m.batches.WithLabelValues(name), m.seconds.WithLabelValues(name)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.records, m.bytes, m.batches, m.failures, m.seconds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_publish_buffered_records", Help: "Messages on their way to the brokers.",
		}, buffered),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
