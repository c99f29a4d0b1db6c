package idempotency

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	requests  *prometheus.CounterVec // by result
	settled   *prometheus.CounterVec // by fate
	forgotten *prometheus.CounterVec // by cause
}

func newMetrics(reg prometheus.Registerer, status func() Status) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_idempotency_requests_total",
			Help: "Requests with an Idempotency-Key by what became of them: new, replayed, resumed (what was not written was sent), open (the fate of the first is not known yet), conflict, refused (the disk took no intent); and waited, for those that waited for the first.",
		}, []string{"result"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_idempotency_settled_records_total",
			Help: "Messages of requests with an Idempotency-Key whose fate was found out after their answer or after a restart: written, spooled or absent.",
		}, []string{"fate"}),
		forgotten: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_idempotency_forgotten_keys_total",
			Help: "Keys that were forgotten: age (older than the window) or room (before that, since there were too many).",
		}, []string{"cause"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.settled, m.forgotten,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_idempotency_keys", Help: "Idempotency-Keys that are remembered.",
		}, func() float64 { return float64(status().Keys) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_idempotency_open_keys", Help: "Idempotency-Keys of which the fate of some message is not known yet.",
		}, func() float64 { return float64(status().Open) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_idempotency_bytes", Help: "Memory of what is remembered, in bytes.",
		}, func() float64 { return float64(status().Bytes) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// settle counts what was found out.
func (m *metrics) settle(before, now []fate) {
	for i := range now {
		if before[i].kind == open && now[i].kind != open {
			m.settled.WithLabelValues([...]string{written: "written", spooled: "spooled", absent: "absent"}[now[i].kind]).Inc()
		}
	}
}
