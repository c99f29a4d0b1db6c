package consume

import "github.com/prometheus/client_golang/prometheus"

// metrics of consuming, by group and topic where that says more.
type metrics struct {
	delivered   *prometheus.CounterVec
	redelivered *prometheus.CounterVec
	acked       *prometheus.CounterVec
	nacked      *prometheus.CounterVec
	expired     *prometheus.CounterVec
	returned    *prometheus.CounterVec
	jumped      *prometheus.CounterVec
	lag         *prometheus.GaugeVec
	lagUnknown  *prometheus.GaugeVec
	unreadable  *prometheus.GaugeVec

	deadLetters  *prometheus.CounterVec
	skipped      *prometheus.CounterVec
	deadFailures *prometheus.CounterVec
	redriven     *prometheus.CounterVec

	groupsRemoved   prometheus.Counter
	groupPartitions prometheus.Gauge
	idleLag         *prometheus.GaugeVec
	idleLagSeconds  *prometheus.GaugeVec
	lagSeconds      *prometheus.GaugeVec
	unackedSeconds  *prometheus.GaugeVec

	moves           *prometheus.CounterVec
	plans           *prometheus.CounterVec
	membershipsLost prometheus.Counter
	suspected       prometheus.Counter
	checkpoints     prometheus.Counter
	fetchErrors     prometheus.Counter
	buffered        prometheus.Gauge
	streams         prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sidestream_consume_" + name, Help: help}, labels)
	}
	single := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_consume_" + name, Help: help})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sidestream_consume_" + name, Help: help}, []string{"group", "topic"})
	}
	m := &metrics{
		delivered:      counter("messages_delivered_total", "Messages handed to applications, redeliveries included.", "group", "topic"),
		redelivered:    counter("messages_redelivered_total", "Messages handed out with an attempt above 1.", "group", "topic"),
		acked:          counter("messages_acked_total", "Messages acknowledged for the first time.", "group", "topic"),
		nacked:         counter("messages_nacked_total", "Receipts refused by the application.", "group", "topic"),
		expired:        counter("leases_expired_total", "Messages whose lease ran out.", "group", "topic"),
		returned:       counter("messages_returned_total", "Messages taken back because the answer could not be written.", "group", "topic"),
		jumped:         counter("offsets_jumped_total", "Offsets passed over because the log no longer has them.", "group", "topic"),
		lag:            gauge("lag_messages", "Messages not acknowledged of the partitions that this sidecar owns, as far as their leaders told."),
		lagUnknown:     gauge("lag_unknown_partitions", "Partitions of this sidecar whose lag is not known or old, since their leaders are away: the lag lacks them."),
		unreadable:     gauge("unreadable_partitions", "Partitions of this sidecar that stand still at records which nobody can read, until somebody seeks past them."),
		deadLetters:    counter("dead_letters_total", "Messages written to the dead letters, by the reason; batches that nobody can read count as one.", "group", "topic", "reason"),
		skipped:        counter("messages_skipped_total", "Messages dropped by the group's policy in place of a dead letter, by the reason.", "group", "topic", "reason"),
		deadFailures:   counter("dead_letter_failures_total", "Attempts to write dead letters that failed and are repeated: their messages wait.", "group", "topic"),
		redriven:       counter("dead_letters_redriven_total", "Dead letters brought back, or discarded, through this sidecar.", "group", "topic", "how"),
		idleLag:        gauge("idle_lag_messages", "Messages not acknowledged of a group that has no member, as last looked for; told by the one sidecar that looks after groups."),
		idleLagSeconds: gauge("idle_lag_seconds", "Age, by its own timestamp, of the oldest message not acknowledged of a group that has no member; told with idle_lag_messages."),
		groupsRemoved:  single("groups_removed_total", "Groups that this sidecar removed because nobody used them."),
		groupPartitions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidestream_consume_group_partitions",
			Help: "Partitions that all groups of the cluster consume, each counted once for every group; told by the one sidecar that counts them, 0 on all others.",
		}),
		lagSeconds:      gauge("lag_seconds", "Age, by its own timestamp, of the oldest message not acknowledged of the partitions that this sidecar owns; 0: there is none, or it is not read yet."),
		unackedSeconds:  gauge("oldest_unacked_seconds", "Time since the oldest message that was handed out and is not acknowledged was handed out first; 0: there is none."),
		moves:           counter("rebalances_total", "Partitions taken and released by this sidecar.", "group", "kind"),
		plans:           counter("plans_total", "Plans made by this sidecar.", "group"),
		membershipsLost: single("memberships_lost_total", "Group memberships that ended because the session was lost."),
		suspected:       single("sessions_suspected_total", "Sessions of other sidecars that this one ended because their health check was critical."),
		checkpoints:     single("checkpoint_failures_total", "Checkpoints at release that had to be repeated."),
		fetchErrors:     single("fetch_errors_total", "Fetches, or partitions of them, that failed and are repeated."),
		buffered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidestream_consume_buffered_bytes",
			Help: "Bytes of messages held in memory until they are acknowledged.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sidestream_consume_streams", Help: "Streams that applications hold open."}),
	}
	if reg != nil {
		reg.MustRegister(m.delivered, m.redelivered, m.acked, m.nacked, m.expired, m.returned, m.jumped, m.lag, m.lagUnknown, m.unreadable,
			m.deadLetters, m.skipped, m.deadFailures, m.redriven,
			m.lagSeconds, m.unackedSeconds, m.groupsRemoved, m.groupPartitions, m.idleLag, m.idleLagSeconds,
			m.moves, m.plans, m.membershipsLost, m.suspected, m.checkpoints, m.fetchErrors, m.buffered, m.streams)
	}
	return m
}
