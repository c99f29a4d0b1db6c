package spool

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	accepted      prometheus.Counter
	acceptedBytes prometheus.Counter
	refused       *prometheus.CounterVec // by code
	written       prometheus.Counter
	found         prometheus.Counter
	rejected      *prometheus.CounterVec // by code
	faults        *prometheus.CounterVec // by kind
}

func newMetrics(reg prometheus.Registerer, s *Spool) (*metrics, error) {
	m := &metrics{
		accepted:      prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_spool_accepted_records_total", Help: "Messages that were taken onto this host's disk."}),
		acceptedBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_spool_accepted_bytes_total", Help: "Bytes of those messages in the journal."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_spool_refused_records_total", Help: "Messages that the spool did not take, by the code of the error; spool_full is for want of room.",
		}, []string{"code"}),
		written: prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_spool_written_records_total", Help: "Spooled messages that the brokers have."}),
		found:   prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_spool_found_records_total", Help: "Spooled messages that were found to be written already, after a crash or an unknown outcome."}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_spool_rejected_records_total", Help: "Spooled messages that were moved to the file of rejected messages, by the code of the error.",
		}, []string{"code"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_spool_faults_total", Help: "Failures of the spool's disk, by what failed: read, marks, outcomes, topics, reclaim, park; damage is messages that the disk lost.",
		}, []string{"kind"}),
	}
	if reg == nil {
		return m, nil
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	for _, c := range []prometheus.Collector{m.accepted, m.acceptedBytes, m.refused, m.written, m.found, m.rejected, m.faults,
		gauge("sidestream_spool_pending_records", "Spooled messages that are not written yet.", func() float64 { return float64(s.Status().Pending) }),
		gauge("sidestream_spool_disk_bytes", "Bytes of spooled messages on the disk.", func() float64 { return float64(s.diskBytes()) }),
		gauge("sidestream_spool_limit_bytes", "Bytes that they may have (spool.max_bytes).", func() float64 { return float64(s.cfg.MaxBytes) }),
		gauge("sidestream_spool_oldest_seconds", "For how long the oldest spooled message has waited; 0 without any.", func() float64 { return s.Status().OldestSeconds }),
		gauge("sidestream_spool_away_partitions", "Partitions whose spooled messages make no way.", func() float64 { return float64(s.Status().AwayPartitions) }),
		gauge("sidestream_spool_reject_bytes", "Bytes of the file of rejected messages.", func() float64 { return float64(s.rejects.size()) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
