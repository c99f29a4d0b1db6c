package agent

import "github.com/prometheus/client_golang/prometheus"

// metrics of one agent.
type metrics struct {
	alarms       prometheus.Gauge
	led          prometheus.Gauge
	controller   prometheus.Gauge
	sessionsLost prometheus.Counter
	takes        prometheus.Counter
	reconciles   *prometheus.CounterVec
	offline      prometheus.Gauge
	missing      prometheus.Gauge
	up           *prometheus.GaugeVec
	upIDs        map[string]bool // brokers that up tells of; only the goroutine of watchOutage looks
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		alarms:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_agent_alarms", Help: "Alarms raised by the agent itself."}),
		led:          prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_agent_led_partitions", Help: "Partitions that this agent's broker leads."}),
		controller:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_agent_controller", Help: "1 while this agent is the controller."}),
		sessionsLost: prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_agent_sessions_lost_total", Help: "Sessions that the coordination store ended."}),
		takes:        prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_agent_takes_total", Help: "Partitions whose leadership was taken."}),
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sidestream_agent_reconciles_total",
			Help: "Rounds of bringing the broker in line with the store, by outcome."}, []string{"outcome"}),
	}
	m.offline = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_agent_offline_partitions", Help: "Partitions of the cluster that have no leader, as this agent sees it."})
	m.missing = prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_agent_brokers_missing", Help: "Brokers that hold partitions and do not serve, as this agent sees it."})
	m.up = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sidestream_agent_broker_up",
		Help: "1 for a broker that is registered and serves, 0 for one that holds partitions and does not, as this agent sees it."}, []string{"broker"})
	if r != nil {
		r.MustRegister(m.alarms, m.led, m.controller, m.sessionsLost, m.takes, m.reconciles, m.offline, m.missing, m.up)
	}
	return m
}

// brokersUp tells of each broker whether it serves, and no more of those that
// are not known any more.
func (m *metrics) brokersUp(is map[string]bool) {
	for id := range m.upIDs {
		if _, known := is[id]; !known {
			m.up.DeleteLabelValues(id)
		}
	}
	for id, serves := range is {
		m.up.WithLabelValues(id).Set(map[bool]float64{true: 1}[serves])
	}
	m.upIDs = is
}
