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
	if r != nil {
		r.MustRegister(m.alarms, m.led, m.controller, m.sessionsLost, m.takes, m.reconciles)
	}
	return m
}
